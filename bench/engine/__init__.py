"""The engine's benchmark: `python -m bench.engine` measures nodes in-process, without HTTP.

Every case runs in a fresh child process, repeats are interleaved over the cases, and medians count.
    case.py      what a case, a budget and a row are; how a child runs one
    target.py    the buckets that nodes stand on, and batches to append
    appends.py · idle.py · reads.py · streams.py · startup.py    what is measured
    table.py     rows for people
    report.py    rows for machines, and what machine they come from
"""
