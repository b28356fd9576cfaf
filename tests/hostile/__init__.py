"""Clients that mean ill, and crowds of them that do not. `make load` runs them at full size."""
