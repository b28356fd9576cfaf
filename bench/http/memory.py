"""What a server that nobody else has used holds after 600 MB."""

from typing import Final

import uvloop

from bench.engine.case import Budget, Figures
from bench.http.server import HttpCase, Server
from bench.http.sessions import STAMPED, Shape, fill

APPENDED: Final = Shape(8192, 128, 573)  # 600 MB
HELD: Final = Budget("rss_mb", 400, "MB")


def cases(buckets: tuple[str, ...]) -> list[HttpCase]:
    """In memory the data itself is held, so the budget is that of a disk."""
    return [
        HttpCase(
            "memory",
            "600 MB appended, 8 KiB",
            bucket,
            measure,
            budgets=(HELD,) if bucket == "local" else (),
            is_alone=True,
        )
        for bucket in buckets
    ]


def measure(server: Server) -> Figures:
    """Append, and look."""
    empty = server.memory_mb()
    cpu = server.cpu_secs()
    with server.stream(timestamping=STAMPED) as path:
        uvloop.run(fill(server, path, APPENDED))
    return {
        "rss_mb": server.memory_mb(),
        "rss_peak_mb": server.memory_mb("VmHWM"),
        "rss_empty_mb": empty,
        "server_cpu_s": server.cpu_secs() - cpu,
    }
