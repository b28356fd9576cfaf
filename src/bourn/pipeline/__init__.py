"""Everything that processes stored data in bulk, on Spark.

    session.py   a Spark, and the Java for it           java.py    which Java
    scan.py      which commits the log has              names.py   which streams there are
    tier.py      the log's commits become the table     tasks.py   what runs on executors
    table.py     versions of the table                  place.py   how executors find the bucket
    runner.py    when to do what                        progress.py, status.py   and telling it

Decides which version of the table comes next. Never touches the log's tail, never acks, never
imports the engine: the server goes on whether this runs, is late, or is broken. All of it may be
killed anywhere and run by several at once, because nothing counts before the version that has it.
"""
