"""What NVML says, in the words of its own bindings, and what is said where there is no NVML."""

from types import SimpleNamespace

import pynvml
import pytest

from llmhostd.devices.gpus import GpuFacts, GpusFound, ask_nvml, choose_gpu, gpu_hardware_key, probe_gpus
from llmhostd.domain.errors import OperatorError

GIB = 1 << 30


class RecordedNvml:
    """Answers of an H200 in MIG mode and of an L4, as `pynvml` gave them; the L4 knows no MIG."""

    NVMLError = pynvml.NVMLError
    NAMES = ("NVIDIA H200", b"NVIDIA L4")
    UUIDS = ("GPU-aaaa1111-0000", b"GPU-bbbb2222-0000")
    MEMORY = ((150_754_820_096, 150_000_000_000), (24_152_899_584, 23_000_000_000))
    CAPABILITY = ((9, 0), (8, 9))

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.95.05"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        total, free = self.MEMORY[handle]
        return SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return self.CAPABILITY[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:  # noqa: N802
        return self.UUIDS[handle]

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return self.NAMES[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]


def test_gpus_are_read_as_nvml_tells_them_and_nvml_is_let_go() -> None:
    nvml = RecordedNvml()
    found = ask_nvml(nvml)
    assert found.state == "NVIDIA driver 580.95.05 knows 2 GPU(s)"
    assert found.gpus[1] == GpuFacts(
        index=1, uuid="GPU-bbbb2222-0000", name="NVIDIA L4", memory_bytes=24_152_899_584, free_bytes=23_000_000_000,
        compute_capability="8.9", partitioned=False,
    )  # fmt: skip
    assert [one.partitioned for one in found.gpus] == [True, False]
    assert gpu_hardware_key(found.gpus[1]) == "nvidia-l4/sm8.9/22g"
    assert nvml.open == 0


def test_this_machine_answers_or_says_why_not() -> None:
    found = probe_gpus()
    assert found.state
    assert isinstance(found.gpus, tuple)


@pytest.mark.parametrize(("wanted", "index"), [("0", 0), ("1", 1), ("GPU-bbbb", 1), ("GPU-aaaa1111-0000", 0)])
def test_a_gpu_is_named_by_index_or_by_the_beginning_of_its_uuid(wanted: str, index: int) -> None:
    assert choose_gpu(wanted, ask_nvml(RecordedNvml()), "nodes[0].device").index == index


@pytest.mark.parametrize("wanted", ["2", "GPU-", "", "L4"])
def test_another_gpu_is_an_error_that_lists_those_there_are(wanted: str) -> None:
    with pytest.raises(OperatorError, match=r"nodes\[0\]\.device: is '.*'; this box has `0` \(NVIDIA H200, .*`1`"):
        choose_gpu(wanted, ask_nvml(RecordedNvml()), "nodes[0].device")
    with pytest.raises(OperatorError, match="no driver"):
        choose_gpu(wanted, GpusFound(gpus=(), state="no driver"), "nodes[0].device")
