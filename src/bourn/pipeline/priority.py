"""A pipeline on the server's own machine goes behind it: whatever it starts inherits that.

Linux shares cores between sessions first ("autogroups") and by niceness only within each of them.
A pipeline that the server has started leads a session of its own, so that its work is not charged
to the server's; there it is the session that must be nice.
"""

import logging
import os
from pathlib import Path
from typing import Final

from bourn.settings import PipelineSettings

log = logging.getLogger(__name__)

AUTOGROUP: Final = Path("/proc/self/autogroup")


def go_behind_others(settings: PipelineSettings) -> None:
    """Lower the priority of this process, unless Spark runs on other machines."""
    if not settings.is_local:
        return
    os.nice(settings.niceness)
    if os.getsid(0) != os.getpid():
        return  # others share the session: a shell, or whatever it runs
    try:
        AUTOGROUP.write_text(str(settings.niceness), encoding="ascii")
    except OSError:
        log.debug("this system has no autogroups")
