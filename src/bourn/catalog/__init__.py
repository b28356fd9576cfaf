"""The catalog: which basins and streams exist, how they are configured, what may become of them.

    rows.py         a basin and a stream as the catalog keeps them
    changes.py      what a decision does to the catalog, as it travels in commits
    basins.py       create, ensure, reconfigure, delete: basins
    streams.py      the same for streams, and their creation by a first append or read
    basin_table.py  all basins, by name and id, and their listing
    table.py        all streams likewise: objects for those in use, columns (cold.py) for the rest

Decides by values alone: the existing row, the request and the time come in; the row that holds
and the change that makes it hold go out. A change counts when the commit that carries it is
durable, and so does an answer that depends on it. Never reads a clock, makes an id, or waits.
"""
