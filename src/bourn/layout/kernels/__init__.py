"""The loops of the codecs, compiled by numba; nothing outside of this package imports it.

    facts.py       what kernels and callers say to each other: rows, sums, faults
    memory.py      loads, stores and copies, all checked
    protobuf.py    reading of the wire format
    append.py      AppendInput  ->  stored records
    sequenced.py   stored records  ->  ReadBatch entries
    join_facts.py  as facts.py, for runs
    joining.py     runs of entries  ->  the stored records of one batch
    json_facts.py  as facts.py, for JSON
    json_text.py   bytes as the inside of a JSON string
    to_json.py     stored records  ->  records of a ReadBatch in JSON
    input_facts.py  as facts.py, for appends in JSON
    input_text.py  the inside of a JSON string as bytes
    input_words.py  the words of an append in JSON
    from_json.py   AppendInput in JSON  ->  stored records
    rows_facts.py  as facts.py, for the history
    to_rows.py     stored records  ->  columns of the history
    from_pages.py  pages of the history's files  ->  columns of the history
    from_rows.py   columns of the history  ->  stored records
    client_facts.py  as facts.py, for clients
    from_read.py   ReadBatch  ->  columns of a client
    to_append.py   columns of a client  ->  AppendInput
    compiled.py    compiles on first use, or takes machine code from the cache on disk

Decides nothing: `codec.py` says what is allowed and names what is wrong. A kernel takes whole
batches as arrays of bytes, lets go of the interpreter's lock, makes no Python object, and answers
hostile bytes with a negative number, never with a read or a write outside of its arrays.

numba takes a kernel from the cache unless the kernel's *own* file has changed. So that a change of
what it uses is never missed, every file with kernels carries the checksum of the files that it
imports, and a test compares.
"""
