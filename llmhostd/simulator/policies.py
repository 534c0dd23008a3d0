"""What does each policy of an experiment decide differently?

`slinfer` and `llmhostd` are the same minds with other values. `slinfer` is the paper as written; `llmhostd` are our
defaults. An ablation takes one idea away from either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llmhostd.compute.chunked_prefill import ChunkPolicy
from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.headroom import HeadroomPolicy
from llmhostd.compute.iteration_plan import IterationPolicy, SchedulingPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy
from llmhostd.consolidation.bin_packing import PackingPolicy
from llmhostd.consolidation.preemption import PreemptionPolicy
from llmhostd.domain.hardware import NodeSpec
from llmhostd.host.budget import BudgetPolicy
from llmhostd.host.core import HostMind
from llmhostd.host.hope import HopePolicy
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.offers import RoutingPolicy
from llmhostd.host.policies import HostPolicies
from llmhostd.host.precedence import PrecedencePolicy
from llmhostd.host.residency import ResidencyPolicy
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.node.core import NodeMind
from llmhostd.simulator.assumptions import Assumptions, KvGrowth
from llmhostd.simulator.minds import Minds

WHOLE_PROMPT_TOKENS = 1 << 17
"""A chunk that no prompt exceeds."""
MOST_CHUNK_TOKENS = 4096
"""On machines that compute a prompt in a second, others' deadlines cut it, not the fear of who may arrive meanwhile."""
NEVER_RECLAIMED_S = 1e9
"""Fragments stay as long as anything."""
WHENEVER_S = float("-inf")
"""A pool shrinks when a request ends (§VII-B), however urgent others are."""
NOT_WHILE_WAITED_FOR_S = float("inf")
"""Where growing a pool is dear, giving back on a busy node what it needs again soon gains nothing."""
SPARE_GPU = 0.05
"""Where GPUs are not short, the keep-alive of a second saves 1 or 2 % of the loads, and holds a tenth more GPUs."""
MOST_BATCH = 256
"""The largest batch of the published tables."""


class Ablation(StrEnum):
    """What can be taken away (SLINFER §IX-C)."""

    SHARING = "sharing"
    CPU = "cpu"
    CONSOLIDATION = "consolidation"
    WATERMARK = "watermark"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True)
class Policies:
    """All that is set for one run of the host mind and its node minds."""

    host: HostPolicies
    scheduling: SchedulingPolicy
    kv_demand: KvDemandPolicy
    watermark: WatermarkPolicy
    correction: CorrectionPolicy
    runtime_per_node: bool
    """One runtime process serves all instances of a GPU, and its memory is held once; False: one per instance."""

    def minds(self) -> Minds:
        """Make minds of it."""
        host = replace(
            self.host,
            scheduling=self.scheduling,
            kv_demand=self.kv_demand,
            watermark=self.watermark,
            correction=self.correction,
        )
        return Minds(host=lambda specs: HostMind(specs, host), node=self._node)

    def _node(self, spec: NodeSpec) -> NodeMind:
        return NodeMind(
            spec,
            scheduling=self.scheduling,
            kv_demand=self.kv_demand,
            watermark=self.watermark,
            correction=self.correction,
        )


def slinfer(assumptions: Assumptions) -> Policies:
    """Take the paper as written: whole prefills, L_min, keep-alive of a second, a worker per instance."""
    scheduling = SchedulingPolicy(
        deadlines=DeadlinePolicy(from_first_token=False, longest_gap_slo_factor=0.0, late_first_token_slo_factor=0.0),
        headroom=HeadroomPolicy(reserve_s=0.0),
        chunk=ChunkPolicy(min_chunk_tokens=WHOLE_PROMPT_TOKENS, max_chunk_tokens=WHOLE_PROMPT_TOKENS, align_tokens=1),
        iteration=IterationPolicy(max_batch=MOST_BATCH, mixed=False, first_tokens_early=False),
    )
    return Policies(
        host=HostPolicies(
            routing=RoutingPolicy(start_slack_s=float("inf")),
            packing=PackingPolicy(leave_idle_gpus=False),
            residency=ResidencyPolicy(release_s=0.0),
            keep_alive=KeepAlivePolicy(keep_alive_s=assumptions.keep_alive_s),
            shadow=ShadowPolicy(loading_slowdown=1.0, only_added_harm=False),
            hope=HopePolicy(wait_for_memory=False),
            precedence=PrecedencePolicy(busier=0.0),
            preemption=PreemptionPolicy(join_twins=False),
        ),
        scheduling=scheduling,
        kv_demand=KvDemandPolicy(least_tokens=assumptions.least_kv_tokens),
        watermark=WatermarkPolicy(watermark=assumptions.watermark, shrink_reserve_s=WHENEVER_S),
        correction=CorrectionPolicy(),
        runtime_per_node=False,
    )


