"""The running store: one writer over one bucket.

Decides when to commit, what is durable, who is woken and what is kept in memory. Order:
`node` (the API) owns a `term` (one epoch) which owns `committer`, `streams`, `reader` and
`housekeeping`; `recovery` makes a term out of a bucket. Never knows HTTP.
"""
