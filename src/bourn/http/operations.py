"""Which operations a route and method stand for: what a token needs, and what usage counts.

A PUT makes or changes, so it needs both; usage counts the first.
"""

from typing import Final

from bourn.http.routing import Route
from bourn.model.access import Op

OPERATIONS: Final[dict[tuple[Route, str], tuple[Op, ...]]] = {
    (Route.BASINS, "GET"): (Op.LIST_BASINS,),
    (Route.BASINS, "POST"): (Op.CREATE_BASIN,),
    (Route.BASIN, "GET"): (Op.GET_BASIN_CONFIG,),
    (Route.BASIN, "PUT"): (Op.CREATE_BASIN, Op.RECONFIGURE_BASIN),
    (Route.BASIN, "PATCH"): (Op.RECONFIGURE_BASIN,),
    (Route.BASIN, "DELETE"): (Op.DELETE_BASIN,),
    (Route.STREAMS, "GET"): (Op.LIST_STREAMS,),
    (Route.STREAMS, "POST"): (Op.CREATE_STREAM,),
    (Route.STREAM, "GET"): (Op.GET_STREAM_CONFIG,),
    (Route.STREAM, "PUT"): (Op.CREATE_STREAM, Op.RECONFIGURE_STREAM),
    (Route.STREAM, "PATCH"): (Op.RECONFIGURE_STREAM,),
    (Route.STREAM, "DELETE"): (Op.DELETE_STREAM,),
    (Route.LOCATIONS, "GET"): (Op.LIST_LOCATIONS,),
    (Route.DEFAULT_LOCATION, "GET"): (Op.GET_DEFAULT_LOCATION,),
    (Route.DEFAULT_LOCATION, "PUT"): (Op.SET_DEFAULT_LOCATION,),
    (Route.RECORDS, "GET"): (Op.READ,),
    (Route.RECORDS, "POST"): (Op.APPEND,),
    (Route.TAIL, "GET"): (Op.CHECK_TAIL,),
    (Route.READ_ALIAS, "GET"): (Op.READ,),
    (Route.APPEND_ALIAS, "POST"): (Op.APPEND,),
    (Route.ACCESS_TOKENS, "GET"): (Op.LIST_ACCESS_TOKENS,),
    (Route.ACCESS_TOKENS, "POST"): (Op.ISSUE_ACCESS_TOKEN,),
    (Route.ACCESS_TOKEN, "DELETE"): (Op.REVOKE_ACCESS_TOKEN,),
    (Route.USAGE_ACCOUNT, "GET"): (Op.ACCOUNT_METRICS,),
    (Route.USAGE_BASIN, "GET"): (Op.BASIN_METRICS,),
    (Route.USAGE_STREAM, "GET"): (Op.STREAM_METRICS,),
}