def llmhostd(assumptions: Assumptions) -> Policies:
    """Our defaults, with what the experiment's machines need: their batches, their loads, their keep-alive."""
    paper = slinfer(assumptions).host
    knows = BudgetPolicy(
        kv_copy_s_per_byte=assumptions.kv_copy_s_per_byte, kv_allocate_s_per_byte=assumptions.kv_allocate_s_per_byte
    )
    pools = WatermarkPolicy(copy_s_per_byte=knows.kv_copy_s_per_byte)
    if assumptions.kv_growth is not KvGrowth.IN_PLACE:
        pools = replace(pools, shrink_reserve_s=NOT_WHILE_WAITED_FOR_S)
    return Policies(
        host=HostPolicies(
            residency=paper.residency,
            keep_alive=replace(paper.keep_alive, spare_gpu=SPARE_GPU),
            packing=paper.packing,  # with a keep-alive of a second hardly anything idle is there to be left
            budget=knows,
            shadow=ShadowPolicy(loading_slowdown=1.0),
        ),
        scheduling=SchedulingPolicy(
            chunk=ChunkPolicy(max_chunk_tokens=MOST_CHUNK_TOKENS), iteration=IterationPolicy(max_batch=MOST_BATCH)
        ),
        kv_demand=KvDemandPolicy(),
        watermark=pools,
        correction=CorrectionPolicy(),
        runtime_per_node=True,
    )


def without(policies: Policies, ablations: Sequence[Ablation]) -> Policies:
    """Take ideas away. CPU nodes are left out where the cluster is made, not here."""
    for ablation in ablations:
        policies = TAKES_AWAY[ablation](policies)
    return policies


def _no_sharing(policies: Policies) -> Policies:
    """An instance has its node for itself (§IX-C)."""
    packing = replace(policies.host.packing, instances_per_node=1)
    return replace(policies, host=replace(policies.host, packing=packing))


def _no_consolidation(policies: Policies) -> Policies:
    """Neither proactive nor reactive (§VIII-A, B)."""
    policies = _no_preemption(policies)
    packing = replace(
        policies.host.packing, largest_batch_first=False, best_fit=False, fragment_keep_s=NEVER_RECLAIMED_S
    )
    return replace(policies, host=replace(policies.host, packing=packing))


def _no_preemption(policies: Policies) -> Policies:
    """Nobody gives way who has work (§VIII-A)."""
    preemption = replace(policies.host.preemption, preempt=False)
    return replace(policies, host=replace(policies.host, preemption=preemption))


def _no_watermark(policies: Policies) -> Policies:
    """KV pools are exactly as large as their demand (§VII-B)."""
    return replace(policies, watermark=WatermarkPolicy(watermark=0.0))


TAKES_AWAY: dict[Ablation, Callable[[Policies], Policies]] = {
    Ablation.SHARING: _no_sharing,
    Ablation.CPU: lambda policies: policies,
    Ablation.CONSOLIDATION: _no_consolidation,
    Ablation.WATERMARK: _no_watermark,
    Ablation.PREEMPTION: _no_preemption,
}

ELASTIC: dict[str, Callable[[Assumptions], Policies]] = {"slinfer": slinfer, "llmhostd": llmhostd}
"""Policies that are values of the host and node minds."""


def elastic(name: str, assumptions: Assumptions, ablations: Sequence[Ablation]) -> Policies:
    """Make the policy of that name, which is one of `ELASTIC`."""
    return without(ELASTIC[name](assumptions), ablations)
