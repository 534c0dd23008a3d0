"""Two minds with a real runner below: a box whose tokens are a function of the context, and whose wires have any delay.

Nodes are node minds, real runners and the profiled engine, so that a stream that moved with a token lost, doubled or
changed goes on with other tokens than `llmhostd_profiled.tokens.continuation` says. As in a worker, commands are heard
between two iterations. What is under way ends when whoever plays says so.
"""

import sys
from collections import deque
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "host"))

import msgspec
from boxes import MIB, Box, model, node, profile, shape
from llmhostd_profiled.instance import ProfiledInstance
from llmhostd_profiled.tokens import continuation

from llmhostd.domain import commands, events, reports
from llmhostd.domain import node_events as does
from llmhostd.domain.actions import DeclineMove, RefuseRequest
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Sampling
from llmhostd.engines.frames import StageFrame, SubmitFrame
from llmhostd.engines.interface import ModuleRange
from llmhostd.engines.runner import Runner
from llmhostd.node import invariants
from llmhostd.node.core import NodeMind

__all__ = ["MIB", "Shell", "node", "profile"]

SHAPE = shape()
WHOLE = ModuleRange(first=0, end=SHAPE.architecture.layers, embedding=True, head=True)
AT_ONCE = msgspec.structs.replace(profile(step_s=1e-9, prefill_token_s=1e-12), first_run_s=0.0)
"""What the engine waits: nothing. The minds plan with a profile as of a real machine."""


