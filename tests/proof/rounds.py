"""One bucket through many rounds: writes, reads and kills, a complete look, an audit."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from tests.proof.ledger import Ledger, StreamLedger
from tests.proof.processes import POLL_SECS, Served, clock
from tests.proof.wire import BASIN, Wire
from tests.proof.workers import Checker, Reader, Work, Writer, delete

WRITERS: Final = 3
READERS: Final = 2
CHECKERS: Final = 2
PATIENCE_SECS: Final = 300.0
PRESENCE_SECS: Final = 60.0  # to wait for a process that is to be killed
TARGETS: Final = ("server", "driver", "executor")


class Size(NamedTuple):
    """How much a round does."""

    bytes_written: int
    kills: tuple[str, ...]
    share_checked: float  # of the streams, completely, at the end
    with_audit: bool = True
    deletions: int = 2


class Arena:
    """A bucket, its server and its ledger."""

    def __init__(
        self,
        served: Served,
        ledger: Ledger,
        rng: Random,
        say: Callable[[str], None],
        audit: Callable[[], str],
        sabotage: str = "",
    ) -> None:
        self._served = served
        self._ledger = ledger
        self._rng = rng
        self._say = say
        self._audit = audit
        self._sabotage = sabotage
        self._turn = threading.Lock()  # of who starts or kills the server
        self.kills: Counter[str] = Counter()
        self.records_written = 0
        self.bytes_written = 0

    def begin(self, master: str) -> None:
        """Start the server and make the streams."""
        self._served.start(master)
        wire = Wire(self._served.port)
        config: dict[str, Any] = {"default_stream_config": {"retention_policy": {"infinite": {}}}}
        wire.command("POST", "/v1/basins", {"basin": BASIN, "config": config})
        for stream in self._ledger.streams:
            wire.command("POST", "/v1/streams", {"stream": stream.name})
        wire.close()

    def round(self, number: int, size: Size, master: str) -> None:
        """Write, read and kill; then look at everything, and audit."""
        began = clock.monotonic()
        if number:
            with self._turn:
                self._served.end(signal.SIGTERM)
                self._served.start(master)
        work = Work(self._ledger, self._served.port, self._sabotage)
        writers = [
            Writer(work, self._own_rng(), size.bytes_written // WRITERS) for _ in range(WRITERS)
        ]
        readers = [Reader(work, self._own_rng()) for _ in range(READERS)]
        for thread in (*writers, *readers):
            thread.start()
        killed = self._kill(size.kills, master)
        self._delete(work, size.deletions)
        work.quiet.set()
        self._join(writers, "writing")
        reached = self._wait_for_table()
        work.stop.set()
        self._join(readers, "reading")
        checked = self._check(size.share_checked)
        if not self._served.metrics().get("bourn_history_fetches_total"):
            self._ledger.violated(None, "no read was served from the history")
        told = self._audit() if size.with_audit else ""
        if told:
            self._ledger.violated(None, f"audit: {told}")
        self.records_written += work.records_written
        self.bytes_written += work.bytes_written
        self._say(
            f"round {number + 1} on {master}: {work.records_written:,} records "
            f"({work.bytes_written / 1e6:,.0f} MB), killed {', '.join(killed) or 'nothing'}, "
            f"table at {reached}, {checked} streams read whole, "
            f"{len(self._ledger.violations)} violations, {clock.monotonic() - began:,.0f} s"
        )

    def _own_rng(self) -> Random:
        return Random(self._rng.getrandbits(64))

    def _kill(self, targets: tuple[str, ...], master: str) -> list[str]:
        pause = threading.Event()
        killed: list[str] = []
        for target in targets:
            pause.wait(self._rng.uniform(0.2, 4.0))
            if target == "server":
                with self._turn:
                    self._served.end(signal.SIGKILL)
                    self._served.start(master)
            elif not self._kill_below(target, pause):
                self._say(f"there was no {target} to kill")
                continue
            killed.append(target)
            self.kills[target] += 1
        return killed

    def _kill_below(self, target: str, pause: threading.Event) -> bool:
        deadline = clock.monotonic() + PRESENCE_SECS
        while clock.monotonic() < deadline:
            there = self._served.driver() if target == "driver" else self._served.executors()
            if there:
                pause.wait(self._rng.uniform(0.0, 3.0))
                if self._served.kill(target, self._rng):
                    return True
            pause.wait(POLL_SECS)
        return False

    def _delete(self, work: Work, deletions: int) -> None:
        """Delete some streams while they are read, and make new ones of their names."""
        wire = Wire(work.port)
        for stream in self._rng.sample(self._ledger.streams, deletions):
            delete(work, wire, stream)
        wire.close()

    def _wait_for_table(self) -> str:
        """Wait until the table has all that was written so far."""
        deadline = clock.monotonic() + PATIENCE_SECS
        pause = threading.Event()
        wanted = -1.0
        while clock.monotonic() < deadline:
            found = self._served.metrics()
            end = found.get("bourn_history_end_ordinal", -1.0)
            if wanted < 0 and found:
                wanted = end + found["bourn_pipeline_lag_commits"]
            if 0 <= wanted <= end:
                return f"version {found['bourn_history_version']:.0f}"
            pause.wait(POLL_SECS * 3)
        self._ledger.violated(None, f"the table did not reach commit {wanted:.0f}")
        return "nowhere"

    def _check(self, share: float) -> int:
        """Read streams from their beginning, now that nobody writes."""
        streams = self._ledger.streams
        chosen = self._rng.sample(streams, max(1, round(share * len(streams))))
        work = Work(self._ledger, self._served.port, self._sabotage)
        parts: list[list[StreamLedger]] = [chosen[n::CHECKERS] for n in range(CHECKERS)]
        checkers = [Checker(work, part, self._own_rng()) for part in parts]
        for checker in checkers:
            checker.start()
        self._join(checkers, "checking")
        work.stop.set()
        return len(chosen)

    def _join(self, threads: "list[Writer] | list[Reader] | list[Checker]", what: str) -> None:
        deadline = clock.monotonic() + PATIENCE_SECS
        for thread in threads:
            thread.join(max(deadline - clock.monotonic(), 0.1))
            if thread.is_alive():
                self._ledger.violated(None, f"{what} does not come to an end")
                return


def audit_of(bucket: str, environ: dict[str, str]) -> Callable[[], str]:
    """Return what audits a bucket: nothing to say where all is well."""

    def audit() -> str:
        command = [sys.executable, "-m", "bourn.cli.main", "pipeline", "audit"]
        ended = subprocess.run(
            [*command, "--bucket", bucket],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECS * 2,
            check=False,
        )
        if ended.returncode == 0:
            return ""
        return f"exit code {ended.returncode}: {(ended.stdout + ended.stderr)[-1500:]}"

    return audit
