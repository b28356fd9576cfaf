"""Bourn: a durable stream store on object storage that speaks the S2 API.

The packages are layers, and imports point down: engine, catalog, bucket, log, layout, wire,
model. ARCHITECTURE.md follows an append and a read through them.
"""
