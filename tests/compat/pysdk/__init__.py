"""The scenarios with the Python SDK; runs where that is installed, and imports nothing of ours."""
