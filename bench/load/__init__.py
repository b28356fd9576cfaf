"""Crowds and attacks at full size, against a server in a process of its own."""
