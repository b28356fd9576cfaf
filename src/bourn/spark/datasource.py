"""The format `bourn` of Spark: streams of an S2 endpoint as sources and sinks.

Spark starts a Python for each plan of a read, and waits for what it imports: so the sink is
imported by those who write.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from bourn.spark.options_source import parse_source_options
from bourn.spark.schema import source_schema
from bourn.spark.source import BatchReader, StreamReader


class BournDataSource(DataSource):
    """Register it with `spark.dataSource.register(BournDataSource)`, then use format("bourn")."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bourn"

    def schema(self) -> StructType:
        """Return all columns that the options ask for; a reader may name fewer by `.schema(…)`."""
        options = parse_source_options(self.options)
        return source_schema(has_headers=options.has_headers, has_metered=options.has_metered)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what `spark.read` reads with."""
        return BatchReader(parse_source_options(self.options, is_streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's own
        """Return what `spark.readStream` reads with."""
        return StreamReader(parse_source_options(self.options, is_streaming=True), schema)

    def writer(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001  Spark's own
    ) -> DataSourceArrowWriter:
        """Return what `df.write` writes with."""
        from bourn.spark.sink import batch_writer  # noqa: PLC0415  see the module

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802  Spark's own
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001  Spark's own
    ) -> DataSourceStreamArrowWriter:
        """Return what `df.writeStream` writes with."""
        from bourn.spark.sink import stream_writer  # noqa: PLC0415  see the module

        return stream_writer(self.options, schema, overwrite)
