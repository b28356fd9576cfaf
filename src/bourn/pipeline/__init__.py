"""Everything that processes stored data in bulk, on Spark.

    session.py   a Spark, and the Java for it           java.py    which Java
    scan.py      which commits the log has              names.py   which streams there are
    tier.py      the log's commits become the table     tasks.py   what runs on executors
    merge.py     small files become large ones          generations.py   which, and how cut
    retain.py    what has died leaves                   living.py  what has, and what has not
    vacuum.py    what nobody needs is deleted           files.py, rewrite.py   files replaced
    meter.py     usage becomes a table: meter_counts, _streams, _upkeep; usage_log
    audit.py     everything is proven: audit_frame, _commits, _segments, _streams, _work, …
    export.py    streams to files: export_plan, _tasks, _target, _format; export_endpoint
    load.py      files to streams: load_place, _source, _stream;   replay.py  streams to streams
    table.py     versions of the table                  place.py   how executors find the bucket
    runner.py    when to do what, job.py: of what kind  progress.py, status.py   and telling it

Decides which version of the table comes next. Never touches the log's tail, never acks, never
imports the engine: the server goes on whether this runs, is late, or is broken. All of it may be
killed anywhere and run by several at once, because nothing counts before the version that has it.
"""
