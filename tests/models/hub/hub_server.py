"""A hub on this machine that speaks the endpoints which the real client uses, and fails as it is told to.

/api/models/REPO[/revision/REV], /api/models/REPO/tree/COMMIT, /REPO/resolve/COMMIT/FILE (HEAD and GET, ETag,
X-Repo-Commit, ranges); files in large storage are redirected to another path, with X-Linked-Size and X-Linked-ETag.
"""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf", ".model")


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repo:
    """One repository with a single commit."""

    def __init__(self, files: dict[str, bytes], refs: tuple[str, ...] = ("main",)) -> None:
        self.files = files
        self.commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.refs = {*refs, self.commit}
        self.gated = False  # files need a token, what is said of them does not

    def digest(self, file: str) -> str:
        content = self.files[file]
        return hashlib.sha256(content).hexdigest() if file.endswith(LARGE) else git_digest(content)

    def entry(self, file: str) -> dict[str, object]:
        size = len(self.files[file])
        entry: dict[str, object] = {"type": "file", "path": file, "size": size, "oid": git_digest(self.files[file])}
        if file.endswith(LARGE):
            entry["lfs"] = {"oid": self.digest(file), "size": size, "pointerSize": 130}
        return entry


class Hub:
    """The repositories, the failures to come, and what was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.large_url = ""  # another host, as the real one's: redirects to the same are followed for the headers too
        self.repos: dict[str, Repo] = {}
        self.cuts: dict[str, int] = {}  # file: the next answer with it ends after so many bytes
        self.sent: dict[str, bytes] = {}  # file: other content than its digest says
        self.status: int | None = None  # of every answer
        self.gets = Counter[str]()  # answers with the content of a file
        self.ranges: list[str] = []

    def find(self, repo: str) -> Repo | None:
        return self.repos.get(repo)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is what tests are about."""


@contextmanager
def running_hub() -> Generator[Hub]:
    hub = Hub()
    server = _Server(("127.0.0.1", 0), _handler_of(hub))
    hub.url, hub.large_url = (f"http://{host}:{server.server_address[1]}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            words = unquote(urlsplit(self.path).path).strip("/").split("/")
            if hub.status is not None:
                self.answer(hub.status, b"")
            elif words[:2] == ["api", "models"]:
                self.describe("/".join(words[2:4]), words[4:])
            elif words[0] == "large":
                self.content("/".join(words[3:]), hub.repos["/".join(words[1:3])], {})
            else:
                self.resolve("/".join(words[:2]), words[3], "/".join(words[4:]))

        def describe(self, name: str, rest: list[str]) -> None:
            repo = hub.find(name)
            if repo is None:
                self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif rest and rest[1] not in repo.refs:
                self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif rest[:1] == ["tree"]:
                self.answer(200, json.dumps([repo.entry(file) for file in repo.files]).encode())
            else:
                siblings = [{"rfilename": file} for file in repo.files]
                self.answer(200, json.dumps({"id": name, "sha": repo.commit, "siblings": siblings}).encode())

        def resolve(self, name: str, revision: str, file: str) -> None:
            repo = hub.find(name)
            if repo is None or revision not in repo.refs or file not in repo.files:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif repo.gated and self.headers.get("Authorization") != "Bearer hf_allowed":
                self.answer(403 if self.headers.get("Authorization") else 401, b"", {"X-Error-Code": "GatedRepo"})
            else:
                about = {"X-Repo-Commit": repo.commit, "ETag": f'"{repo.digest(file)}"'}
                if file.endswith(LARGE):
                    about |= {"X-Linked-Size": str(len(repo.files[file])), "X-Linked-ETag": about["ETag"]}
                    self.answer(302, b"", about | {"Location": f"{hub.large_url}/large/{name}/{file}"})
                else:
                    self.content(file, repo, about)

        def content(self, file: str, repo: Repo, headers: dict[str, str]) -> None:
            content, status = hub.sent.get(file, repo.files[file]), 200
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                end = min(int(last) + 1, len(content)) if last else len(content)
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
                content, status = content[int(first) : end], 206
            if self.command == "GET":
                hub.gets[file] += 1
                hub.ranges.append(wanted or "")
            self.answer(status, content, headers, hub.cuts.pop(file, None) if self.command == "GET" else None)

        def answer(
            self, status: int, content: bytes, headers: dict[str, str] | None = None, cut: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content if cut is None else content[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler
