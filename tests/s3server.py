"""Real S3 servers for tests, each a child process of its own on a free port of the loopback.

`moto_server()` runs moto, which needs nothing else. `versity_server(root)` runs versitygw, a real
gateway that checks signatures, from .cache/versitygw or the path; where there is none it raises
`NotHere`, and tests skip. With BOURN_TEST_VERSITYGW=build in the environment it is built first:
it takes Go, a network, and 100 s on two free cores, so that it is not done unasked.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD_SECS_MAX = 270
MOTO_PAGE_KEYS = 100  # of a listing; moto is slow at making thousands of objects
START_SECS_MAX = 30
REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache" / "versitygw"


class NotHere(Exception):
    """This machine cannot run the server; the message says why."""


class S3Server(NamedTuple):
    endpoint: str
    access_key_id: str
    secret_access_key: str
    make_bucket: Callable[[str], None]


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Run moto until the block ends."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.s3server"],
        cwd=REPOSITORY,
        env=os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(MOTO_PAGE_KEYS)},
        stdin=subprocess.PIPE,  # its end ends the child, also when this process is killed
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        assert line.isdigit(), f"moto did not start: {line!r}"
        endpoint = f"http://127.0.0.1:{line}"

        def make_bucket(name: str) -> None:
            request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
            urllib.request.urlopen(request, timeout=START_SECS_MAX).close()

        yield S3Server(endpoint, "test-key", "test-secret", make_bucket)
    finally:
        child.terminate()
        child.communicate()


@contextmanager
def versity_server(root: Path) -> Iterator[S3Server]:
    """Run versitygw over the directory `root` until the block ends."""
    binary = built_versitygw()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    key, secret = "versity-key", "versity-secret"
    options = ["--quiet", "--keep-alive", "--health", "/health"]
    address = ["--port", f"127.0.0.1:{port}", "--access", key, "--secret", secret]
    child = subprocess.Popen(
        [str(binary), *options, *address, "posix", str(root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_healthy(f"{endpoint}/health", child)
        # A bucket of its file backend is a directory.
        yield S3Server(endpoint, key, secret, lambda name: (root / name).mkdir())
    finally:
        child.terminate()
        child.wait()


def built_versitygw() -> Path:
    """Return the gateway's binary, built if need be; only one process at a time builds."""
    binary = CACHE / "versitygw"
    if binary.exists():
        return binary
    if installed := shutil.which("versitygw"):
        return Path(installed)
    if os.environ.get("BOURN_TEST_VERSITYGW") != "build":
        raise NotHere("no versitygw here: BOURN_TEST_VERSITYGW=build builds it (Go, 2 minutes)")
    go = shutil.which("go")
    if go is None:
        raise NotHere("versitygw needs Go to be built, and there is none")
    CACHE.mkdir(parents=True, exist_ok=True)
    failed = CACHE / f"failed-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists() and not failed.exists():
            _build(go, failed)
    if not binary.exists():
        raise NotHere(f"versitygw could not be built: {failed.read_text()[-200:]}")
    return binary


def _build(go: str, failed: Path) -> None:
    environment = os.environ | {"GOBIN": str(CACHE / "new")}
    try:
        subprocess.run(
            [go, "install", "-ldflags=-s -w", VERSITYGW],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_SECS_MAX,
        )
    except subprocess.TimeoutExpired:
        failed.write_text(f"go install took more than {BUILD_SECS_MAX} s")
    except subprocess.CalledProcessError as error:
        failed.write_text(error.stderr.strip() or "go install failed")
    else:
        (CACHE / "new" / "versitygw").rename(CACHE / "versitygw")


def _wait_until_healthy(url: str, child: subprocess.Popen[bytes]) -> None:
    pause = threading.Event()
    for _ in range(START_SECS_MAX * 20):
        assert child.poll() is None, "versitygw ended at once"
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except (urllib.error.URLError, OSError):
            pause.wait(0.05)
        else:
            return
    raise AssertionError("versitygw did not become healthy")


def _serve_moto() -> None:
    """Run moto in this process until stdin ends; print the port."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415  slow, and the child's only
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415  the child only

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  werkzeug's name
            pass

    application = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> Any:
        # moto looks for the key, then stores it: without the lock two creators could both win.
        with turn:
            return application(environ, start_response)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve_moto()
