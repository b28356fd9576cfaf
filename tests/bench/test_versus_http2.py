"""The client for HTTP/2: what it says is read, what it fails with is told."""

from pathlib import Path

import pytest

from bench.http.server import Server
from bench.versus.http2 import h2load

SAID = """finished in 3.00s, 17500.33 req/s, 3.02MB/s
requests: 52501 total, 52565 started, 52501 done, {good} succeeded, 0 failed, 0 errored, 0 timeout
status codes: {good} 2xx, 0 3xx, {bad} 4xx, 0 5xx
"""


class Idle(Server):
    def cpu_secs(self) -> float:
        return 1.0


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> dict[str, float]:
    command = directory / "h2load"
    command.write_text(f"#!/bin/sh\necho \"$@\" > {directory}/words\ncat <<'E'\n{said}E\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    server = Idle(1, 8080, directory)
    found = h2load(server, "/streams/s/records", "application/json", b"{}", 64, 1, 3.0)
    return {name: float(value) for name, value in found.items()}


def test_its_rate_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = run(tmp_path, monkeypatch, SAID.format(good=52501, bad=0))
    assert figures["requests_per_s"] == 17500.33
    words = tmp_path.joinpath("words").read_text()
    assert words.startswith("-D 3 -c 64 -m 1 -t 1 -d ")
    assert words.endswith("http://127.0.0.1:8080/v1/streams/s/records\n")


@pytest.mark.parametrize("said", [SAID.format(good=1, bad=1), "nothing\n"])
def test_a_run_with_refusals_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    with pytest.raises(RuntimeError, match="h2load"):
        run(tmp_path, monkeypatch, said)


def test_where_it_is_missing_the_row_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="nghttp2"):
        h2load(Idle(1, 8080, tmp_path), "/", "application/json", b"", 1, 1, 1.0)
