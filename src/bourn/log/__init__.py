"""The rules of the log: what an append becomes, what a read gets, when a record goes.

    sequencer.py   state + batch + now  ->  positions and the next state, or a refusal
    acks.py        which commits are durable: the contiguous prefix, never past a gap
    epochs.py      the commits of all writers, one after the other, as one row of ordinals
    cursor.py      where a read starts, what a read batch may hold, when a read ends
    retention.py   which records are hidden, when an empty stream may go

Decides everything that two correct servers must agree on. Never reads a clock, awaits, logs or
touches storage: time comes in as an argument, effects go out as values.
"""
