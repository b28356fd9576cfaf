"""The S2 API over HTTP: bytes of requests to calls of the engine, answers and errors to bytes.

Decides routes, validation order, content negotiation, status codes and framing. Handlers see an
`Exchange` only, never the HTTP library behind it; errors become HTTP in `problems` and nowhere
else.
"""
