"""May this adapter be served, and on which base?"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from llmhostd.api.nearest import nearest
from llmhostd.domain.errors import CallerError, CheckpointError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import LowRankAdapter
from llmhostd.loader.adapter import CONFIG_FILE, open_adapter
from llmhostd.loader.safetensors import read_json
from llmhostd.state.models import RegisteredModel
from llmhostd.state.policy import AdapterPolicy
from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import has_text_files, read_tokenizer

_BASE_FIELD = "base_model_name_or_path"


def base_of(path: Path, wanted: str, known: Sequence[RegisteredModel]) -> RegisteredModel:
    """Find the base of an adapter among the models: the one that was named, or else that of its configuration.

    Raises CallerError naming the nearest model, CheckpointError for a configuration that cannot be read.
    """
    bases = {str(one.name): one for one in known if one.adapter is None}
    if wanted:
        found = next((one for one in known if one.name == wanted), None)
        if found is None:
            raise CallerError(f"base: there is no model {wanted[:100]!r}{nearest(wanted, bases)}", field="base")
        if found.adapter is not None:
            because = f"is an adapter itself; name its base, {found.adapter.base}"
            raise CallerError(f"base: {wanted} {because}", field="base")
        return found
    named = str(read_json(path / CONFIG_FILE).get(_BASE_FIELD) or "")
    alike = [one for one in bases.values() if _is_called(one, named)]
    if len(alike) == 1:
        return alike[0]
    if alike:
        names = " or ".join(sorted(one.name for one in alike))
        raise CallerError(f"base: {path.name} was made for {named}; say which it is to share: {names}", field="base")
    made_for = (
        f"was made for {named}, which is none of the models here" if named else "does not say what it is made for"
    )
    raise CallerError(f"base: {path.name} {made_for}{_nearest_base(named, bases)}; add it, or name it", field="base")


def examine_adapter(path: Path, name: str, base: RegisteredModel, known: Sequence[RegisteredModel]) -> LowRankAdapter:
    """Read and check an adapter; all of its bytes are read once. Blocks on the disk.

    Raises CheckpointError naming file and tensor, and the model that it would fit if there is one.
    """
    try:
        weights = open_adapter(path, base.shape.architecture)
    except CheckpointError as error:
        fitting = [one.name for one in known if one.adapter is None and one is not base and _fits(path, one)]
        hint = f"; it fits {' and '.join(fitting[:3])}" if fitting else ""
        raise CheckpointError(f"{error} (base: {base.name}){hint}") from error
    if has_text_files(path):
        vocab = read_tokenizer(path, name, TemplateProcess(), Path(base.path)).vocab
        most = base.shape.architecture.vocab
        if vocab > most:
            raise CheckpointError(f"{path}: its tokenizer knows {vocab} tokens; {base.name} computes {most}")
    adapter = weights.adapter
    return LowRankAdapter(
        base=base.name,
        identity=weights.identity,
        rank=adapter.rank,
        modules=adapter.modules,
        parameters=sum(one.rank * (one.inputs + one.outputs) for one in adapter.linears),
        bytes=weights.weight_bytes,
    )


def check_room(model: RegisteredModel, nodes: Sequence[NodeSpec], policy: AdapterPolicy) -> None:
    """Raise CallerError if no node here computes adapters, or slots are not to be as large as this one needs."""
    if model.adapter is None:
        return
    if not any(node.adapters for node in nodes):
        engines = ", ".join(dict.fromkeys(node.engine for node in nodes))
        raise CallerError(f"path: no node here computes adapters (engines: {engines})", field="path")
    if model.adapter.rank > policy.most_rank:
        because = (
            f"its rank is {model.adapter.rank}; slots have at most {policy.most_rank} (setting adapters.most_rank)"
        )
        raise CallerError(f"path: {because}", field="path")


def check_family(model: RegisteredModel, known: Iterable[RegisteredModel]) -> None:
    """Raise CallerError if a model would take the place of one that has adapters which do not fit it."""
    mine = [one for one in known if one.adapter is not None and one.adapter.base == model.name]
    if mine and model.adapter is not None:
        raise CallerError(f"name: {model.name} is the base of {_names(mine)}; choose another name", field="name")
    misfits = [one for one in mine if one.shape.architecture != model.shape.architecture]
    if misfits:
        because = f"{model.name} has adapters for another architecture: remove {_names(misfits)} first"
        raise CallerError(f"name: {because}", field="name")


def _is_called(model: RegisteredModel, named: str) -> bool:
    """Whether an adapter's configuration means this model: by repository, by directory, or by their last part."""
    if not named:
        return False
    last = named.rstrip("/").rpartition("/")[2].lower()
    return named.lower() == model.source.lower() or last in (model.name.lower(), _last(model.source), _last(model.path))


def _last(path: str) -> str:
    return path.rpartition("/")[2].lower()


def _nearest_base(named: str, bases: Iterable[str]) -> str:
    last = named.rpartition("/")[2]
    near = get_close_matches(last, list(bases), n=1, cutoff=0.3) if last else []
    return f"; nearest: {near[0]}" if near else nearest(last, bases)


def _fits(path: Path, base: RegisteredModel) -> bool:
    """Whether an adapter's tensors have the shapes that this base asks for."""
    try:
        open_adapter(path, base.shape.architecture)
    except CheckpointError:
        return False
    return True


def _names(models: Sequence[RegisteredModel]) -> str:
    return ", ".join(sorted(one.name for one in models))
