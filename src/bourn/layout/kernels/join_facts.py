"""What `joining.py` has found of the runs that make a batch: a word each."""

RECORDS, STORED, METERED, HEADERS, RETENTION, ARRIVAL, LAST_TIMESTAMP, COMMANDS = range(8)
FOUND = 8
