"""Is an installed Triolet whole? `python tests/smoke.py [TRIOLET…]` serves the bundled model and asks it one question.

For environments that hold nothing else: the standard library is all it needs. TRIOLET is the command, by default the
one beside this Python.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

READY = "Triolet is ready at "
QUESTION = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 8}


def main(triolet: list[str]) -> None:
    subprocess.run([*triolet, "--version"], check=True)
    with subprocess.Popen([*triolet, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            assert line.startswith(READY), f"it said {line!r}"
            url = line.removeprefix(READY).strip()
            request = Request(
                f"{url}/v1/chat/completions", json.dumps(QUESTION).encode(), {"Content-Type": "application/json"}
            )
            with urlopen(request, timeout=60) as response:
                print(json.load(response)["choices"][0]["message"]["content"], flush=True)
            with urlopen(f"{url}/", timeout=60) as page:
                assert b"<html" in page.read()
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0, "it did not end well"
        finally:
            server.kill()


if __name__ == "__main__":
    main(sys.argv[1:] or [str(Path(sys.executable).with_name("triolet"))])
