"""The proof of the pipeline: `python -m tests.proof --rounds 20`, which is `make pipeline-proof`.

    writers ──► bourn serve ◄── readers, from 0 and from anywhere, at any moment
                   │ supervises
                   ▼
                pipeline (driver ─ Java ─ executors)         kill -9 of each of them, at any moment

A real server on a real disk (and, for some rounds, on an S3 server) with a real pipeline that has
no patience: it tiers, merges, retains and vacuums all the time, and the server deletes the log as
soon as the table has it. What a record is follows from its stream and its number alone
(`content`), so that every reader knows what it must get (`ledger`):

    - what was acknowledged is read, once, in order, as it was appended
    - what was not acknowledged is read whole or not at all
    - what was trimmed is not read any more; what was deleted neither, and its name begins anew

and after every round the pipeline's own audit must agree. One violation, and the exit code is 1.

What an executor is: with `local[n]`, a Python worker process of Spark, which does the work of a
task, or the Java of the driver, in which the executor lives; with `local-cluster[…]`, the Java of
an executor, or a Python worker of it. All three are killed.
"""
