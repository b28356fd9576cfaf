"""When a stream that stays empty goes.

What a batch's own age does to it is `layout/entry`'s: there the arrival and the policy are kept.
"""


def is_abandoned(
    min_age_secs: int,
    last_write_ms: int,
    has_live_records: bool,  # noqa: FBT001  a fact about the stream, not a switch
    now_ms: int,
) -> bool:
    """Whether delete-on-empty takes the stream now; 0 seconds turn it off.

    Creation counts as a write. Live is what is neither trimmed nor expired.
    """
    if min_age_secs <= 0 or has_live_records:
        return False
    return now_ms >= last_write_ms + min_age_secs * 1000
