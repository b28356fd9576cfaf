"""A client for the proof: blocking, one connection, and every answer as it came."""

import http.client
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import orjson

from bourn.errors import BournError
from bourn.model.record import AppendAck, Record, SequencedRecord
from bourn.wire.frames import FrameParser, decode_terminal
from bourn.wire.protobuf import decode_append_ack, decode_read_batch, encode_append_input

BASIN: Final = "proof-basin"
TIMEOUT_SECS: Final = 60
PROTOBUF: Final = "application/protobuf"
SESSION: Final = "s2s/proto"
READ_BYTES: Final = 1 << 18
OK: Final = 200
UNWRITTEN: Final = 416


class Broken(Exception):
    """The answer did not come, or not whole: the server has gone, or is about to."""


class Refused(Exception):
    """The server says no, and means it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Wire:
    """One connection, opened when it is needed and again when it broke."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def append(self, stream: str, records: list[Record], match_seq_num: int) -> AppendAck:
        """Append a batch where the stream's next record is that one."""
        body = encode_append_input(records, match_seq_num)
        data = self._call("POST", f"/v1/streams/{stream}/records", body, PROTOBUF)
        return decode_append_ack(data)

    def tail(self, stream: str) -> int:
        """How many records a stream has had."""
        data = self._call("GET", f"/v1/streams/{stream}/records/tail", None, "application/json")
        return int(orjson.loads(data)["tail"]["seq_num"])

    def command(self, method: str, path: str, shape: Any = None) -> None:
        """Change the catalog."""
        self._call(method, path, orjson.dumps(shape) if shape is not None else None, None)

    def page(self, stream: str, start: str) -> list[SequencedRecord]:
        """Read one batch; empty where nothing is there yet."""
        try:
            data = self._call("GET", f"/v1/streams/{stream}/records?{start}", None, PROTOBUF)
        except Refused as refused:
            if refused.status == UNWRITTEN:
                return []
            raise
        return decode_read_batch(data).records

    def session(self, stream: str, start: str) -> Iterator[list[SequencedRecord]]:
        """Read from somewhere to the tail by a session."""
        try:
            answer = self._open(
                "GET", f"/v1/streams/{stream}/records?{start}&wait=0", None, SESSION
            )
            if answer.status != OK:
                data = answer.read()
                if answer.status != UNWRITTEN:
                    _refuse(answer.status, data)
                return
            parser = FrameParser()
            while chunk := answer.read1(READ_BYTES):
                for frame in parser.feed(chunk):
                    if frame.terminal:
                        terminal = decode_terminal(frame)
                        _refuse(terminal.status, terminal.body)
                    if records := decode_read_batch(bytes(frame.message())).records:
                        yield records
            parser.finish()
        except (OSError, http.client.HTTPException, BournError) as error:
            self.close()
            raise Broken(repr(error)) from error
        except BaseException:
            self.close()  # whatever is left of the answer must not be taken for the next
            raise

    def _call(self, method: str, path: str, body: bytes | None, media: str | None) -> bytes:
        try:
            answer = self._open(method, path, body, media or "application/json")
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Broken(repr(error)) from error
        if answer.status >= http.client.BAD_REQUEST:
            _refuse(answer.status, data)
        return data

    def _open(
        self, method: str, path: str, body: bytes | None, media: str
    ) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._port, timeout=TIMEOUT_SECS
            )
        headers = {"s2-basin": BASIN, "content-type": media, "accept": media}
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()


def _refuse(status: int, data: bytes) -> NoReturn:
    text = data[:300].decode(errors="replace")
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise Broken(f"{status} {text}")
    raise Refused(status, text)
