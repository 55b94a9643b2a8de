"""A server that speaks the API of the Hugging Face Hub, on the loopback interface: models, their files, and faults.

As on the hub, large files are redirected to another host, here `localhost`, which must not receive the token.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@lru_cache(maxsize=64)
def get_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class SeenRequest(NamedTuple):
    method: str
    path: str
    range: str | None
    authorization: str | None


class HubServer:
    """Repositories by name, with their files by name; `gated` ones need the token."""

    token = "hf_secret"

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.requests: list[SeenRequest] = []
        self.cut_at: int | None = None  # bytes after which the next download is interrupted
        self.damaged = False  # whether downloads have wrong contents
        self.hashless = False  # whether the hub reports no hashes
        self.failing = 0  # status of all replies
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def list_downloads(self) -> list[SeenRequest]:
        return [request for request in self.requests if request.path.startswith("/cdn/")]

    def find_content(self, digest: str) -> bytes:
        contents = (content for files in self.repos.values() for content in files.values())
        return next(content for content in contents if get_digest(content) == digest)

    def describe(self, repo: str) -> dict[str, Any]:
        siblings = []
        for name, content in self.repos[repo].items():
            lfs = {"sha256": get_digest(content), "size": len(content), "pointerSize": 134}
            one = {"rfilename": name, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
            siblings.append(one if self.hashless else {**one, "lfs": lfs})
        return {"_id": "1", "id": repo, "modelId": repo, "sha": COMMIT, "private": False, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        token = self.headers.get("authorization")
        hub.requests.append(SeenRequest(self.command, path, self.headers.get("range"), token))
        if hub.failing:
            self._reply(hub.failing)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self._describe(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[3], token)
        elif path.startswith("/cdn/"):
            self._send_content(path.removeprefix("/cdn/"))
        else:
            self._reply(404)

    def _describe(self, repo: str) -> None:
        if repo not in self.hub.repos:
            self._reply(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        else:
            self._reply(200, {"Content-Type": "application/json"}, json.dumps(self.hub.describe(repo)).encode())

    def _resolve(self, repo: str, name: str, token: str | None) -> None:
        if repo in self.hub.gated and token != f"Bearer {self.hub.token}":
            self._reply(403 if token else 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        content = self.hub.repos[repo][name]
        digest = get_digest(content)
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        self._reply(302, {**headers, "Location": f"http://localhost:{self.hub.port}/cdn/{digest}"})

    def _send_content(self, digest: str) -> None:
        content = self.hub.find_content(digest)
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        begin = int(match[1]) if match else 0
        sent = bytes(len(content) - begin) if self.hub.damaged else content[begin:]
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if match:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cut, self.hub.cut_at = self.hub.cut_at, None
        self._reply(206 if match else 200, headers, sent, cut)

    def _reply(self, status: int, headers: Mapping[str, str] = {}, body: bytes = b"", cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None: ...


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that stop a download reset the connection."""


@contextlib.contextmanager
def run_hub() -> Iterator[HubServer]:
    hub = HubServer()
    handler = type("_BoundHandler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
