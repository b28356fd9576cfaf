"""The history: old records as an open table, and the way back from its rows to batches.

    schema.py    the columns of the table
    rows.py      batches to rows, rows to batches
    segment.py   rows to a Parquet file and its sidecar
    index.py     the sidecar: where each stream lies; a row group's bytes to batches
    pages.py     the pages of a row group as columns
    footer.py    how Parquet reads one row group alone
    delta.py     the log of the table, and facts.py, checkpoint.py: what it says of segments

Decides what a segment looks like. Never reads or writes an object, and never drops a record.
"""
