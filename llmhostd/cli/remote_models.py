"""How does what lies elsewhere come into the models' directory?"""

from pathlib import Path

from llmhostd.cli.copies import taken
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_adapter import add_remote_adapter
from llmhostd.loader.remote_file import NotThereError
from llmhostd.loader.remote_store import RemotePlace, add_address, add_remote
from llmhostd.loader.store_index import read_remote


def bring(there: RemotePlace, path: Path, name: str, policy: FetchPolicy) -> bool:
    """Fetch what is small of a store, or all of an adapter; of a store that is here, note one more place that has it.

    Returns whether `path` is new. Raises what says why not.
    """
    if path.exists():
        if read_remote(path) is None or not add_address(there, path, policy):
            raise taken(path, name)
        return False
    try:
        add_remote(there, path, policy)
    except NotThereError as no_store:
        try:
            add_remote_adapter(there, path, policy)
        except CheckpointError as error:
            raise (no_store if isinstance(error, NotThereError) else error) from error
    return True
