"""Bourn and `s2 lite` side by side: the same clients, the same machine, turn by turn."""
