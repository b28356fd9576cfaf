"""A blocking client of the public S2 API, for bulk: tools and the connector move records with it.

    settings.py    where and how, from what is given and the S2_* variables
    failures.py    what can go wrong, by what the caller must do
    http1.py       HTTP/1.1 as bytes: heads and bodies, no sockets
    link.py        one connection
    retries.py     how often, and how long between
    client.py      unary calls
    reading.py     read sessions, as Arrow batches; they take themselves up again
    appending.py   append sessions, pipelined; nothing is repeated unless the caller says so

Decides nothing about the server: it works with any S2 endpoint. Settings can be pickled, and never
show a token or a key.
"""

from bourn.client.appending import AppendSession
from bourn.client.client import BasinInfo, Client, StreamInfo
from bourn.client.failures import (
    ClientError,
    ConnectionLost,
    FencingTokenMismatch,
    Refused,
    SeqNumMismatch,
    Unreachable,
    Unwritten,
)
from bourn.client.reading import ReadSession, ReadStart
from bourn.client.retries import AppendRetry, Retries
from bourn.client.settings import Settings
from bourn.errors import BadAddress
from bourn.model.endpoint import Endpoint, account_endpoint, basin_endpoint

__all__ = [
    "AppendRetry",
    "AppendSession",
    "BadAddress",
    "BasinInfo",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Endpoint",
    "FencingTokenMismatch",
    "ReadSession",
    "ReadStart",
    "Refused",
    "Retries",
    "SeqNumMismatch",
    "Settings",
    "StreamInfo",
    "Unreachable",
    "Unwritten",
    "account_endpoint",
    "basin_endpoint",
]
