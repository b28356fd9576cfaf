"""What travels between client and server: frames, compression, protobuf, JSON, events.

Decides how messages look as bytes; pure bytes in, values out. Never does I/O, never reads a clock,
never touches storage. The batch codec (append inputs in, read entries out) is `layout`'s.
"""
