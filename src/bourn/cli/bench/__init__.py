"""`bourn bench`: measure a stream of any S2 endpoint as a client sees it.

    kernels.py     records made and checked, a batch at a time, compiled
    content.py     what is appended, and the check of what is read
    latencies.py   latencies counted in few words, and their percentiles
    link.py        a connection, append and read sessions over it
    phases.py      write with a reader at the tail, then catch up
    live.py        the table while it runs, and the result
    command.py     the command: makes the stream, runs the phases, deletes the stream

Decides nothing about the API and keeps nothing: it is a client that measures. It must cost less
than the server that it measures, so nothing is done record by record in Python.
"""
