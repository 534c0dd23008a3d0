"""What may be set about one box's decisions?"""

from dataclasses import dataclass, field

from llmhostd.checkpoints.tiers import StartPolicy
from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.prior import PriorPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy
from llmhostd.consolidation.bin_packing import PackingPolicy
from llmhostd.consolidation.preemption import PreemptionPolicy
from llmhostd.host.best_effort import BestEffortPolicy
from llmhostd.host.budget import BudgetPolicy
from llmhostd.host.hope import HopePolicy
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.offers import RoutingPolicy
from llmhostd.host.precedence import PrecedencePolicy
from llmhostd.host.recovery import RecoveryPolicy
from llmhostd.host.refusal import RefusalPolicy
from llmhostd.host.residency import ResidencyPolicy
from llmhostd.memory.host_tier import HostTierPolicy
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.migration.live_migration import MigrationPolicy


@dataclass(frozen=True, slots=True)
class HostPolicies:
    """Each subsystem of the host mind is handed its own part only."""

    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    packing: PackingPolicy = field(default_factory=PackingPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    migration: MigrationPolicy = field(default_factory=MigrationPolicy)
    residency: ResidencyPolicy = field(default_factory=ResidencyPolicy)
    starts: StartPolicy = field(default_factory=StartPolicy)
    host_memory: HostTierPolicy = field(default_factory=HostTierPolicy)
    keep_alive: KeepAlivePolicy = field(default_factory=KeepAlivePolicy)
    best_effort: BestEffortPolicy = field(default_factory=BestEffortPolicy)
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    refusal: RefusalPolicy = field(default_factory=RefusalPolicy)
    hope: HopePolicy = field(default_factory=HopePolicy)
    precedence: PrecedencePolicy = field(default_factory=PrecedencePolicy)
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    kv_demand: KvDemandPolicy = field(default_factory=KvDemandPolicy)
    watermark: WatermarkPolicy = field(default_factory=WatermarkPolicy)
    """Must be what the node minds size their pools by, like the demand."""
    shadow: ShadowPolicy = field(default_factory=ShadowPolicy)
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    """Must be what the node minds schedule by: shadow validation plays them forward."""
    prior: PriorPolicy = field(default_factory=PriorPolicy)
    correction: CorrectionPolicy = field(default_factory=CorrectionPolicy)
    """Must be the node minds' too: their corrections come with their profiles, and are bounded alike."""
