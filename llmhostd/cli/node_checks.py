"""What computes on this box, out of which memory, and what could and does not?"""

from collections.abc import Iterator

from llmhostd.cli.checks import Finding, good, slow
from llmhostd.daemon.nodes import NodeLayout
from llmhostd.devices.acceleration import Acceleration
from llmhostd.devices.budget import spell
from llmhostd.devices.probe import spell_cores
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.worker.process import prefer_memory_of


def check_nodes(layout: NodeLayout, acceleration: Acceleration) -> Iterator[Finding]:
    """Each node with its caveats, what is left out, and what NVML says."""
    for node, budget in zip(layout.nodes, layout.budgets, strict=True):
        yield good("node", f"{node.id}: {describe_device(node, acceleration)}.")
        yield good("node memory", f"{node.id}: {spell(budget.bytes)}: {budget.because}.")
        for caveat in node.caveats:
            yield slow("node", f"{node.id}: {caveat}.")
    for excluded in layout.excluded:
        yield slow("left out", f"{excluded.device}: {excluded.because}.")
    yield good("gpus", f"{layout.gpu_state}.")
    bound = [node.id for node in layout.nodes if node.numa_domains]
    # Asked with no domain: it changes nothing here, and is refused where the real call would be.
    if bound and (refused := prefer_memory_of(())):
        yield slow(
            "memory policy", f"set_mempolicy is refused ({refused}): memory of {', '.join(bound)} may lie far away."
        )


def describe_device(node: NodeSpec, acceleration: Acceleration) -> str:
    """Say what it is made of."""
    cores = f"cores {spell_cores(node.cores)}, {node.compute_threads} thread(s)"
    if node.kind is NodeKind.GPU:
        device = node.device or f"no device: times come from {node.profile}"
        return f"gpu, {node.engine}, {device}; driven from {cores}"
    domains = f", NUMA domain {spell_cores(node.numa_domains)}" if node.numa_domains else ""
    matrix = ", ".join(acceleration.instructions) or "none"
    return f"cpu, {node.engine}, {cores}{domains}; matrix acceleration: {matrix}"
