"""How does a model come from a hub onto this disk, whole or not at all?

Files are gathered in a hidden directory beside the final one; what arrived stays there over interruptions, and one
rename at the end puts the whole checkpoint in place. Only what a model needs is fetched, never pickled weights.
"""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import constants, get_token, hf_hub_url

from llmhostd import __version__
from llmhostd.domain.errors import OperatorError
from llmhostd.loader.hub_download import CorruptError, fetch
from llmhostd.loader.hub_listing import Listing, RemoteFile, check_names, list_files
from llmhostd.loader.progress import Progress, no_progress
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.store_directory import alone

RECORD = ".pulled.json"
"""In a pulled checkpoint: repository, commit, and the digest of each file that was verified."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def pull(
    repo: str,
    directory: Path,
    policy: FetchPolicy,
    *,
    revision: str = "main",
    progress: Progress = no_progress,
    endpoint: str | None = None,
    token: str | None = None,
) -> Path:
    """Pull `ORG/NAME` into `directory/ORG--NAME` and return that path. Blocks; run it again to resume.

    `endpoint` and `token` default to HF_ENDPOINT and HF_TOKEN (or the stored login). `progress` hears the repository's
    name and bytes. A checkpoint that is there is replaced only by a whole newer one. Raises CallerError for names that
    do not exist, CheckpointError for what is no runnable model, OperatorError for network, permission and disk.
    """
    check_names(repo, revision)
    endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    transfer = _Transfer(repo, endpoint, token or get_token(), policy, progress)
    final = directory / repo.replace("/", "--")
    staging = directory / f".{final.name}.unfinished"
    try:
        listing = list_files(repo, revision, endpoint, transfer.token)
        wanted = {"repo": repo, "commit": listing.commit, "files": {one.name: one.digest for one in listing.files}}
        if _record(final) != wanted:
            with alone(staging, final):
                transfer.gather(listing, staging)
                _write_record(staging, wanted)
                _put_in_place(staging, final)
    except OSError as error:
        raise _disk_error(error, directory) from error
    return final


class _Transfer:
    """One pull's connection and counters."""

    def __init__(self, repo: str, endpoint: str, token: str | None, policy: FetchPolicy, progress: Progress) -> None:
        self._repo = repo
        self._endpoint = endpoint
        self.token = token
        self._policy = policy
        self._progress = progress

    def gather(self, listing: Listing, staging: Path) -> None:
        """Complete `staging`: verified files under their names, unfinished ones as parts named by their digest."""
        verified = _record(staging).get("files", {})
        missing = [one for one in listing.files if verified.get(one.name) != one.digest]
        self._tidy(staging, listing, missing)
        self._check_space(staging, missing)
        total = sum(one.size_bytes for one in listing.files)
        done = total - sum(one.size_bytes for one in missing)
        self._progress(self._repo, done, total)
        headers = {"User-Agent": f"llmhostd/{__version__}"}
        if self.token:  # httpx drops it when the hub redirects to another host
            headers["Authorization"] = f"Bearer {self.token}"
        with httpx.Client(timeout=self._policy.fetch_timeout_s, follow_redirects=True) as client:
            for file in missing:
                part = _part(staging, file)
                self._fetch_verified(client, headers, listing.commit, file, part, done, total)
                part.rename(staging / file.name)
                verified = {**verified, file.name: file.digest}
                _write_record(staging, {"repo": self._repo, "commit": listing.commit, "files": verified})
                done += file.size_bytes
        self._progress(self._repo, total, total)

    def _fetch_verified(
        self,
        client: httpx.Client,
        headers: dict[str, str],
        commit: str,
        file: RemoteFile,
        part: Path,
        done: int,
        total: int,
    ) -> None:
        url = hf_hub_url(self._repo, file.name, revision=commit, endpoint=self._endpoint)
        for _ in range(2):  # a corrupt file is fetched once more from its beginning
            try:
                fetch(
                    client,
                    url,
                    headers,
                    file,
                    part,
                    received=lambda size: self._progress(self._repo, done + size, total),
                    retries=self._policy.fetch_retries,
                    retry_wait_s=self._policy.fetch_retry_wait_s,
                )
            except CorruptError:
                continue
            return
        raise OperatorError(
            f"{self._repo}: {file.name} came twice with a wrong checksum; the hub's copy or a proxy is broken. "
            "Nothing was put in place"
        )

    def _check_space(self, staging: Path, missing: list[RemoteFile]) -> None:
        here = sum(part.stat().st_size for one in missing if (part := _part(staging, one)).exists())
        needed = sum(one.size_bytes for one in missing) - here
        free = shutil.disk_usage(staging).free - self._policy.fetch_spare_bytes
        if needed > free:
            raise OperatorError(
                f"{self._repo} needs {_gigabytes(needed)} more in {staging.parent}, where {_gigabytes(free)} "
                "may be used; free some and run again (what was pulled so far is kept)"
            )

    def _tidy(self, staging: Path, listing: Listing, missing: list[RemoteFile]) -> None:
        """Remove what an earlier pull of another commit left and this one does not use."""
        useful = {RECORD, *(_part(staging, one).name for one in missing)}
        useful |= {one.name for one in listing.files if one not in missing}
        for found in staging.iterdir():
            if found.name not in useful:
                found.unlink()


def _part(staging: Path, file: RemoteFile) -> Path:
    return staging / f"{file.digest}.part"


def _record(checkpoint: Path) -> dict[str, Any]:
    """Read the record; empty if there is none (or it was cut short by a crash: then everything is fetched again)."""
    try:
        content = json.loads((checkpoint / RECORD).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_record(checkpoint: Path, record: dict[str, Any]) -> None:
    written = checkpoint / f"{RECORD}.new"
    with written.open("w") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    written.rename(checkpoint / RECORD)


def _put_in_place(staging: Path, final: Path) -> None:
    """Rename; an older checkpoint steps aside first and goes away last."""
    replaced = final.with_name(f".{final.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    staging.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


def _disk_error(error: OSError, directory: Path) -> OperatorError:
    if error.errno in _NO_SPACE:
        return OperatorError(
            f"{directory}: the disk is full; free some space and run again: what was pulled so far is kept"
        )
    return OperatorError(f"{error.filename or directory}: {error.strerror or error}")


def _gigabytes(size: int) -> str:
    return f"{max(size, 0) / 1e9:.1f} GB"
