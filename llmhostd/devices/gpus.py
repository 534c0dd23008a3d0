"""Which GPUs does this box have? Asked of NVML, which comes with the driver, through the extra `gpu`."""

import importlib
import re
from typing import Any

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.words import Word

NO_LIBRARY = "the Python package nvidia-ml-py is not installed: `pip install llmhostd[gpu]` to see NVIDIA GPUs"


class GpuFacts(Word):
    """One GPU."""

    index: int
    """NVML's, in order of PCI bus."""
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    compute_capability: str
    """`9.0`."""
    partitioned: bool
    """In MIG mode: it computes by its partitions only."""


class GpusFound(Word):
    """What NVML said, or why it said nothing."""

    gpus: tuple[GpuFacts, ...]
    state: str
    """One sentence for a person."""


def probe_gpus() -> GpusFound:
    """Ask NVML. No library, no driver or no GPU is not an error, but said in `state`."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return GpusFound(gpus=(), state=NO_LIBRARY)
    return ask_nvml(nvml)


def ask_nvml(nvml: Any) -> GpusFound:
    """`nvml`: the module `pynvml`."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpusFound(gpus=(), state=f"no NVIDIA driver answers ({error}): this box has no NVIDIA GPU to use")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus = tuple(_facts(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return GpusFound(gpus=(), state=f"NVML cannot say which GPUs there are: {error}")
    finally:
        nvml.nvmlShutdown()
    return GpusFound(gpus=gpus, state=f"NVIDIA driver {driver} knows {len(gpus)} GPU(s)")


def choose_gpu(wanted: str, found: GpusFound, where: str) -> GpuFacts:
    """Find a GPU by index, UUID or the beginning of one. Raises OperatorError naming `where` and what there is."""
    if not found.gpus:
        raise OperatorError(f"{where}: is {wanted!r}; {found.state}")
    for gpu in found.gpus:
        if wanted == str(gpu.index) or (len(wanted) > len("GPU-") and gpu.uuid.startswith(wanted)):
            return gpu
    known = ", ".join(f"`{gpu.index}` ({gpu.name}, {gpu.uuid})" for gpu in found.gpus)
    raise OperatorError(f"{where}: is {wanted!r}; this box has {known}")


def gpu_hardware_key(gpu: GpuFacts) -> HardwareKey:
    """Equal for GPUs on which an iteration takes the same time (SLINFER §VI-B)."""
    slug = "-".join(re.findall(r"[a-z0-9.]+", gpu.name.lower()))
    return HardwareKey(f"{slug}/sm{gpu.compute_capability}/{gpu.memory_bytes >> 30}g")


def _facts(nvml: Any, index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuFacts(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=f"{major}.{minor}",
        partitioned=_partitioned(nvml, handle),
    )


def _partitioned(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        # GPUs without MIG say "not supported".
        return False


def _text(value: str | bytes) -> str:
    """Older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
