"""Content negotiation: only the first media type counts, parameters and q-values are ignored."""

import enum
import re
from typing import Final

_MEDIA_TYPE: Final = re.compile(
    r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;.*)?"
)


class Media(enum.Enum):
    """The kinds of content that the API knows."""

    JSON = "application/json"
    PROTOBUF = "application/protobuf"
    SESSION = "s2s/proto"
    EVENTS = "text/event-stream"
    OTHER = "other"
    ABSENT = "absent"


_KNOWN: Final = {
    "application/json": Media.JSON,
    "application/protobuf": Media.PROTOBUF,
    "application/x-protobuf": Media.PROTOBUF,
    "s2s/proto": Media.SESSION,
    "text/event-stream": Media.EVENTS,
}


def media_of(values: list[str]) -> Media:
    """Return the kind that an `Accept` or `Content-Type` header asks for; unparsable is absent."""
    if not values:
        return Media.ABSENT
    first = values[0].split(",", 1)[0]
    known = _KNOWN.get(first)
    if known is not None:
        return known
    match = _MEDIA_TYPE.fullmatch(first)
    if match is None:
        return Media.ABSENT
    essence = match[1].lower()
    if essence.startswith("application/") and essence.endswith("+json"):
        return Media.JSON
    return _KNOWN.get(essence, Media.OTHER)
