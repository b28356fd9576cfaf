"""The command line: the composition root of the server, and a client for those without one.

Decides how settings are found and what a person sees. Holds no logic of the store.
"""
