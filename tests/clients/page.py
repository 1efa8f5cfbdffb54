"""docs/clients.md: which clients ran, in which versions."""

import subprocess
from typing import get_args

from .catalogue import CLIENTS, HERE, Client, Feature, pinned
from .tools import TOOLS, Tool

PAGE = HERE.parents[1] / "docs" / "clients.md"
_PAGE = """# Clients that are tested

`make clients` installs these clients from PyPI and npm, runs them against `triolet serve` with the bundled model, and
writes this page. The same runs are tests (`tests/clients/`). Continuous integration does all but those of h2load,
instructor, LlamaIndex, lm-eval and Open WebUI; it needs npm for them. Open WebUI's calls are recorded, and continuous
integration replays them.

| client | version | stream, second turn, usage | tools | objects | responses | batches | a prompt that does not fit |
|---|---|---|---|---|---|---|---|
{rows}

| tool | version | what it does |
|---|---|---|
{tools}

All ran on {date} with Python {python} and Node {node}.

Each client asks "What is 3 plus 4?" and reads the answer in pieces (the generated clients as a whole) and its token
counts. It sends its own message of this answer back with another turn. Then it sends a prompt that is longer than the
context. The answers must be those of plain HTTP, and the last must be the client's own error, by which programs trim or
fall back.

- **Tools:** the client asks for the weather in Rome, runs a function, and gives its result to the model, which answers.
- **Objects:** an answer becomes an object of the class that the program wants, by what the client has for it: `parse`
  (OpenAI, Anthropic), `with_structured_output` with two of its methods (LangChain), `response_format` (LiteLLM),
  `as_structured_llm` (LlamaIndex), `output_type` as a tool and as a schema (Pydantic AI), `generateObject` (AI SDK),
  `format` (Ollama). See [structured output](structured-output.md).
- **Responses:** whole, streamed and continued by `previous_response_id`; with Python parsed, and over the WebSocket.
- **Batches:** a file is uploaded, a batch of it created and asked for until it is completed, and its result read.

The programs in `tests/clients/programs/` are short, and show how each client is pointed at Triolet. For instance:

<!-- not run: it needs LangChain; `make clients` runs it -->
```python
{example}```

## Claude Code and Codex

Both were run by hand on 2026-11-23, and what they sent is replayed in the tests
(`tests/clients/test_coding_agents.py`). Their first question has 76 KB and 40 KB of instructions and tools, so a
model needs a context of some 30,000 tokens to have room for work, and must be good at tools. The bundled model is no
use for that: it shows that the calls are understood.

- **Claude Code 2.1.197** with [these variables](anthropic.md), against the bundled model. `claude -p "What is 3 plus
  4?"` is taken with its 24 tools; the model says that it is too small. With `--tools "" --system-prompt "You are a
  helpful assistant."` it answers `3 + 4 = 7.`, and with `-c` the next question. A tool of an MCP server was called,
  and its result was answered; a proxy asked for the call, since the bundled model cannot spell names like
  `mcp__w__get_weather`. `/context` counts tokens. A prompt that does not fit gives Claude Code's own "Prompt is too
  long", a wrong model its own hint.
- **Codex 0.169.0** over [`/v1/responses`](responses.md#codex), against the bundled model with a longer context (its
  `max_position_embeddings` set to 65,536): `codex exec "What is 3 plus 4?"` answers `3 + 4 = 7.`, `codex exec resume
  --last` goes on, and one of its own tools, asked for by the same proxy, was called. Beyond the context it says that
  it ran out of room. With its goals on, its tool `create_goal` makes it send a result without a call, which is
  refused.

## Open WebUI

Add a connection to `http://127.0.0.1:8000/v1` (with `/v1`, without a slash at its end), or start Open WebUI with it:

<!-- not run: it needs Open WebUI; `make clients` runs it in a process of its own -->
```sh
export OPENAI_API_BASE_URL=http://127.0.0.1:8000/v1
export OPENAI_API_KEY=none
export DEFAULT_MODEL_PARAMS='{{"function_calling": "legacy"}}'
open-webui serve
```

- **Tools.** Open WebUI sends about 35 [tools](tools.md) of its own with each message, which models that know tools may
  call. For a small model they are too many, and the bundled one then calls tools for no reason. The variable above
  switches them off for a new installation. In an existing one: Settings, Admin, Models, Model Defaults, Model
  Parameters, Function Calling: Legacy.
- **Continue Response** continues the answer if the connection's provider is llama.cpp. Otherwise Open WebUI does not
  say that it wants a continuation, and Triolet begins a new message.
- **In a container**, `127.0.0.1` is the container. Start Triolet with `--host 0.0.0.0 --api-key KEY`, and connect
  to `http://host.docker.internal:8000/v1` (on Linux, `docker run --add-host=host.docker.internal:host-gateway`).
- **Token counts** appear for models with the capability Usage.
- **Direct connections** come from the browser: start Triolet with `--allow-origin` and the address of Open WebUI.
- **Parameters:** those of the menu up to `presence_penalty` are taken, and Triolet's others under "Add Custom
  Parameter". Those of Ollama and llama.cpp (`num_ctx`, `repeat_penalty`, `mirostat` and so on) are refused by name.
- Images, and embeddings for documents, need another server: [Not supported](not-supported.md).
- Titles, tags and follow-up questions are asked for as JSON after an answer. The bundled model is too small to write
  it, and Open WebUI then keeps the question as the title.

## curl over HTTP/2 without TLS

curl 7.88 (Debian 12) with `--http2-prior-knowledge` fails with error 16 from the second request of a connection on. It
does so with nghttpd as well. With TLS and `--http2` it runs any number of requests at once. Without TLS add
`--parallel-immediate`, which opens a connection for each.
"""


def rows() -> list[str]:
    return [_row(client) for client in CLIENTS]


def _row(client: Client) -> str:
    shown = ["yes" if client.streams else "without streams"]
    shown += ["yes" if feature in client.features else "" for feature in get_args(Feature)]
    overflow = "`, code `".join(client.overflow.split())
    cells = (f"{client.name} (`{client.package}`)", client.version, *shown, f"`{overflow}`")
    return f"| {' | '.join(cells)} |"


def _tool_row(tool: Tool) -> str:
    if tool.packages:
        shown = ", ".join(pinned(tool.requirements, name) for name in tool.packages)
    else:
        said = subprocess.run([tool.command, "--version"], capture_output=True, text=True, check=True).stdout
        shown = said.split("/")[-1]
    return f"| {tool.name} | {shown.strip()} | {tool.does} |"


def write(date: str, python: str, node: str) -> None:
    example = (HERE / "programs" / "ask_langchain.py").read_text()
    PAGE.write_text(
        _PAGE.format(
            rows="\n".join(rows()),
            tools="\n".join(map(_tool_row, TOOLS)),
            date=date,
            python=python,
            node=node,
            example=example,
        )
    )
