"""Every byte that lies in the bucket: keys, commits, records, snapshots.

Decides formats; pure bytes in, values out. Never does I/O, never reads a clock.
"""