class ProfiledNode:
    """A worker process from its start to its death, with a wire in each direction."""

    def __init__(self, spec):
        self.spec = spec
        self.mind = NodeMind(spec)
        self.commands, self.reports = deque(), deque()
        self.runners, self.states = {}, {}
        self.where, self.waiting = {}, {}
        self.doing = self.building = None
        self.now = 0.0
        self.iterations = 0

    def obey(self, frame, now):
        """Hear what the daemon sends; nothing computes meanwhile."""
        assert self.doing is None
        self.now = now
        match frame:
            case SubmitFrame() | StageFrame():
                self.tell(frame.command, *self.take_in(frame))
            case commands.LoadInstance():
                self.runners[frame.instance_id], self.waiting[frame.instance_id] = None, {}
                self.states[frame.instance_id] = ModelState.LOADING
                self.tell(frame)
            case _:
                self.tell(frame)

    def take_in(self, frame):
        name, instance_id = frame.command.request.id, frame.command.instance_id
        if isinstance(frame, StageFrame) and frame.command.known_tokens:
            if name in self.where and self.runners[self.where[name]]:
                self.runners[self.where[name]].stage(name, frame.tokens)
            return ()
        if instance_id not in self.runners:
            return ()
        self.where[name] = instance_id
        if self.runners[instance_id] is None:
            self.waiting[instance_id][name] = frame
            return ()
        return self.enter(instance_id, frame)

    def enter(self, instance_id, frame):
        runner, request = self.runners[instance_id], frame.command.request
        if isinstance(frame, StageFrame):
            cached = runner.stage(request.id, frame.tokens)
        else:
            cached = runner.submit(request.id, frame.context, frame.sampling, request.tokens_out)
        return [does.PrefixMatched(request_id=request.id, cached_tokens=cached)] if cached else []

    def turn(self, now):
        """The device is free; says whether its mind found anything to do."""
        self.now = now
        return self.doing is None and self.tell(does.DeviceIdle())

    def finish(self, now):
        """The iteration that runs ends."""
        self.now = now
        action, self.doing = self.doing, None
        runner = self.runners[action.instance_id]
        rows = runner.run(action.rows) if action.rows else ()
        self.iterations += 1
        for row in rows:
            if row.finish:
                del self.where[row.request_id]
        self.say(
            reports.IterationReported, instance_id=action.instance_id, started_s=now - action.predicted_s,
            duration_s=action.predicted_s, predicted_s=action.predicted_s, rows=rows, because=action.because,
        )  # fmt: skip
        if self.states[action.instance_id] is ModelState.WARM or any(row.finish for row in rows):
            self.report(action.instance_id, ModelState.RESIDENT)
        done = tuple(
            does.RowDone(
                request_id=row.request_id, computed_tokens=plan.tokens, new_tokens=len(row.tokens), finish=row.finish
            )
            for row, plan in zip(rows, action.rows, strict=True)
        )
        matched = [does.PrefixMatched(request_id=one, cached_tokens=tokens) for one, tokens in runner.match_again()]
        iterated = does.IterationDone(instance_id=action.instance_id, duration_s=action.predicted_s, rows=done)
        self.tell(iterated, *matched, *self.weighed(action.instance_id))
        runner.check()

    def built(self, now):
        """The load under way ends."""
        self.now = now
        instance_id, self.building = self.building, None
        instance = ProfiledInstance(SHAPE, WHOLE, AT_ONCE, self.spec)
        self.runners[instance_id] = Runner(instance)
        self.report(instance_id, ModelState.WARM)
        loaded = does.InstanceLoaded(
            instance_id=instance_id, held_bytes=AT_ONCE.warm_bytes, kv_bytes_per_block=instance.kv_bytes_per_block,
            block_tokens=instance.block_tokens,
        )  # fmt: skip
        waiting, self.waiting[instance_id] = self.waiting[instance_id], {}
        self.tell(loaded, *(event for frame in waiting.values() for event in self.enter(instance_id, frame)))

    def squeeze(self, memory_bytes, now):
        """What the node may hold changes."""
        self.now = now
        self.say(reports.NodeMemoryChanged, memory_bytes=memory_bytes, because="others use more or less")
        self.tell(does.BudgetChanged(memory_bytes=memory_bytes, because="others use more or less"))

    def tell(self, *said):
        pending, decided = list(said), False
        while pending:
            for action in self.mind.step(pending.pop(0), self.now):
                decided = True
                pending += self.perform(action)
            invariants.check(self.mind)
        return decided

    def perform(self, action):
        match action:
            case does.RunIteration():
                self.doing = action
            case does.ResizeKv():
                self.runners[action.instance_id].resize(action.kv_blocks)
                self.report(action.instance_id)
                return [does.KvResized(instance_id=action.instance_id, kv_blocks=action.kv_blocks)]
            case does.BeginLoad():
                self.building = action.instance_id
            case does.BeginRest():
                self.runners[action.instance_id] = None
                self.report(action.instance_id, ModelState.LOADING)
                return [does.InstanceEmptied(instance_id=action.instance_id)]
            case does.BeginUnload():
                self.report(action.instance_id, ModelState.COLD)
                del self.runners[action.instance_id]
                return [does.InstanceGone(instance_id=action.instance_id)]
            case does.AbandonLoad():
                del self.runners[action.instance_id]
                self.say(reports.LoadFailed, instance_id=action.instance_id, error=action.because)
                return [does.InstanceGone(instance_id=action.instance_id)]
            case does.DropRequest() | does.ReturnRequest():
                return self.let_go(action)
            case does.CallOffRest():
                self.say(reports.RestCalledOff, instance_id=action.instance_id, because=action.because)
            case does.ReportProfile():
                self.say(reports.ProfileMeasured, instance_id=action.instance_id, profile=action.profile)
            case _:
                raise AssertionError(action)
        return ()

    def let_go(self, action):
        instance_id = self.where.pop(action.request_id, None)
        if instance_id is None:
            return ()
        if self.waiting[instance_id].pop(action.request_id, None) is None:
            self.runners[instance_id].drop(action.request_id)
        if isinstance(action, does.ReturnRequest):
            because, staged = action.because, action.staged
            self.say(reports.RequestReturned, request_id=action.request_id, because=because, staged=staged)
        return self.weighed(instance_id)

    def weighed(self, instance_id):
        runner = self.runners[instance_id]
        if runner is None:
            return []
        held_bytes, kv_blocks = runner.instance.held_bytes(), runner.instance.kv_blocks
        return [does.InstanceWeighed(
            instance_id=instance_id, held_bytes=held_bytes, kv_blocks=kv_blocks, shared_blocks=runner.shared_blocks
        )]  # fmt: skip

    def report(self, instance_id, state=None):
        self.states[instance_id] = state or self.states[instance_id]
        runner, cold = self.runners[instance_id], state is ModelState.COLD
        here = runner is not None and not cold
        self.say(
            reports.InstanceReported, instance_id=instance_id, state=self.states[instance_id],
            held_bytes=runner.instance.held_bytes() if here else 0, kv_bytes=runner.kv_bytes if here else 0,
            kv_used_bytes=runner.kv_used_bytes if here else 0,
        )  # fmt: skip

    def say(self, kind, **fields):
        self.reports.append(kind(node_id=self.spec.id, **fields))

    @property
    def kv_used_bytes(self):
        """KV that requests own, staged ones included."""
        return sum(one.kv_used_bytes for one in self.runners.values() if one)


