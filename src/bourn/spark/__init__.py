"""The connector: streams of any S2 endpoint as sources and sinks of users' own Spark pipelines.

    datasource.py      the format `bourn`
    options.py         what options have in common; options_source.py, options_sink.py
    schema.py          the columns of a source
    source.py          the source: plans on the driver, reads in tasks
    source_plan.py     offsets, ranges, and how they are cut: plain values
    source_look.py     what it asks of the API to plan
    sink*.py           the sink

Speaks nothing but the public S2 API, through `bourn.client`. Never imports the server.
"""

from bourn.spark.datasource import BournDataSource

__all__ = ["BournDataSource"]
