"""May this directory be served under this name?"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from llmhostd.api.service import ModelRegistration
from llmhostd.daemon.adapter_registration import base_of, check_family, examine_adapter
from llmhostd.domain.errors import CallerError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.loader.adapter import CONFIG_FILE, is_adapter
from llmhostd.loader.safetensors import describe
from llmhostd.state.models import RegisteredModel, compute_precision, kv_precision
from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import read_tokenizer

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_LONGEST_PATH = 4096


def examine(registration: ModelRegistration, known: Sequence[RegisteredModel] = ()) -> RegisteredModel:
    """Read and check what is to be served; a checkpoint's weights are not touched. Blocks on the disk.

    `known`: the models there are, among which an adapter has its base. Raises CallerError naming the field,
    CheckpointError naming file and tensor.
    """
    checked_name(registration.name)
    _check_promise(registration)
    path = _checked_path(registration.path)
    if is_adapter(path):
        model = _adapter(registration, path, [one for one in known if one.name != registration.name])
    elif registration.base:
        raise CallerError(f"base: {path} is no adapter: it has no {CONFIG_FILE}, or is a model itself", field="base")
    else:
        model = _checkpoint(registration, path)
    check_family(model, known)
    return model


def checked_name(name: str) -> str:
    """Return what a model may be called. Raises CallerError."""
    if not NAME.fullmatch(name):
        raise CallerError(f"name: is {name[:120]!r}; expected up to 100 letters, digits and . _ : -", field="name")
    return name


def _checkpoint(registration: ModelRegistration, path: Path) -> RegisteredModel:
    description = describe(path)
    read_tokenizer(path, registration.name, TemplateProcess())
    if registration.compute:
        compute_precision(registration.compute, description.weights, bf16_hardware=False)
    if registration.kv:
        kv_precision(registration.kv)
    return RegisteredModel(
        name=ModelName(registration.name),
        path=str(path),
        shape=description.shape(ComputePrecision.F32, KvPrecision.U8),
        parameters=description.parameters,
        compute=registration.compute,
        kv=registration.kv,
        ttft_s=registration.ttft_s,
        tpot_s=registration.tpot_s,
        source=registration.source,
        added_at=time.time(),
    )


def _adapter(registration: ModelRegistration, path: Path, known: Sequence[RegisteredModel]) -> RegisteredModel:
    for field in ("compute", "kv"):
        if getattr(registration, field):
            raise CallerError(f"{field}: an adapter is computed as its base is; leave it out", field=field)
    if registration.base == registration.name:
        raise CallerError(f"name: {registration.name} is what its base is called; choose another name", field="name")
    base = base_of(path, registration.base, known)
    adapter = examine_adapter(path, registration.name, base, known)
    return RegisteredModel(
        name=ModelName(registration.name),
        path=str(path),
        shape=base.shape,
        parameters=adapter.parameters,
        ttft_s=registration.ttft_s,
        tpot_s=registration.tpot_s,
        source=registration.source,
        added_at=time.time(),
        adapter=adapter,
    )


def _check_promise(registration: ModelRegistration) -> None:
    for field in ("ttft_s", "tpot_s"):
        seconds = getattr(registration, field)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise CallerError(f"{field}: is {seconds}; expected seconds above 0", field=field)


def _checked_path(text: str) -> Path:
    """Absolute, because the daemon's working directory means nothing to a caller."""
    if not text.startswith("/") or "\0" in text or len(text.encode(errors="surrogatepass")) > _LONGEST_PATH:
        raise CallerError(f"path: is {text[:200]!r}; expected an absolute path", field="path")
    return Path(text).absolute()
