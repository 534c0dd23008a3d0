"""A small box for the host mind: its words, and a driver that checks every invariant after every step."""

import msgspec

from llmhostd.domain import events, reports
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import (
    AdapterSlots,
    Architecture,
    ComputePrecision,
    KvPrecision,
    LowRankAdapter,
    ModelShape,
    ModelSpec,
    ModelState,
    Slo,
    WeightFormat,
)
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.request import FinishReason, RequestShape, Tier
from llmhostd.host.core import HostMind
from llmhostd.host.invariants import check

MIB = 1 << 20
SLO = Slo(ttft_s=2.0, tpot_s=0.2)


def shape(layers=12, weight_mib=300):
    """A Llama; 1 KiB of KV per token."""
    architecture = Architecture(
        family="llama", layers=layers, hidden=768, heads=12, kv_heads=4, head_dim=64, intermediate=2048,
        vocab=32000, max_context_tokens=4096, norm_eps=1e-5, rope_theta=1e4,
    )  # fmt: skip
    return ModelShape(
        architecture=architecture, weights=WeightFormat.BF16, compute=ComputePrecision.BF16, kv=KvPrecision.U8,
        weight_bytes=weight_mib * MIB, kv_bytes_per_token=1024,
    )  # fmt: skip


def profile(of=None, *, hardware="test", prefill_token_s=0.0002, step_s=0.020, load_s=0.5, resident_mib=320):
    """20 ms an iteration, 5,000 prefill tokens a second."""
    return Profile(
        shape_key=(of or shape()).key,
        hardware_key=hardware,
        prefill=tuple(
            PrefillSample(chunk_tokens=n, past_tokens=past, seconds=step_s + prefill_token_s * n)
            for n in (1, 512)
            for past in (0, 2048)
        ),
        decode=tuple(
            DecodeSample(batch=n, context_tokens=c, seconds=step_s + 0.0005 * n) for n in (1, 32) for c in (64, 2048)
        ),
        load_s=load_s,
        first_run_s=0.1,
        resident_bytes=resident_mib * MIB,
        warm_bytes=20 * MIB,
    )


def node(name="cpu0", memory_mib=4096, hardware="test"):
    kind = NodeKind.GPU if name.startswith("gpu") else NodeKind.CPU
    return NodeSpec(
        id=name, engine="openvino", hardware_key=hardware, cores=(0, 1), memory_bytes=memory_mib * MIB, kind=kind,
        adapters=kind is NodeKind.CPU,
    )  # fmt: skip


def model(name, of=None, slo=SLO):
    return ModelSpec(name=name, shape=of or shape(), slo=slo)


def adapter(name, base, slots=2, rank=8, mib=4):
    """An adapter of a base, and the base with room for it: two specs."""
    room = AdapterSlots(slots=slots, rank=rank, modules=("self_attn.q_proj",), slot_bytes=mib * MIB)
    of = msgspec.structs.replace(base.shape, adapters=room)
    what = LowRankAdapter(
        base=base.name, identity=f"id-{name}", rank=rank, modules=room.modules, parameters=1000, bytes=2000
    )
    return msgspec.structs.replace(base, shape=of), ModelSpec(name=name, shape=of, slo=base.slo, adapter=what)


class Box:
    """One host mind, its clock, and everything that it ever decided."""

    def __init__(self, *nodes, policies=None, models=("wren", "owl"), profiles=None, up=None):
        self.now = 0.0
        self.mind = HostMind(nodes or (node(),), policies)
        self.decided = []
        self._asked = 0
        for spec in nodes or (node(),):
            if up is None or spec.id in up:
                self(reports.NodeUp(node_id=spec.id, memory_bytes=spec.memory_bytes))
        for one in models:
            self(events.ModelAdded(spec=one if isinstance(one, ModelSpec) else model(one)))
        for known in (profile(),) if profiles is None else profiles:
            self(events.ProfileKnown(profile=known))

    def __call__(self, event, after=0.0):
        """Let something happen; returns what was decided."""
        self.now += after
        actions = self.mind.step(event, self.now)
        check(self.mind)
        self.decided += actions
        return actions

    def shape_of(self, name="wren", *, tier=Tier.LATENCY_SENSITIVE, prompt=100, most=50, **more):
        self._asked += 1
        values = {"id": f"req-{self._asked}", "slo": SLO, "arrived_s": self.now, **more}
        return RequestShape(model=name, prompt_tokens=prompt, max_tokens=most, tier=tier, **values)

    def ask(self, name="wren", *, after=0.0, **more):
        """A request arrives."""
        self.now += after
        return self(events.RequestArrived(request=self.shape_of(name, **more)))

    def tick(self, after=0.0):
        return self(events.ClockTicked(), after)

    def load(self, name="wren"):
        """Take an instance through loading to resident: returns its id."""
        loads = [each for each in self(events.WarmUpAsked(name=name)) if isinstance(each, LoadInstance)]
        self.report(loads[0].instance_id, ModelState.WARM)
        self.report(loads[0].instance_id, ModelState.RESIDENT)
        return loads[0].instance_id

    def report(self, instance_id, state, *, after=0.0, held_mib=None, kv_mib=0):
        """A node says where an instance is."""
        usual = {ModelState.WARM: 20, ModelState.RESIDENT: 320}.get(state, 0)
        held_bytes = (usual if held_mib is None else held_mib) * MIB
        node_id = instance_id.split("@")[1].split("#")[0]
        return self(
            reports.InstanceReported(
                node_id=node_id, instance_id=instance_id, state=state, held_bytes=held_bytes,
                kv_bytes=kv_mib * MIB, kv_used_bytes=0,
            ),
            after,
        )  # fmt: skip

    def iterate(self, instance_id, *rows, after=0.05):
        """An iteration ran."""
        self.now += after
        node_id = instance_id.split("@")[1].split("#")[0]
        return self(
            reports.IterationReported(
                node_id=node_id, instance_id=instance_id, started_s=self.now - after, duration_s=after,
                predicted_s=after, rows=rows, because="test",
            )
        )  # fmt: skip

    def finish(self, instance_id, *request_ids, tokens=1):
        """Requests end with one last iteration."""
        rows = [
            reports.RowReport(request_id=each, tokens=tuple(range(tokens)), finish=FinishReason.STOP)
            for each in request_ids
        ]
        return self.iterate(instance_id, *rows)

    def state(self, instance_id):
        return self.mind.fleet.instances[instance_id].state


def row(request_id, *, prefilled=0, tokens=0, finish=None):
    return reports.RowReport(request_id=request_id, prefilled=prefilled, tokens=(7,) * tokens, finish=finish)


def kinds(actions):
    return [type(each).__name__ for each in actions]


def only(kind, actions):
    found = [each for each in actions if isinstance(each, kind)]
    assert len(found) == 1, kinds(actions)
    return found[0]
