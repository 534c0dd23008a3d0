"""A host mind, driven by a scenario's words. Nodes are silent: a scenario says what they report.

node NAME MIB [at HARDWARE]       a node of the box, up at once (before anything else); gpu* are GPUs
model NAME [mib N] [layers N]     a model of N MiB (300) with its own or the common shape
adapter NAME BASE [rank N]        an adapter; its base is to have two slots of that rank (8) from now on
plain BASE                        its last adapter is gone
profiled MODEL [HARDWARE N] ...   its shape was measured on every node; on some hardware, N times slower
ask ID MODEL [prompt N] [most N] [flex]
leave ID                          the caller goes away
state INSTANCE STATE [held MIB] [kv MIB]
ran INSTANCE ID[:N][*][.] ...     N prompt tokens, * a token, . the last one
failed INSTANCE ERROR...          a load; `return ID [NODE] [staged]`, `broke ID` for a request
move ID NODE | movemodel MODEL NODE
down NODE [INSTANCE] | up NODE [MIB] | memory NODE MIB
was MODEL NODE STATE UNUSED_S      when an earlier run of the daemon ended
warm|measure|unload|remove|release MODEL, drain|undrain NODE, tick, measured INSTANCE [coarse], show
"""

import msgspec
from boxes import MIB, SLO, Box, adapter, model, node, profile, row, shape

from llmhostd.domain import commands, events, reports
from llmhostd.domain.actions import DeclineMove, GiveUpPlacement, HostAction, QuarantineModel, RefuseRequest
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import FinishReason, RequestShape, Tier
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.policies import HostPolicies

POLICIES = HostPolicies(keep_alive=KeepAlivePolicy(per_reload=600.0))


