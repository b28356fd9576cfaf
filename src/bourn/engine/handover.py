"""From the log to the history: what the table holds, the state stops looking for in the log.

Below `State.runs_from` no run counts any more. Streams in use drop theirs a share at a time, and
are not let go before; a row at rest keeps its old runs until it is brought into use or the next
snapshot is merged, and they are dropped there. Commits below are released at once: their objects
are deleted when the snapshots are past them and the grace period is over.
"""

from collections.abc import Iterator
from typing import Final

from bourn.engine.history import History
from bourn.engine.history_index import StreamFacts
from bourn.engine.recovery import Recovered
from bourn.engine.state import State
from bourn.engine.stream import Stream
from bourn.errors import Damaged
from bourn.layout.history.delta import delta_key

STREAMS_PER_TURN: Final = 500  # of the event loop: a few milliseconds


def begin_with(recovered: Recovered, history: History) -> None:
    """Let a state that was just recovered stand on the history.

    Damaged where the table holds more than the log ever had: then a part of the log is lost, and
    whatever were written from here on would contradict the table.
    """
    state, current = recovered.state, history.current
    if current.end_ordinal > recovered.base_ordinal:
        raise Damaged(
            delta_key(current.version),
            f"it holds {current.end_ordinal} commits, and the log only has "
            f"{recovered.base_ordinal}: the end of the log is lost",
        )
    state.history = current
    for _ in hand_over(state, history.end_ordinal):
        pass


def hand_over(state: State, end: int) -> Iterator[None]:
    """Let go of the runs of commits below `end`, with pauses in which others may have a turn."""
    if end > state.runs_from:
        for basin_id, size_bytes in state.streams.run_bytes_at_rest(state.runs_from, end):
            state.metering.handed_over(basin_id, size_bytes)
        state.refs.release(end)
        state.runs_from = end
        hot = state.streams.hot()
        for at in range(0, len(hot), STREAMS_PER_TURN):
            for stream in hot[at : at + STREAMS_PER_TURN]:
                if state.streams.in_use(stream.id) is stream:
                    _drop_runs(state, stream)
            yield


def _drop_runs(state: State, stream: Stream) -> None:
    dropped = stream.runs.drop_before_commit(state.runs_from)
    if dropped.commits:
        state.metering.handed_over(stream.row.basin_id, dropped.metered)


def stream_facts(state: State) -> StreamFacts:
    """What a count of the history needs to know of the streams."""
    return StreamFacts(*state.streams.facts(_facts_of))


def _facts_of(stream: Stream) -> tuple[int, int]:
    return stream.row.basin_id, stream.trim_point
