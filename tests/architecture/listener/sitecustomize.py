"""Listens to the functions that run in this process, between two signals; imported by Python itself at its start."""

import json
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_ROOT = os.environ["LISTENER_ROOT"] + "/"
_OUT = os.environ["LISTENER_OUT"]
_heard: set[tuple[str, str]] = set()
_listening = False


def _profile(frame: FrameType, event: str, argument: Any) -> None:  # Any: its type depends on the event
    if _listening and event == "call":
        code = frame.f_code
        name = code.co_filename.removeprefix(_ROOT)
        if name != code.co_filename and not name.startswith((".venv", "tests")) and code.co_name != "<module>":
            _heard.add((name, code.co_qualname))


def _toggle(number: int, frame: FrameType | None) -> None:
    global _listening  # the one state of the process
    _listening = not _listening
    if _listening:
        _heard.clear()
    sys.setprofile(_profile if _listening else None)  # this is the main thread; the others have listened all along
    state = "listening" if _listening else "heard"
    with open(f"{_OUT}/{os.getpid()}.new", "w") as file:
        json.dump(sorted(_heard), file)
    os.rename(f"{_OUT}/{os.getpid()}.new", f"{_OUT}/{os.getpid()}.{state}")  # whole when it is there


signal.signal(signal.SIGUSR1, _toggle)
threading.setprofile(_profile)