class HostScript:
    """Understands scenario lines; see `tests/scenarios/host`."""

    def __init__(self):
        self.nodes = []
        self.box = None

    def __call__(self, now, words):
        verb, *rest = words
        if verb == "node":
            self.nodes.append(node(rest[0], int(rest[1]), rest[3] if len(rest) > 2 else "test"))
            return []
        if self.box is None:
            self.box = Box(*self.nodes, policies=POLICIES, models=(), profiles=())
        self.box.now = now
        caused = getattr(self, f"_{verb}")(*rest)
        return [line if isinstance(line, str) else show(line) for line in caused]

    def _model(self, name, *more):
        options = dict(zip(more[::2], map(int, more[1::2]), strict=True))
        of = shape(layers=options.get("layers", 12), weight_mib=options.get("mib", 300))
        return self.box(events.ModelAdded(spec=model(name, of)))

    def _adapter(self, name, base, *more):
        rank = int(more[1]) if more else 8
        spec, own = adapter(name, self.box.mind.fleet.models[base].spec, rank=rank, mib=rank // 2)
        return [*self.box(events.ModelAdded(spec=spec)), *self.box(events.ModelAdded(spec=own))]

    def _plain(self, name):
        spec = self.box.mind.fleet.models[name].spec
        return self.box(events.ModelAdded(spec=msgspec.structs.replace(spec, shape=spec.shape.without_room())))

    def _profiled(self, name, *slower):
        of = self.box.mind.fleet.models[name].spec.shape
        mib = of.weight_bytes // MIB + 20
        times = {one.hardware_key: 1.0 for one in self.nodes} | dict(
            zip(slower[::2], map(float, slower[1::2]), strict=True)
        )
        known = [
            profile(of, hardware=key, prefill_token_s=0.0002 * n, step_s=0.020 * n, resident_mib=mib)
            for key, n in times.items()
        ]
        return [action for one in known for action in self.box(events.ProfileKnown(profile=one))]

    def _ask(self, request_id, name, *more):
        options = dict(zip(more[:-1:2], more[1::2], strict=False))
        request = RequestShape(
            id=request_id, model=name, prompt_tokens=int(options.get("prompt", 100)),
            max_tokens=int(options.get("most", 50)), slo=SLO, arrived_s=self.box.now,
            tier=Tier.BEST_EFFORT if "flex" in more else Tier.LATENCY_SENSITIVE,
        )  # fmt: skip
        return self.box(events.RequestArrived(request=request))

    def _leave(self, request_id):
        return self.box(events.RequestCancelled(request_id=request_id))

    def _state(self, instance_id, state, *more):
        options = dict(zip(more[::2], map(int, more[1::2]), strict=True))
        return self.box.report(
            instance_id, ModelState(state), held_mib=options.get("held"), kv_mib=options.get("kv", 0)
        )

    def _ran(self, instance_id, *parts):
        rows = []
        for part in parts:
            request_id, _, did = part.rstrip(".*").partition(":")
            finish = FinishReason.STOP if part.endswith(".") else None
            rows.append(row(request_id, prefilled=int(did or 0), tokens=int("*" in part), finish=finish))
        return self.box.iterate(instance_id, *rows, after=0.0)

    def _failed(self, instance_id, *error):
        name = instance_id.split("@")[1].split("#")[0]
        return self.box(reports.LoadFailed(node_id=name, instance_id=instance_id, error=" ".join(error)))

    def _return(self, request_id, name=None, staged=None):
        name = name or self._where(request_id)
        return self.box(
            reports.RequestReturned(
                node_id=name, request_id=request_id, because="no KV block is free", staged=staged is not None
            )
        )

    def _broke(self, request_id):
        name = self._where(request_id)
        return self.box(reports.RequestFailed(node_id=name, request_id=request_id, error="NaN"))

    def _where(self, request_id):
        fleet = self.box.mind.fleet
        return fleet.instances[fleet.requests[request_id].instance_id].node_id

    def _down(self, name, suspect=None):
        return self.box(reports.NodeDown(node_id=name, suspect=suspect, because="killed by signal 11"))

    def _up(self, name, mib=None):
        memory_bytes = self.box.mind.fleet.nodes[name].spec.memory_bytes if mib is None else int(mib) * MIB
        return self.box(reports.NodeUp(node_id=name, memory_bytes=memory_bytes))

    def _memory(self, name, mib):
        because = "others use more"
        return self.box(reports.NodeMemoryChanged(node_id=name, memory_bytes=int(mib) * MIB, because=because))

    def _measured(self, instance_id, *coarse):
        instance = self.box.mind.fleet.instances[instance_id]
        known = profile(instance.shape, hardware=instance.profile_key[1])
        known = msgspec.structs.replace(known, coarse=bool(coarse))
        return self.box(reports.ProfileMeasured(node_id=instance.node_id, instance_id=instance_id, profile=known))

    def _warm(self, name):
        return self.box(events.WarmUpAsked(name=name))

    def _was(self, name, node_id, state, unused_s):
        """It was loaded when an earlier run ended."""
        resident = state == "resident"
        known = events.PlacementKnown(model=name, node_id=node_id, resident=resident, unused_s=float(unused_s))
        return self.box(known)

    def _measure(self, name):
        return self.box(events.MeasureAsked(name=name))

    def _unload(self, name):
        return self.box(events.UnloadAsked(name=name))

    def _remove(self, name):
        return self.box(events.ModelRemoved(name=name))

    def _release(self, name):
        return self.box(events.ModelReleased(name=name))

    def _drain(self, name):
        return self.box(events.DrainAsked(node_id=name))

    def _undrain(self, name):
        return self.box(events.DrainEnded(node_id=name))

    def _move(self, request_id, name):
        return self.box(events.MoveAsked(request_id=request_id, node_id=name))

    def _movemodel(self, model, name):
        """As the daemon asks for all that a model has a place for, unless it is there to stay."""
        seen = self.box.mind.snapshot(self.box.now)
        there = [one.id for one in seen.instances if one.node_id == name]
        return [
            action
            for one in sorted(seen.requests, key=lambda one: one.id)
            if one.model == model and one.instance_id
            if one.instance_id not in there or one.moving_to or one.follows_to
            for action in self._move(one.id, name)
        ]

    def _tick(self):
        return self.box(events.ClockTicked())

    def _show(self):
        seen = self.box.mind.snapshot(self.box.now)
        for one in seen.nodes:
            state = "draining" if one.draining else "up" if one.up else "down"
            yield f"{one.id}: {state}, {one.free_bytes / MIB:.0f} of {one.memory_bytes / MIB:.0f} MiB free"
        for one in seen.instances:
            yield f"{one.id}: {one.state}, {one.running} running"
        for one in seen.requests:
            going = f", on its way to {one.moving_to}" if one.moving_to else ""
            going += f", to follow to {one.follows_to}" if one.follows_to else ""
            said = f"{one.id}: {one.phase}, {one.tokens_out} tokens, {one.moves} moves"
            yield f"{said}, headroom {one.headroom_s:.2f} s{going}"


def show(action: HostAction) -> str:
    """One action as a scenario says it."""
    kind = type(action).__name__
    match action:
        case commands.SubmitRequest():
            request = action.request
            about = f"{request.id} on {action.instance_id}"
            about += f" after {request.tokens_out} tokens" if request.tokens_out else ""
            about += f" with {request.grace_s:.2f} s of grace" if request.grace_s else ""
        case commands.StageRequest():
            brings = f"{action.known_tokens}..{action.request.context_tokens}"
            about = f"{action.request.id} on {action.instance_id}, tokens {brings}"
        case DeclineMove():
            about = f"{action.request_id} to {action.node_id}"
        case commands.CancelRequest() | commands.RecallRequest():
            about = f"{action.request_id} on {action.node_id}"
        case RefuseRequest():
            about = f"{action.request_id} {action.refusal}, retry after {action.retry_after_s:.1f} s"
        case QuarantineModel():
            about = action.model
        case GiveUpPlacement():
            about = f"{action.model} on {action.node_id}"
        case _:
            about = action.instance_id
    return f"{kind} {about} ({action.because})"
