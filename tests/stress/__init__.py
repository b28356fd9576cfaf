"""Everything at once, by seed: what a server has promised against what it holds behind it."""
