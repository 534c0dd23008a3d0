"""Which files of a hub repository does a model need, and how is each of them known to be right?"""

import re
from typing import NamedTuple

from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoSibling

from llmhostd.domain.errors import CallerError, CheckpointError, OperatorError
from llmhostd.loader.adapter import CONFIG_FILE, WEIGHTS_FILE
from llmhostd.loader.adapter_copy import COPIED

_NEEDED = ("config.json", "tokenizer.json")
_WANTED = (
    *_NEEDED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0


class RemoteFile(NamedTuple):
    """One file to fetch."""

    name: str
    size_bytes: int
    algorithm: str
    """`sha256` of the content (large files), or `git`: the SHA-1 that git gives the content (small ones)."""
    digest: str


class Listing(NamedTuple):
    """What to fetch: everything at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


def check_names(repo: str, revision: str) -> None:
    """Raise CallerError unless these can be names on a hub (and parts of a URL and a path)."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise CallerError(f"{repo!r} is not a model on a hub; write ORG/NAME, e.g. Qwen/Qwen3-0.6B", field="repo")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise CallerError(f"{revision!r} is not a revision; write a branch, a tag or a commit", field="revision")


def list_files(repo: str, revision: str, endpoint: str, token: str | None) -> Listing:
    """Ask the hub. Raises CallerError if there is no such model, CheckpointError if it is not one we can run."""
    try:
        info = HfApi(endpoint=endpoint, token=token or False).model_info(
            repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    except GatedRepoError as error:
        raise OperatorError(
            f"{repo} is gated: accept its terms at {endpoint}/{repo} and set HF_TOKEN to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        hint = "the token in use may not see it" if token else "if it is private, set HF_TOKEN"
        raise CallerError(f"there is no model {repo} at {endpoint} ({hint})", field="repo") from error
    except RevisionNotFoundError as error:
        raise CallerError(f"{repo} has no revision {revision!r}; `main` is the usual one", field="revision") from error
    except HfHubHTTPError as error:
        raise OperatorError(f"{endpoint} answered {error.response.status_code} when asked for {repo}") from error
    except Exception as error:  # the hub library's own HTTP library, whichever this version uses
        raise OperatorError(f"{endpoint} cannot be asked for {repo}: {error}") from error
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise OperatorError(f"{endpoint} names no commit for {repo}")
    return Listing(info.sha, _needed_files(repo, {one.rfilename: one for one in info.siblings or ()}))


def _needed_files(repo: str, offered: dict[str, RepoSibling]) -> tuple[RemoteFile, ...]:
    if CONFIG_FILE in offered and "config.json" not in offered:
        if WEIGHTS_FILE not in offered:
            raise CheckpointError(f"{repo} has no {WEIGHTS_FILE}: pickled adapters can run code and are never pulled")
        return tuple(_remote_file(repo, offered[name]) for name in COPIED if name in offered)
    missing = [name for name in _NEEDED if name not in offered]
    if missing:
        raise CheckpointError(
            f"{repo} has no {' and no '.join(missing)}: it is not a model that can be run from its files"
        )
    names = [name for name in _WANTED if name in offered] + _weights(repo, offered)
    return tuple(_remote_file(repo, offered[name]) for name in names)


def _weights(repo: str, offered: dict[str, RepoSibling]) -> list[str]:
    """Safetensors only: pickled weights (.bin, .pt) can run code when they are read."""
    shards = sorted(name for name in offered if _SHARD.fullmatch(name))
    if _INDEX in offered and shards:
        return [_INDEX, *shards]
    if _WHOLE in offered:
        return [_WHOLE]
    pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in offered)
    reason = "only pickled weights, which can run code and are never pulled" if pickled else f"no {_WHOLE}"
    raise CheckpointError(f"{repo} has {reason}; look for a repository with safetensors")


def _remote_file(repo: str, sibling: RepoSibling) -> RemoteFile:
    if sibling.lfs is not None and re.fullmatch(r"[0-9a-f]{64}", sibling.lfs.sha256 or ""):
        return RemoteFile(sibling.rfilename, sibling.lfs.size, "sha256", sibling.lfs.sha256)
    if sibling.size is not None and sibling.blob_id and _COMMIT.fullmatch(sibling.blob_id):
        return RemoteFile(sibling.rfilename, sibling.size, "git", sibling.blob_id)
    raise OperatorError(f"{repo}: the hub gives no checksum for {sibling.rfilename}; it is not fetched")
