"""Starts and kills: the server, the feeder, and one driver after the other."""

import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from bourn.client import AppendRetry, Client, ClientError, ReadStart, Retries, Settings
from bourn.clock import SystemClock
from bourn.model.record import Record
from tests.cli.process import Serving, environment
from tests.connector_proof.check import Item, violations

BASIN = "connector-proof"
KEYS = 12
PATIENCE_SECS = 300.0  # for one driver to start, or to end
ROUNDS_PER_SERVER_KILL = 3
RECORDS_PER_ROUND = 10_000
FAILURE_SHARE = 0.03
NOTE_LOSS_SHARE = 0.5
# Each takes away one thing that the connector promises, and must be found.
SABOTAGES = (
    "at-least-once",  # tasks append by themselves: out of order, and twice where one is repeated
    "forgetful",  # each driver has a staging place of its own: batches are written again
    "late",  # the query begins at the tail: what was there before is not read
    "unsorted",  # partitions are turned round behind a shuffle: keys lose their order
)
clock = SystemClock()


class Proof:
    """One run of it."""

    def __init__(
        self, directory: Path, seed: int, say: Callable[[str], None], sabotage: str = ""
    ) -> None:
        self._directory = directory
        self._sabotage = sabotage
        self._rng = random.Random(seed)
        self._say = say
        self._server = Serving("--bucket", str(directory / "bucket"), "--pipeline", "off")
        self._stop = threading.Event()
        self._batches = 0
        self._fed = 0
        self._budget = 0  # on a slow machine, a round must not leave more than the next can take
        self.restarts = 0
        self.server_kills = 0
        self.lost_notes = 0
        self.failures: list[str] = []

    def run(self, restarts: int) -> list[str]:
        """Do it all; return what is wrong."""
        self._server.__enter__()
        try:
            with self._client() as client:
                client.create_basin(BASIN, {"create_stream_on_append": True})
            feeder = threading.Thread(target=self._feed, daemon=True)
            self._append_some(4000)
            feeder.start()
            for number in range(restarts):
                self._round(number)
            self._stop.set()
            feeder.join()
            self._finish()
            return self.failures + self._check()
        finally:
            self._stop.set()
            self._server.__exit__()

    def _settings(self) -> Settings:
        return Settings.of(
            BASIN, f"http://127.0.0.1:{self._server.port}", environ={}, retries=Retries(120)
        )

    def _client(self) -> Client:
        return Client(self._settings())

    def _append_some(self, count: int) -> None:
        """Append to each input; a key belongs to one of them, so that it has an order."""
        self._fed += 2 * count
        with self._client() as client:
            for stream in range(2):
                for _ in range(0, count, 500):
                    records = [
                        Record(b"key%d %032x" % (2 * self._key() + stream, self._bits()))
                        for _ in range(min(count, 500))
                    ]
                    # An append that is made twice is two records of the input.
                    client.append(f"in/{stream}", records, retry=AppendRetry.ALL)

    def _key(self) -> int:
        return self._rng.randrange(KEYS // 2)

    def _bits(self) -> int:
        return self._rng.getrandbits(128)

    def _feed(self) -> None:
        while not self._stop.wait(0.5):
            if self._fed < self._budget:
                with contextlib.suppress(ClientError):
                    self._append_some(100)

    def _plan(self, *, is_last: bool) -> str:
        sabotage = self._sabotage
        plan = {
            "endpoint": f"http://127.0.0.1:{self._server.port}",
            "basin": BASIN,
            "checkpoint": str(self._directory / "checkpoint"),
            "partitions": self._rng.choice((0, 0, 1, 3)),
            "failure_share": 0.0 if is_last else FAILURE_SHARE,
            "is_last": is_last,
        }
        if sabotage == "at-least-once":
            plan["delivery"] = sabotage
        elif sabotage == "forgetful":
            plan["staging"] = str(self._directory / f"staging-{self.restarts}")
        elif sabotage == "late":
            plan["starting"] = "latest"
        elif sabotage == "unsorted":
            plan |= {"partitions": 3, "is_sorted": False}
        return json.dumps(plan)

    def _lose_note(self) -> None:
        """Take away Spark's note of the last batch, as if the driver had died just before it."""
        place = self._directory / "checkpoint"
        numbers = {
            kind: sorted(int(path.name) for path in (place / kind).glob("[0-9]*"))
            for kind in ("offsets", "commits")
        }
        if not numbers["commits"]:
            return
        last = numbers["commits"][-1]
        behind = [number for number in numbers["offsets"] if number > last]
        if behind and self._sabotage != "forgetful":
            return  # the next batch had begun
        for kind, number in [("commits", last), *(("offsets", number) for number in behind)]:
            (place / kind / str(number)).unlink()
            (place / kind / f".{number}.crc").unlink(missing_ok=True)
        self.lost_notes += 1
        self._say(f"the note of batch {last} is lost")

    @contextlib.contextmanager
    def _driver(self, *, is_last: bool = False) -> Iterator["Driver"]:
        driver = Driver(self._plan(is_last=is_last), self._directory / "driver.log")
        try:
            yield driver
        finally:
            driver.kill()

    def _round(self, number: int) -> None:
        """Let a driver come some way, perhaps kill the server under it, then kill the driver."""
        self._budget = self._fed + RECORDS_PER_ROUND
        with self._driver() as driver:
            is_early = self._rng.random() < 0.15 and not self._sabotage
            line = driver.until("started" if is_early else "batch")
            kills_server = number % ROUNDS_PER_SERVER_KILL == 1
            driver.listen(self._rng.uniform(0.0, 4.0))
            if kills_server:
                self._restart_server()
                driver.listen(self._rng.uniform(0.5, 6.0))
            ended = driver.has_ended
        self.restarts += 1
        if ended:
            self._say(f"driver {number + 1} ended by itself: {driver.lines[-1:]}")
            if not any("injected failure" in each for each in driver.lines):
                self.failures.append(f"driver {number + 1} ended by itself: {driver.lines[-1:]}")
        self._batches = max(self._batches, driver.batch)
        last = driver.lines[-1] if driver.lines else line
        self._say(f"driver {number + 1} killed; it had said {last[:60]!r}")
        if self._sabotage == "forgetful" or self._rng.random() < NOTE_LOSS_SHARE:
            self._lose_note()

    def _restart_server(self) -> None:
        old = self._server
        old.stop(signal.SIGKILL)
        old.__exit__()
        flags = ("--bucket", str(self._directory / "bucket"), "--pipeline", "off")
        self._server = Serving(*flags, port=old.port).__enter__()
        self.server_kills += 1
        self._say("server killed and started again")

    def _finish(self) -> None:
        """Let a last driver take all that is there."""
        with self._driver(is_last=True) as driver:
            line = driver.until("ended")
            if line != "ended":
                self.failures.append(f"the last driver did not end well: {line}")
            self._batches = max(self._batches, driver.batch)

    def _check(self) -> list[str]:
        inputs = [
            Item(name, seq_num, body)
            for name in self._streams("in/")
            for seq_num, body in enumerate(self._bodies(name))
        ]
        outputs = {name: self._bodies(name) for name in self._streams("out/")}
        count = sum(map(len, outputs.values()))
        self._say(f"{len(inputs)} records in, {count} out, {self._batches + 1} batches")
        return violations(inputs, outputs)

    def _streams(self, prefix: str) -> list[str]:
        with self._client() as client:
            return [info.name for info in client.list_streams(prefix)]

    def _bodies(self, name: str) -> list[bytes]:
        bodies: list[bytes] = []
        with self._client() as client:
            for batch in client.read_session(name, ReadStart(seq_num=0)):
                bodies += [body.as_py() or b"" for body in batch.column("body")]
        return bodies


class Driver:
    """A driver, in a process group of its own with its Java."""

    def __init__(self, plan: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.connector_proof.driver", plan],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                start_new_session=True,
            )
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._child.stdout, selectors.EVENT_READ)
        self._text = b""
        self.lines: list[str] = []
        self.has_ended = False

    @property
    def batch(self) -> int:
        """The last batch that it has told of."""
        told = [int(line.split()[1]) for line in self.lines if line.startswith("batch ")]
        return max(told, default=-1)

    def listen(self, secs: float) -> None:
        """Take what it says for some time, or until it ends."""
        deadline = clock.monotonic() + secs
        while not self.has_ended and (left := deadline - clock.monotonic()) > 0:
            self._take(left)

    def until(self, word: str) -> str:
        """Wait for a line that begins so; return it, or the last one where it ends before."""
        deadline = clock.monotonic() + PATIENCE_SECS
        while True:
            found = [line for line in self.lines if line.startswith(word)]
            if found:
                return found[-1]
            left = deadline - clock.monotonic()
            if self.has_ended or left <= 0:
                return self.lines[-1] if self.lines else "nothing"
            self._take(left)

    def _take(self, secs: float) -> None:
        assert self._child.stdout is not None
        if not self._selector.select(secs):
            return
        data = os.read(self._child.stdout.fileno(), 1 << 16)
        if not data:
            self.has_ended = True
            return
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        self.lines += [line.decode() for line in lines]

    def kill(self) -> None:
        """Kill the group, and hear what was said before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._selector.close()
        if self._child.stdout is not None:
            self._child.stdout.close()
