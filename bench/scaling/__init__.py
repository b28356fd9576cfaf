"""How cost grows with streams and with history: `python -m bench.scaling` (`make scaling`).

streams.py   the same load spread over 1 to 100,000 streams
history.py   a server that starts on, and reads from, 1 to 100 GB of history
tables.py    buckets with so much history, made in minutes; it says what is real and what is scaled
"""
