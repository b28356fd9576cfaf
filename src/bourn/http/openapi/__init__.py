"""The API as an OpenAPI document of our own, made from the same limits that the server enforces.

`encoded_document()` is what `GET /openapi.json` answers. Nothing here decides anything: a test
compares the paths with the routes, and the fuzzer compares the answers with the document.
"""

from bourn.http.openapi.document import encoded_document

__all__ = ["encoded_document"]
