"""What a wrong server would deliver: the proof must fail on each of them."""

from collections.abc import Callable
from typing import Final

from bourn.model.record import SequencedRecord

Records = list[SequencedRecord]


def _lost(records: Records) -> Records:
    middle = len(records) // 2
    return records[:middle] + records[middle + 1 :]


def _repeated(records: Records) -> Records:
    return records[:1] + records


def _altered(records: Records) -> Records:
    last = records[-1]
    return [*records[:-1], last._replace(body=last.body[:-1] + b"?" if last.body else b"?")]


def _reordered(records: Records) -> Records:
    return [records[1], records[0], *records[2:]]


def _retimed(records: Records) -> Records:
    return [records[0]._replace(timestamp=records[0].timestamp + 1), *records[1:]]


SABOTAGES: Final[dict[str, Callable[[Records], Records]]] = {
    "lost": _lost,
    "repeated": _repeated,
    "altered": _altered,
    "reordered": _reordered,
    "retimed": _retimed,
}
RECORDS_MIN: Final = 3  # of a batch, for all of them to make a difference
