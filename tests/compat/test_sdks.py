"""The official SDKs, unmodified, each in a process of its own, against a real server."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat import declared, install
from tests.compat.driver import Driver
from tests.compat.scenarios import COMPRESSIONS, SCENARIOS, Scenario
from tests.compat.server import EDGE, Place

HERE = Path(__file__).parent
SDKS = [pytest.param(sdk, marks=pytest.mark.xdist_group(sdk)) for sdk in ("python", "typescript")]


def command(sdk: str) -> Sequence[str | Path]:
    if sdk == "python":
        return [install.PYTHON, "-X", "dev", "-W", "error", "-m", "tests.compat.pysdk"]
    main = install.TYPESCRIPT_SDK / "dist" / "esm" / "index.js"
    return [install.node(), HERE / "tssdk" / "main.mjs", main.as_uri()]


@pytest.fixture(scope="module", params=SDKS)
def driver(request: pytest.FixtureRequest, place: Place) -> Iterator[Driver]:
    with Driver(command(request.param), place) as running:
        yield running


def cases() -> Iterator[object]:
    for scenario in SCENARIOS:
        for compression in COMPRESSIONS if scenario.is_compressed else COMPRESSIONS[:1]:
            name = f"{scenario.name}-{compression}" if scenario.is_compressed else scenario.name
            yield pytest.param(scenario, compression, id=name)


@pytest.mark.parametrize(("scenario", "compression"), list(cases()))
def test_scenario(
    request: pytest.FixtureRequest,
    place: Place,
    driver: Driver,
    scenario: Scenario,
    compression: str,
) -> None:
    if scenario.is_durable and not place.is_durable:
        pytest.skip("what is in memory does not outlive its server")
    if EDGE == "asgi" and "python" in request.node.name and "stop_without" in scenario.name:
        pytest.skip(
            "granian says GOAWAY to a request under way; this SDK then cannot tell its fate"
        )
    error = driver.run(scenario.name, compression)
    assert error is None, error


@pytest.mark.parametrize("sdk", SDKS)
def test_every_public_method_is_called(sdk: str, tmp_path: Path) -> None:
    with (
        Place("disk", tmp_path / "data") as place,
        Driver(command(sdk), place, trace=True) as driver,
    ):
        for scenario in SCENARIOS:
            if not scenario.is_bulk:
                driver.run(scenario.name)
        used = driver.used()
    public = declared.methods(sdk)
    assert len(public) > 40
    assert sorted(public - used) == []
