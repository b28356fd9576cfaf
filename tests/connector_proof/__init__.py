"""Proof of the connector: a query from streams to streams, whose driver is killed again and again.

    python -m tests.connector_proof --restarts 20

A real `bourn serve` on a disk; a feeder that appends all the time; a driver, a process of its own,
that reads with the source, transforms, and writes with the sink. Its whole process group is killed
with SIGKILL at a random moment and started again, with another number of partitions; tasks fail at
random; the server is killed, too; Spark's note of the last batch is lost behind some kills, as if
they had come just before it. In the end everything is read back: every record of the input
must be in the output once, unaltered, in the order of its key. `--sabotage` takes one promise away,
and must be found.
"""
