"""A node mind, driven by a scenario's words; and a device that takes exactly the predicted time."""

import msgspec

from llmhostd.domain import commands
from llmhostd.domain import node_events as events
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId, RequestId, ShapeKey
from llmhostd.domain.model import (
    AdapterSlots,
    Architecture,
    ComputePrecision,
    KvPrecision,
    ModelShape,
    ModelState,
    Slo,
    WeightFormat,
)
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.request import FinishReason, RequestShape, Tier
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.node.core import NodeMind
from llmhostd.node.invariants import check

MB = 1_000_000
NODE = NodeId("cpu0")
SPEEDS = {"fast": (0.010, 0.0002), "slow": (0.050, 0.001)}
"""Seconds to read the weights, and per token."""


def shape_of(layers):
    architecture = Architecture(
        family="llama", layers=layers, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=1024, vocab=8000,
        max_context_tokens=8192, norm_eps=1e-5, rope_theta=1e4,
    )  # fmt: skip
    return ModelShape(
        architecture=architecture, weights=WeightFormat.BF16, compute=ComputePrecision.BF16, kv=KvPrecision.U8,
        weight_bytes=80 * MB, kv_bytes_per_token=31250,
    )  # fmt: skip


def profile_of(speed, shape, first_run_s=0.3):
    step_s, token_s = SPEEDS[speed]
    chunks = [(chunk, past) for chunk in (8, 64, 512) for past in (0, 1024)]
    batches = [(batch, context) for batch in (1, 8, 64) for context in (64, 1024)]
    return Profile(
        shape_key=ShapeKey(shape.key), hardware_key=HardwareKey("box"),
        prefill=tuple(PrefillSample(chunk_tokens=c, past_tokens=p, seconds=step_s + c * token_s) for c, p in chunks),
        decode=tuple(DecodeSample(batch=b, context_tokens=c, seconds=step_s + b * token_s) for b, c in batches),
        load_s=0.5, first_run_s=first_run_s, resident_bytes=100 * MB, warm_bytes=20 * MB,
    )  # fmt: skip


def known_profile(speed, shape):
    """What a host knows of a model that it has loaded: `unmeasured` nothing, `estimated` what others suggest."""
    if speed == "unmeasured":
        return None
    if speed == "estimated":
        return msgspec.structs.replace(profile_of("slow", shape), measured=False)
    return profile_of(speed, shape)


def options(words):
    """`prompt 100 flex ttft 2` -> {"prompt": 100.0, "flex": True, "ttft": 2.0}."""
    found, words = {}, list(words)
    while words:
        name = words.pop(0)
        numeric = words and words[0].replace(".", "", 1).lstrip("-").isdigit()
        found[name] = float(words.pop(0)) if numeric else True
    return found


