"""The domain's nouns and their rules: records, names, configs.

Decides what is valid and what it weighs. Never does I/O, never reads a clock.
"""
