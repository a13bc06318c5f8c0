"""``python -m sparse24``."""

import signal
import sys
import threading
from types import FrameType

from sparse24._cli import main

_PAUSE = 0.05  # seconds, in which the callback that lost an exception returns


def _stop(number: int, frame: FrameType | None) -> None:
    """End as after an error, so that unfinished files are removed."""
    raise SystemExit(128 + number)


def _again(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat a signal whose exception went to a callback, such as LLVM's, which cannot raise it."""
    number, code = 0, getattr(lost.exc_value, "code", 0)
    if isinstance(lost.exc_value, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(lost.exc_value, SystemExit) and isinstance(code, int):
        number = code - 128  # that of `_stop`, or not of a signal
    if number <= 0:
        sys.__unraisablehook__(lost)
        return
    timer = threading.Timer(_PAUSE, signal.raise_signal, [number])
    timer.daemon = True
    timer.start()


for known in (signal.SIGTERM, signal.SIGHUP):  # of a batch system; of a terminal that is closed
    if signal.getsignal(known) == signal.SIG_DFL:  # nohup has the second one ignored
        signal.signal(known, _stop)
sys.unraisablehook = _again
sys.exit(main())
