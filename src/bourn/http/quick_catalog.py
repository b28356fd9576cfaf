"""The catalog on the quick way: lists and configs, and streams that are as they should be.

Such an answer depends on the catalog alone: on its basins and streams, and on what the token of
whoever asks allows, which the catalog says too. No time goes by in it: what is to be deleted, or is
gone, is so by a change. So an answer is given again, to the same bytes, until the catalog changes;
whether the token is good, and whether this node leads, is asked each time.
"""

from typing import Final

from bourn.catalog.changes import Provision
from bourn.engine.at_once import CatalogMark
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.http.audit import is_heard
from bourn.http.auth import Authenticator
from bourn.http.control_plane import (
    basin_config_json,
    basins_json,
    stream_config_json,
    stream_json,
    streams_json,
)
from bourn.http.listing import narrowed
from bourn.http.query import list_query
from bourn.http.quick_head import QuickHead
from bourn.http.quick_reads import Reply, dressed
from bourn.limits import (
    CATALOG_ANSWER_BYTES_KEPT_MAX,
    CATALOG_ANSWERS_BYTES,
    CATALOG_ANSWERS_KEPT,
)
from bourn.model import names
from bourn.model.access import Op
from bourn.model.resource import decode_stream_config

_LISTS: Final = frozenset({Op.LIST_BASINS, Op.LIST_STREAMS})
_KIND: Final = b"content-type: application/json\r\n"
_KIND_OF_NOOP: Final = _KIND + f"s2-provision-result: {Provision.NOOP.value}\r\n".encode()


class QuickCatalog:
    """Answers what the catalog can tell; answers are kept by their requests, the newest longest."""

    def __init__(self, node: Node, auth: Authenticator) -> None:
        self._node = node
        self._auth = auth
        self._mark: CatalogMark | None = None  # of the catalog that they tell of
        self._answers: dict[bytes, Reply] = {}
        self._size = 0  # of them, in bytes

    def reply(self, data: bytes, head: QuickHead) -> Reply | None:
        """Return the answer to a request, which may be made, by all of its bytes.

        None where it must go the ordinary way; what `AtOnce` raises is the answer too.
        """
        if head.op is Op.CREATE_STREAM and is_heard():
            return None  # the audit log hears of whoever asks, also where nothing was to be done
        mark = self._node.catalog_now()
        if mark is None:
            return None
        if mark != self._mark:
            self._mark, self._size = mark, 0
            self._answers.clear()
        reply = self._answers.get(data)
        if reply is None:
            reply = self._ensured(data, head) if head.op is Op.CREATE_STREAM else self._told(head)
            if reply is not None:
                self._keep(data, reply)
        return reply

    def _keep(self, data: bytes, reply: Reply) -> None:
        size = _size(data, reply)
        if size > CATALOG_ANSWER_BYTES_KEPT_MAX:
            return
        answers = self._answers
        while len(answers) >= CATALOG_ANSWERS_KEPT or self._size + size > CATALOG_ANSWERS_BYTES:
            oldest = next(iter(answers))
            self._size -= _size(oldest, answers.pop(oldest))
        answers[data] = reply
        self._size += size

    def _told(self, head: QuickHead) -> Reply | None:
        body = self._list(head) if head.op in _LISTS else self._config(head)
        return None if body is None else dressed(head, body)

    def _config(self, head: QuickHead) -> bytes | None:
        if head.op is Op.GET_BASIN_CONFIG:
            of_basin = self._node.basin_config_now(head.basin)
            return None if of_basin is None else basin_config_json(of_basin)
        of_stream = self._node.config_now(head.basin, head.stream)
        return None if of_stream is None else stream_config_json(of_stream)

    def _list(self, head: QuickHead) -> bytes | None:
        principal = self._auth.known(head.digest)
        assert principal is not None, "it may ask"
        scope = principal.grant.scope
        if head.op is Op.LIST_BASINS:
            part = narrowed(scope.basins, list_query(head.query, names.basin_prefix))
            basins = self._node.basins_now(*part.query)
            return None if basins is None else basins_json(part, basins)
        part = narrowed(scope.streams, list_query(head.query, names.stream_prefix))
        streams = self._node.streams_now(head.basin, *part.query)
        return None if streams is None else streams_json(part, streams)

    def _ensured(self, data: bytes, head: QuickHead) -> Reply | None:
        """Return the answer where nothing is to be done; what is wrong is said the ordinary way."""
        try:
            wanted = decode_stream_config(data[len(data) - head.length :])
            row = self._node.ensured_now(head.basin, head.stream, wanted)
        except BournError:
            return None
        if row is None:
            return None
        start, body = dressed(head, stream_json(row))
        return Reply(start.replace(_KIND, _KIND_OF_NOOP, 1), body)


def _size(data: bytes, reply: Reply) -> int:
    return len(data) + len(reply.start) + len(reply.body)
