"""The document at `/openapi.json` and the routes of the server say the same."""

import pytest

from bourn.http.operations import OPERATIONS
from bourn.http.routing import METHODS, Route, match_path

ALIASES = {Route.READ_ALIAS, Route.APPEND_ALIAS}
OUTSIDE = {Route.HEALTH, Route.METRICS, Route.OPENAPI}


@pytest.fixture
def document(api):
    found = api.get("/openapi.json")
    assert found.status == 200
    assert found.header("content-type") == "application/json"
    return found.json


def documented(document):
    for path, item in document["paths"].items():
        for method in item.keys() - {"parameters"}:
            match = match_path("/v1" + path.replace("{", "").replace("}", ""))
            assert match is not None, path
            yield match.route, method.upper()


def test_every_route_and_method_is_in_the_document(document):
    routed = {
        (route, method)
        for route, methods in METHODS.items()
        for method in methods
        if route not in ALIASES | OUTSIDE
    }
    assert set(documented(document)) == routed


def test_every_route_and_method_has_its_operations():
    routed = {
        (route, method)
        for route, methods in METHODS.items()
        for method in methods
        if route not in OUTSIDE
    }
    assert set(OPERATIONS) == routed


def test_every_reference_leads_somewhere(document):
    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for member in value.values():
                yield from references(member)
        elif isinstance(value, list):
            for member in value:
                yield from references(member)

    named = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= named
    assert set(references(document["paths"])) <= named
