"""A local HTTP server that speaks the hub's endpoints, and misbehaves where a test says so."""

import json
import re
import struct
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import torch
from safetensors.torch import save

_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_CDN = re.compile(r"/cdn/([^/]+/[^/]+)/([^/]+)/(.+)")


@dataclass
class Repo:
    """Commits of a repository, each a mapping of file name to content, and its branches."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)


@dataclass
class Exchange:
    """One request and what was answered; `sent` are the bytes of the body."""

    method: str
    path: str
    range: str | None
    token: str | None
    status: int = 0
    sent: int = 0


@dataclass
class Trouble:
    """What happens instead of the ordinary answer to the next `times` requests whose path matches `pattern`.

    With a status, that is the answer; with `cut`, the body ends after so many bytes and the connection closes.
    """

    pattern: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    times: int = 10**9


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_request: object) -> None:
        """Say nothing: clients are killed in these tests."""


class HubServer:
    """Serves `repos`; `log` keeps every exchange.

    Attributes:
        troubles: see `Trouble`; the first that matches counts.
        ignores_ranges: answer 200 with the whole file to a Range request.
        cdn: redirect .safetensors files to another host and path, as the hub does with large files.
        renamed: old repository id to new one, by redirect.
        slice_bytes, delay_s: send bodies in slices with a pause after each.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.troubles: list[Trouble] = []
        self.log: list[Exchange] = []
        self.ignores_ranges = False
        self.cdn = False
        self.renamed: dict[str, str] = {}
        self.slice_bytes = 1 << 16
        self.delay_s = 0.0
        self.lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add(self, repo_id: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Put a new commit on a branch; its 40 hexadecimal digits."""
        repo = self.repos.setdefault(repo_id, Repo())
        commit = sha1(repr((repo_id, branch, len(repo.commits))).encode()).hexdigest()
        repo.commits[commit] = files
        repo.branches[branch] = commit
        return commit

    @property
    def sent(self) -> int:
        """Bytes of all bodies."""
        return sum(exchange.sent for exchange in self.log)

    def asked(self, part: str, method: str = "GET") -> list[Exchange]:
        """The requests whose path holds `part`."""
        return [exchange for exchange in self.log if part in exchange.path and exchange.method == method]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.exchange = Exchange(
            self.command, path, self.headers.get("Range"), (self.headers.get("Authorization") or "")[7:] or None
        )
        with self.hub.lock:
            self.hub.log.append(self.exchange)
            trouble = next((one for one in self.hub.troubles if one.times and re.search(one.pattern, path)), None)
            if trouble is not None and (trouble.status or self.command == "GET"):
                trouble.times -= 1
            else:
                trouble = None
        if trouble is not None and trouble.status:
            self._answer(trouble.status, trouble.body, trouble.headers)
            return
        cut = trouble.cut if trouble else None
        for pattern, handle in ((_INFO, self._info), (_RESOLVE, self._resolve), (_CDN, self._cdn)):
            if match := pattern.fullmatch(path):
                handle(*match.groups(), cut=cut)
                return
        self._answer(404, b"")

    def _commit(self, repo_id: str, revision: str | None) -> str | None:
        """The commit asked for; None after an answer that says that there is none."""
        new = self.hub.renamed.get(repo_id)
        if new:
            self._answer(307, b"", {"Location": self.path.replace(repo_id, new)})
            return None
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return None
        revision = revision or "main"
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._answer(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit

    def _info(self, repo_id: str, revision: str | None, cut: int | None) -> None:
        commit = self._commit(repo_id, revision)
        if commit:
            files = self.hub.repos[repo_id].commits[commit]
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            body = {"id": repo_id, "sha": commit, "siblings": siblings}
            self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"}, cut=cut)

    def _resolve(self, repo_id: str, revision: str, file: str, cut: int | None) -> None:
        commit = self._commit(repo_id, revision)
        if commit is None:
            return
        content = self.hub.repos[repo_id].commits[commit].get(file)
        origin = {"X-Repo-Commit": commit}
        if content is None:
            self._answer(404, b"", origin | {"X-Error-Code": "EntryNotFound"})
        elif self.hub.cdn and file.endswith(".safetensors"):
            location = f"http://localhost:{self.hub.port}/cdn/{repo_id}/{commit}/{file}"
            self._answer(302, b"", origin | {"Location": location})
        else:
            self._file(content, origin | {"ETag": f'"{sha1(content).hexdigest()}"'}, cut)

    def _cdn(self, repo_id: str, commit: str, file: str, cut: int | None) -> None:
        self._file(self.hub.repos[repo_id].commits[commit][file], {}, cut)

    def _file(self, content: bytes, headers: dict[str, str], cut: int | None) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked is None or self.hub.ignores_ranges:
            self._answer(200, content, headers, cut=cut)
            return
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(content))
        if start >= len(content):
            self._answer(416, b"", headers)
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._answer(206, content[start:stop], headers, cut=cut)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.exchange.status = status
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._send(body if cut is None else body[:cut])
        except OSError:  # the client has gone
            self.close_connection = True
        if cut is not None:
            self.close_connection = True

    def _send(self, body: bytes) -> None:
        for start in range(0, len(body), self.hub.slice_bytes):
            piece = body[start : start + self.hub.slice_bytes]
            self.exchange.sent += len(piece)  # before the client can see it
            self.wfile.write(piece)
            if self.hub.delay_s:
                time.sleep(self.hub.delay_s)


# --- contents of repositories -----------------------------------------------------------------------------------------


def single(tensors: dict[str, torch.Tensor], pad_to: int | None = None) -> bytes:
    """A safetensors file; with `pad_to`, its header is exactly so many bytes long."""
    content = save(tensors)
    if pad_to is None:
        return content
    length = struct.unpack("<Q", content[:8])[0]
    assert pad_to >= length
    return struct.pack("<Q", pad_to) + content[8 : 8 + length].ljust(pad_to) + content[8 + length :]


def sharded(shards: list[dict[str, torch.Tensor]]) -> dict[str, bytes]:
    """The files of a sharded model: shards and index."""
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    files = {name: save(shard) for name, shard in zip(names, shards, strict=True)}
    return files | {"model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weight_map}).encode()}
