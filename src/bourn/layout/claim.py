"""A writer's claim of an epoch: the object epoch/{epoch}.

```
JSON, one object: {"format":1,"epoch":7,"writer":"<32 hex digits>","started_at_ms":…,"commits_in_flight":8}
```

Created once, create-only, and kept for ever: the set of claims says which epochs there are.
"""  # noqa: E501  the drawing is one line of JSON

import msgspec

from bourn.errors import Damaged


class Claim(msgspec.Struct, frozen=True):
    """Who claimed an epoch and when."""

    epoch: int
    writer: str
    started_at_ms: int
    commits_in_flight: int
    format: int = 1


def encode_claim(claim: Claim) -> bytes:
    """Return the object."""
    return msgspec.json.encode(claim)


def decode_claim(data: bytes, key: str) -> Claim:
    """Return the claim; Damaged, naming `key`, where it is none."""
    try:
        return msgspec.json.decode(data, type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(key, f"it is not a claim: {error}") from None
