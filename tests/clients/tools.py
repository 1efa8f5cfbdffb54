"""Programs that are no chat clients, with what a run of each must print. `make clients` installs those from PyPI."""

import json
import shutil
import subprocess
from typing import NamedTuple

from .catalogue import ENVIRONMENTS, HERE, RUN_SECONDS


class Tool(NamedTuple):
    """`does` is for the page, and the versions of `packages`, where they are pinned. `command` must be on the machine,
    beside the environment that the requirements make."""

    name: str
    does: str
    program: str
    result: dict[str, object]
    requirements: str = "requirements"
    packages: tuple[str, ...] = ()
    command: str = ""

    @property
    def python(self) -> str:
        return str(ENVIRONMENTS / self.requirements / "bin" / "python")

    @property
    def missing(self) -> str:
        """Why it cannot run here, if it cannot."""
        if self.command and shutil.which(self.command) is None:
            return f"there is no {self.command} here"
        return "" if shutil.which(self.python) else "it is not installed; `make clients` does it"


TOOLS = (
    Tool(
        "requests, httpx, aiohttp, curl",
        "read a stream to its end; a wrong path has its reason phrase",
        "ask_http_libraries.py",
        {
            "requests": [True, "404 Client Error: Not Found"],
            "httpx": [True, "404 Not Found"],
            "aiohttp": [True, "404 Not Found"],
            "curl": [True, "HTTP/1.1 404 Not Found"],
        },
        packages=("requests", "httpx", "aiohttp"),
        command="curl",
    ),
    Tool(
        "h2load",
        "streamed chats over HTTP/2 and HTTP/1.1, all counted as succeeded",
        "ask_h2load.py",
        {"HTTP/2": "8 of 8", "HTTP/1.1": "8 of 8"},
        command="h2load",
    ),
    Tool(
        "lm-eval",
        "`local-completions` with a task of log likelihoods and `tokenizer_backend=remote`; `local-chat-completions`",
        "ask_lm_eval.py",
        {"choice": 1.0, "chat": 1.0},
        requirements="requirements-lm-eval",
        packages=("lm-eval",),
    ),
    Tool(
        "instructor",
        "an object from a tool's arguments and from a JSON schema, whole and in parts",
        "ask_instructor.py",
        {"TOOLS": [True, True], "TOOLS_STRICT": [True, True], "JSON_SCHEMA": [True, True]},
        requirements="requirements-openai-2",
        packages=("instructor",),
    ),
    Tool(
        "Open WebUI",
        "a connection verified, streamed chats with usage, its titles, tags and queries, a prompt that does not fit",
        "ask_open_webui.py",
        {
            "connection": True,
            "answer": True,
            "usage": True,
            "second": True,
            "tasks": True,
            "overflow": "400 context_length_exceeded",
        },
        requirements="requirements-open-webui",
        packages=("open-webui",),
    ),
)


def run(tool: Tool, url: str) -> dict[str, object]:
    """Raises AssertionError with what the program wrote, if it fails."""
    command = [tool.python, str(HERE / "programs" / tool.program), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found
