"""A small hub: a real HTTP server that speaks the paths and headers of huggingface.co, and can misbehave on request."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from loopback import Answers, listening

COMMIT = "a" * 40
_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


@dataclass
class Hub:
    """What the server serves, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    repo: str = "org/model"
    commit: str = COMMIT
    token: str | None = None
    gated: bool = False
    cut_after: list[int] = field(default_factory=list)
    """Each download of a large file takes the next of these and breaks the connection after so many bytes."""
    ignore_ranges: bool = False
    corrupt_downloads: int = 0
    """So many downloads of large files come with one wrong byte."""
    busy_answers: int = 0
    """So many downloads are answered with 503 first."""
    redirect_to: str | None = None
    """Files are served from this origin (as the real hub's are from a CDN)."""
    claimed_size: int | None = None
    """Size of large files in the listing, when it lies."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list, repr=False)
    """(path, Range header, Authorization header) of every file download."""
    origin: str = ""

    def downloaded(self, name: str) -> list[str]:
        """Range headers of the downloads of one file."""
        return [ranged for path, ranged, _ in self.asked if path.endswith(f"/{name}")]


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", "tokenizer.json"))


def info(hub: Hub) -> dict[str, object]:
    siblings = []
    for name, content in hub.files.items():
        entry: dict[str, object] = {"rfilename": name, "size": len(content)}
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        entry["blobId"] = git
        if is_large(name):
            size = hub.claimed_size or len(content)
            entry |= {"size": size}
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
        siblings.append(entry)
    return {"id": hub.repo, "modelId": hub.repo, "sha": hub.commit, "siblings": siblings, "tags": [], "private": False}


class _Handler(Answers):
    hub: Hub

    def do_GET(self) -> None:  # noqa: N802 - as `http.server` calls it
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/cdn/"):
            self._serve(path.removeprefix("/cdn"))
        elif found := _INFO.fullmatch(path):
            self._info(found["repo"], found["revision"])
        elif found := _FILE.fullmatch(path):
            self._resolve(path, found["repo"], found["revision"])
        else:
            self._refuse(404, "EntryNotFound", "no such page")

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def _allowed(self, repo: str, revision: str | None) -> bool:
        hub, authorization = self.hub, self.headers.get("Authorization")
        if repo != hub.repo or (hub.token and authorization is None):
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif hub.gated and authorization != f"Bearer {hub.token}":
            self._refuse(403, "GatedRepo", "Access to model is restricted")
        elif revision not in (None, "main", hub.commit):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        else:
            return True
        return False

    def _info(self, repo: str, revision: str | None) -> None:
        if self._allowed(repo, revision):
            self.send(200, json.dumps(info(self.hub)).encode(), {"Content-Type": "application/json"})

    def _resolve(self, path: str, repo: str, revision: str) -> None:
        if not self._allowed(repo, revision):
            return
        if self.hub.redirect_to:
            self.send(302, b"", {"Location": f"{self.hub.redirect_to}/cdn{path}", "X-Repo-Commit": self.hub.commit})
        else:
            self._serve(path)

    def _serve(self, path: str) -> None:
        hub, name = self.hub, path.rsplit("/", 1)[1]
        ranged = self.headers.get("Range", "")
        hub.asked.append((path, ranged, self.headers.get("Authorization")))
        if hub.busy_answers:
            hub.busy_answers -= 1
            self._refuse(503, "Busy", "later")
            return
        content = hub.files[name]
        whole = len(content)
        begin = int(ranged.removeprefix("bytes=").removesuffix("-")) if ranged and not hub.ignore_ranges else 0
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-Size": str(whole),
            "X-Repo-Commit": hub.commit,
            "Accept-Ranges": "bytes",
        }
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{whole - 1}/{whole}"
        if is_large(name) and hub.corrupt_downloads:
            hub.corrupt_downloads -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        cut = hub.cut_after.pop(0) if is_large(name) and hub.cut_after else None
        self.send(206 if begin else 200, content[begin:], headers, cut)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Run the server."""
    with listening(type("Handler", (_Handler,), {"hub": hub})) as hub.origin:
        yield hub
