"""The API under schemathesis: `python -m tests.fuzz --seconds 300`.

A server with tokens runs in a process of its own; requests are made from its own OpenAPI document,
valid ones and broken ones, and every answer is compared with the document: no 500, no status, no
header and no shape that it does not name, nothing valid refused, nothing broken accepted.
"""
