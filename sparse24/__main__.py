"""``python -m sparse24``."""

import signal
import sys
from types import FrameType

from sparse24._cli import main


def _stop(number: int, frame: FrameType | None) -> None:
    """End as after an error, so that unfinished files are removed."""
    raise SystemExit(128 + number)


for known in (signal.SIGTERM, signal.SIGHUP):  # of a batch system; of a terminal that is closed
    if signal.getsignal(known) == signal.SIG_DFL:  # nohup has the second one ignored
        signal.signal(known, _stop)
sys.exit(main())