class NodeScript:
    """Understands scenario lines; see `tests/scenarios/node`."""

    def __init__(self):
        self.mind = None
        self.running = None
        self.resizing = {}
        self.shapes = {}
        self.said = {}
        self.most = {}

    def __call__(self, now, words):
        verb, *rest = words
        if verb == "run":
            return self.run(now, int(rest[0]))
        if verb == "sums":
            return self.sums(now)
        return self.tell(getattr(self, verb)(now, *rest), now)

    def tell(self, event, now):
        if event is None:
            return []
        lines = []
        for action in self.mind.step(event, now):
            self.note(action)
            lines.append(line_of(action))
        check(self.mind)
        return lines

    def note(self, action):
        if isinstance(action, events.RunIteration):
            self.running = action
        elif isinstance(action, events.ResizeKv):
            self.resizing[action.instance_id] = action

    # The words.

    def node(self, now, megabytes, *words):
        """`node 400 lmin 4096 watermark 0 copy 50`: its memory, policies that are not our defaults, ms a copied MB."""
        given = options(words)
        spec = NodeSpec(
            id=NODE, engine="none", hardware_key=HardwareKey("box"), cores=(0,), memory_bytes=int(megabytes) * MB
        )
        self.mind = NodeMind(
            spec,
            kv_demand=KvDemandPolicy(least_tokens=int(given.get("lmin", KvDemandPolicy().least_tokens))),
            watermark=WatermarkPolicy(
                watermark=given.get("watermark", WatermarkPolicy().watermark),
                copy_s_per_byte=given.get("copy", 0.0) / 1000 / MB,
            ),
        )

    def load(self, now, name, speed="fast", target="warm", _slots="slots", slots=0):
        """`load a fast warm slots 2`: with room for adapters, of which one comes into a slot in 4 ms."""
        shape = self.shapes.setdefault(name, shape_of(len(self.shapes) + 1))
        if slots:
            room = AdapterSlots(slots=int(slots), rank=8, modules=("self_attn.q_proj",), slot_bytes=6 * MB)
            shape = self.shapes[name] = msgspec.structs.replace(shape, adapters=room)
        return commands.LoadInstance(
            node_id=NODE, instance_id=InstanceId(name), model=ModelName(name), shape=shape, target=ModelState(target),
            profile=known_profile(speed, shape), because="asked for",
        )  # fmt: skip

    def loaded(self, now, name, *filling):
        """`loaded a filling`: its graphs are there, its weights are not all."""
        return events.InstanceLoaded(
            instance_id=InstanceId(name), held_bytes=20 * MB, kv_bytes_per_block=MB, block_tokens=32,
            filling=bool(filling),
        )  # fmt: skip

    def far(self, now, name, speed="fast"):
        """`far a fast`: to be loaded; its weights come over a network."""
        return msgspec.structs.replace(self.load(now, name, speed), arriving=True)

    def near(self, now, name):
        return events.WeightsNear(instance_id=InstanceId(name))

    def read(self, now, name, how_much):
        """`read a more`, `read a all`: weights came."""
        return events.WeightsRead(instance_id=InstanceId(name), all_read=how_much == "all")

    def begun(self, now):
        """The running iteration lacks weights."""
        action, self.running = self.running, None
        return events.IterationBegun(instance_id=action.instance_id, duration_s=0.01)

    def emptied(self, now, name):
        return events.InstanceEmptied(instance_id=InstanceId(name))

    def broken(self, now, name):
        return events.InstanceBroken(instance_id=InstanceId(name), because="its first iteration failed")

    def weighed(self, now, name, megabytes, blocks, _sharing="sharing", shared=0):
        return events.InstanceWeighed(
            instance_id=InstanceId(name), held_bytes=int(megabytes) * MB, kv_blocks=int(blocks),
            shared_blocks=int(shared),
        )  # fmt: skip

    def budget(self, now, megabytes):
        return events.BudgetChanged(memory_bytes=int(megabytes) * MB, because="others need memory")

    def sums(self, now):
        """Not an event: what the node says of its memory."""
        report = self.mind.memory_report()
        sums = {name: getattr(report, f"{name}_bytes") // MB for name in ("budget", "promised", "held", "used")}
        return [" ".join(f"{name} {size}" for name, size in sums.items())]

    def gone(self, now, name):
        return events.InstanceGone(instance_id=InstanceId(name))

    def measured(self, now, name, speed="fast", stage="fine"):
        profile = profile_of(speed, self.shapes[name])
        return events.ProfileUpdated(instance_id=InstanceId(name), profile=profile, complete=stage == "fine")

    def learn(self, now, name, speed):
        """`learn a estimated`: the host hands on what it knows of a model by now."""
        known = known_profile(speed, self.shapes[name])
        return commands.LearnProfile(node_id=NODE, instance_id=InstanceId(name), profile=known, because="known now")

    def submit(self, now, name, _on, instance, *words):
        given = options(words)
        shape = RequestShape(
            id=RequestId(name), model=ModelName(instance), prompt_tokens=int(given.get("prompt", 100)),
            max_tokens=int(given.get("max", 20)), tokens_out=int(given.get("out", 0)),
            tier=Tier.BEST_EFFORT if "flex" in given else Tier.LATENCY_SENSITIVE, arrived_s=now - given.get("age", 0),
            slo=Slo(ttft_s=given.get("ttft", 2.0), tpot_s=given.get("tpot", 0.2)),
            adapter=words[words.index("adapter") + 1] if "adapter" in words else "",
        )  # fmt: skip
        self.said[name], self.most[name] = shape.tokens_out, shape.max_tokens
        return commands.SubmitRequest(node_id=NODE, instance_id=InstanceId(instance), request=shape, because="it fits")

    def stage(self, now, name, _on, instance, _tokens="out", out=0, _known="known", known=0, *words):
        """`stage r1 on a out 3 known 0 prompt 100`: what is to come here, and has said 3 tokens elsewhere so far."""
        command = self.submit(now, name, _on, instance, "out", str(out), *words)
        return commands.StageRequest(
            node_id=NODE, instance_id=command.instance_id, request=command.request, known_tokens=int(known),
            because="it is to come",
        )  # fmt: skip

    def cancel(self, now, name):
        return commands.CancelRequest(node_id=NODE, request_id=RequestId(name), because="caller gone")

    def recall(self, now, name):
        return commands.RecallRequest(node_id=NODE, request_id=RequestId(name), because="it moves")

    def rest(self, now, name):
        return commands.RestInstance(node_id=NODE, instance_id=InstanceId(name), because="idle for long")

    def unload(self, now, name):
        return commands.UnloadInstance(node_id=NODE, instance_id=InstanceId(name), because="idle for very long")

    def measure(self, now, name, asked=""):
        name = InstanceId(name)
        return commands.MeasureProfile(node_id=NODE, instance_id=name, because="asked for", asked=bool(asked))

    def prefix(self, now, name, tokens):
        return events.PrefixMatched(request_id=RequestId(name), cached_tokens=int(tokens))

    def idle(self, now):
        return events.DeviceIdle()

    def done(self, now, *stopped):
        """The running iteration ends; requests in `stopped` say their last word."""
        action, self.running = self.running, None
        rows = []
        for row in action.rows:
            self.said[row.request_id] += row.sample
            full = row.sample and self.said[row.request_id] >= self.most[row.request_id]
            finish = FinishReason.STOP if row.request_id in stopped else FinishReason.LENGTH if full else None
            rows.append(
                events.RowDone(
                    request_id=row.request_id, computed_tokens=row.tokens, new_tokens=int(row.sample), finish=finish
                )
            )
        return events.IterationDone(instance_id=action.instance_id, duration_s=action.predicted_s, rows=tuple(rows))

    def packed(self, now, extra_s):
        """The running iteration ends, later than predicted: weights were packed beside it."""
        predicted_s = self.running.predicted_s
        return msgspec.structs.replace(self.done(now), duration_s=predicted_s + float(extra_s), settled=False)

    def fail(self, now):
        """The running iteration comes to nothing."""
        action, self.running = self.running, None
        return events.IterationFailed(instance_id=action.instance_id, duration_s=0.01, because="the engine failed")

    def resized(self, now, name=None, blocks=None):
        """A resize ends: the oldest, unless named."""
        action = self.resizing.pop(InstanceId(name) if name else next(iter(self.resizing)))
        size = action.kv_blocks if blocks is None else int(blocks)
        return events.KvResized(instance_id=action.instance_id, kv_blocks=size, took_s=0.001)

    def run(self, now, turns):
        """The device goes on by itself for so many turns, or until there is nothing to do."""
        lines = []
        for _ in range(turns):
            caused = self.tell(events.DeviceIdle(), now)
            if not caused:
                return [*lines, f"{now:.3f} nothing"]
            lines += [f"{now:.3f} {line}" for line in caused]
            if self.running:
                now += self.running.predicted_s
                lines += [f"{now:.3f} {line}" for line in self.tell(self.done(now), now)]
            elif self.resizing:
                now += 0.001
                lines += [f"{now:.3f} {line}" for line in self.tell(self.resized(now), now)]
            else:
                now += 0.020
        return lines


def line_of(action):
    """One action as a scenario says it."""
    kind = type(action).__name__
    match action:
        case events.RunIteration():
            rows = " ".join(f"{row.request_id}:{row.tokens}{'*' if row.sample else ''}" for row in action.rows)
            return f"{kind} {action.instance_id} [{rows}] {action.predicted_s * 1000:.1f} ms ({action.because})"
        case events.ResizeKv():
            return f"{kind} {action.instance_id} to {action.kv_blocks} ({action.because})"
        case events.ReportProfile():
            factors = (
                f"prefill x {action.profile.prefill_correction:.2f}, decode x {action.profile.decode_correction:.2f}"
            )
            return f"{kind} {action.instance_id} ({factors})"
        case events.ReturnRequest() if action.staged:
            return f"{kind} {action.request_id}, staged ({action.because})"
        case events.DropRequest() | events.FailRequest() | events.ReturnRequest():
            return f"{kind} {action.request_id} ({action.because})"
        case _:
            return f"{kind} {action.instance_id} ({action.because})"
