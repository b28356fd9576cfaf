"""The official SDKs against a server that limits them: slower, and just as right.

Python's waits as long as a refusal says; TypeScript's asks again in its own time and may give up.
"""

import re
import urllib.request
from pathlib import Path

import pytest

from tests.compat.driver import Driver
from tests.compat.server import Place
from tests.compat.test_sdks import SDKS, command

REQUESTS = (
    "appends_are_conditional",
    "reads_start_and_stop_where_told",
    "a_producer_batches_and_acks_each_record",
)
BYTES = ("the_largest_batches_are_taken", "many_sessions_share_a_client")


def metric(place: Place, name: str) -> float:
    with urllib.request.urlopen(f"{place.url}/metrics") as response:
        text = response.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_client_that_is_refused_waits_and_succeeds(tmp_path: Path) -> None:
    with (
        Place("memory", tmp_path / "data", "--limit-basin-requests", "10") as place,
        Driver(command("python"), place) as driver,
    ):
        for scenario in REQUESTS:
            assert driver.run(scenario) is None
        assert metric(place, 'bourn_rate_limited_total{scope="basin",limit="requests"}') > 0


@pytest.mark.parametrize("sdk", SDKS)
def test_sessions_are_slowed_and_lose_nothing(sdk: str, tmp_path: Path) -> None:
    with (
        Place("memory", tmp_path / "data", "--limit-basin-append-bytes", "4MiB") as place,
        Driver(command(sdk), place) as driver,
    ):
        for scenario in BYTES:
            assert driver.run(scenario) is None
        assert metric(place, "bourn_session_throttled_seconds_total") > 0
