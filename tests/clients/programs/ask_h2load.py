"""h2load: streamed chats over HTTP/2 without TLS and over HTTP/1.1, by their status."""

import json
import re
import subprocess
import sys
import tempfile

BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 4}
COMMAND = ["h2load", "-n", "8", "-c", "2", "-H", "Content-Type: application/json"]

with tempfile.NamedTemporaryFile("w") as file:
    json.dump(BODY, file)
    file.flush()
    found = {}
    for name, options in (("HTTP/2", []), ("HTTP/1.1", ["--h1"])):
        command = [*COMMAND, *options, "-d", file.name, f"{sys.argv[1]}/v1/chat/completions"]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name] = re.search(r"(\d+) succeeded", report)[1] + " of 8"
print(json.dumps(found))
