"""Python imports this in every process of a server under test (it is on their PYTHONPATH): an audit hook.

Once the server serves, none of its processes may unpickle objects, compile or execute code, start programs, load
libraries, connect to other machines or write outside its data folder. What does is written to the folder of
`AUDIT_FOLDER`, a file a process, with its stack. Every process that has the hook says so with a file. Importing modules
is allowed, and so is starting the processes that belong to the server.
"""

import os
import sys
import threading
import traceback
from types import FrameType

FOLDER = os.environ.get("AUDIT_FOLDER", "")
SANDBOX = os.path.dirname(os.path.dirname(FOLDER))  # the folders of all tests
SERVING = os.path.join(FOLDER, "serving")  # is there once the server serves
FORBIDDEN = {
    "pickle.find_class", "exec", "compile", "code.__new__", "marshal.load", "marshal.loads", "subprocess.Popen",
    "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn", "ctypes.dlopen",
    "cpython.run_command", "cpython.run_file", "cpython.run_interactivehook", "cpython.run_module", "socket.connect",
    "open",
}  # fmt: skip
IMPORTS = ("<frozen importlib", "<frozen site>")
ALLOWED = {  # where these may happen: the ends of files' names
    "actors/supervisor/child_process.py": ("subprocess.Popen", "os.posix_spawn"),
    "actors/tokenizer/chat_template.py": ("compile", "exec"),  # the checkpoint's, in jinja's sandbox
    "msgspec/_utils.py": ("compile", "exec"),  # annotations of our own classes, once each
    "numba/core/caching.py": ("pickle.find_class", "open"),  # the kernels' cache, by a worker's successor
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_looking = threading.local()  # what the hook itself does is not its affair


def _harmless(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & WRITES or not isinstance(path, str | bytes):
            return True
        return os.path.abspath(os.fsdecode(path)).startswith((SANDBOX, "/dev/", "/proc/self/"))
    if event == "socket.connect":
        address = repr(arguments[1])
        return not address.startswith("(") or address.startswith(("('127.0.0.1'", "('::1'", "('localhost'"))
    return event == "ctypes.dlopen" and arguments[0] is None  # what is loaded already


def _allowed(event: str, frame: FrameType | None) -> bool:
    if frame is None or frame.f_code.co_filename == "<frozen runpy>":  # the interpreter itself, as it starts
        return True
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(IMPORTS) or any(name.endswith(end) and event in events for end, events in ALLOWED.items()):
            return True
        frame = frame.f_back
    return False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event not in FORBIDDEN or getattr(_looking, "now", False):
        return
    _looking.now = True
    try:
        caller = sys._getframe().f_back
        if os.path.exists(SERVING) and not _harmless(event, arguments) and not _allowed(event, caller):
            stack = "".join(traceback.format_stack(caller))
            with open(os.path.join(FOLDER, f"{os.getpid()}.txt"), "a", encoding="utf-8") as file:
                file.write(f"{event} {repr(arguments)[:300]}\n{stack}\n")
    finally:
        _looking.now = False


if FOLDER:
    sys.addaudithook(_audit)
    open(os.path.join(FOLDER, f"{os.getpid()}.hooked"), "x").close()