class Shell:
    """The daemon between callers and minds: prompts, streams, and whose tokens count."""

    def __init__(self, *specs, names, policies=None, profiles=None):
        known = profiles or [profile(hardware=key) for key in dict.fromkeys(spec.hardware_key for spec in specs)]
        self.box = Box(*specs, policies=policies, models=[model(name, SHAPE) for name in names], profiles=known)
        self.nodes = {spec.id: ProfiledNode(spec) for spec in specs}
        self.prompts, self.streams, self.most, self.told, self.over = {}, {}, {}, {}, {}
        self.expected = {}
        self.heard = lambda request_id, now: None
        """Called with every token that a caller gets."""

    def ask(self, name, prompt, most, **more):
        request = self.box.shape_of(name, prompt=len(prompt), most=most, **more)
        self.prompts[request.id], self.streams[request.id], self.most[request.id] = tuple(prompt), [], most
        self.expected[request.id] = continuation(prompt, most, SHAPE.architecture)
        self.hear(events.RequestArrived(request=request))
        return request.id

    def leave(self, request_id):
        self.over[request_id] = "left"
        self.hear(events.RequestCancelled(request_id=request_id))

    def hear(self, event):
        """Text first, then the decisions."""
        if isinstance(event, reports.IterationReported):
            self.stream(event)
        for action in self.box(event):
            match action:
                case RefuseRequest():
                    assert not self.streams[action.request_id]
                    self.over[action.request_id] = "refused"
                case DeclineMove():
                    pass
                case _:
                    self.nodes[action.node_id].commands.append(self.frame(action))
        for request_id, request in self.box.mind.fleet.requests.items():
            assert request.load.tokens_out == len(self.streams[request_id]), "mind and shell disagree"

    def frame(self, action):
        if not isinstance(action, commands.SubmitRequest | commands.StageRequest):
            return action
        name = action.request.id
        context = (*self.prompts[name], *self.streams[name])
        assert len(context) == action.request.context_tokens
        if isinstance(action, commands.StageRequest):
            return StageFrame(command=action, tokens=context[action.known_tokens :])
        self.told[name] = (action.node_id, action.instance_id)
        sampling = Sampling(max_tokens=self.most[name], temperature=0.0, ignore_eos=True)
        return SubmitFrame(command=action, context=context, sampling=sampling)

    def stream(self, report):
        for row in report.rows:
            counts = self.told.get(row.request_id) == (report.node_id, report.instance_id)
            if not counts or row.request_id in self.over:
                continue
            said = self.streams[row.request_id]
            said += row.tokens
            assert said == self.expected[row.request_id][: len(said)], "lost, doubled or changed"
            if row.tokens:
                self.heard(row.request_id, self.box.now)
            if row.finish:
                self.over[row.request_id] = "finished"

    def kill(self, node_id):
        """A worker dies, and is there again at once."""
        spec = self.nodes[node_id].spec
        self.nodes[node_id] = ProfiledNode(spec)
        self.hear(reports.NodeDown(node_id=node_id, suspect=None, because="killed by signal 9"))
        self.hear(reports.NodeUp(node_id=node_id, memory_bytes=spec.memory_bytes))

    def live(self):
        return [name for name in self.streams if name not in self.over]
