"""The crash test: a node on local disk is killed again and again, and every promise is checked.

    python -m tests.crash --kills 50 [--duel 5] [--seed 7] [--directory D] [--sabotage early-ack]

One process forks nodes, kills them with SIGKILL and keeps the ledger; it never opens a bucket
itself. A node process tells over a pipe what it is about to do *before* it does it, and what was
promised to it *afterwards*, so that at any instant, and so at any kill, the ledger holds at least
what may be in the bucket and exactly what must be.

    content    every batch is a function of the seed and its number: a checker makes it again
    events     the lines of the pipe
    ledger     what was promised, seen and attempted
    check      a complete look at a bucket, judged by the ledger
    workload   what a node is made to do until it dies
    child      a node's process, from fork to its end
    process    the pipe, the signals
    kills      kill after kill on one directory, then a fresh one
    duel       two and three nodes fight for one bucket: stopped, woken up, killed, at full speed
    buckets    slow disks; and disks that lie, to see that the run fails

A kill leaves the page cache alone. What only a loss of power destroys (a put without its syncs)
cannot be found here; the order of the system calls is tested with the bucket.
"""
