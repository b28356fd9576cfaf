"""What the fuzzed server holds before the first request."""

BASINS = ("fuzz-basin-one", "fuzz-basin-two")
STREAMS = ("orders", "a/b", "käse")
