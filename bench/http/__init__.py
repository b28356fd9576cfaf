"""The benchmark through HTTP: `python -m bench.http` measures a `bourn serve` process.

Each bucket gets a server of its own for every turn; cases run one after the other against it, turns
are repeated, and medians count. CPU seconds of server and client stand beside every figure: where
the machine is busy with other things, they still say what the work costs.
    server.py      the server's process, what it costs, and a basin to work in
    asking.py      connections that ask again and again, each through requests of its own
    benches.py     `bourn bench` and, where it is there, `s2 bench`
    sessions.py    append sessions of full batches, and their round trip; catch-up reads
    unary.py       unary appends over 1 and 64 connections
    followers.py   a thousand SSE followers of one stream
    memory.py      what a server holds after 600 MB
    table.py       rows for people
"""
