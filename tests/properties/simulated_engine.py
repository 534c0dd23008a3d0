"""What does a worker do whose engine is only imagined? A real node mind, and everything that may go wrong below it.

Like `llmhostd.worker`, step by step, but nothing ends by itself: whoever plays decides when an operation ends and how
well. Holds the mind's books against what the engine has after every step.
"""

from collections import deque

import msgspec
from imagined_instances import RESIDENT_BYTES, WARM_BYTES, Hosted, Stay, answer_tokens
from simulated_builds import Builds

from llmhostd.domain import commands, reports
from llmhostd.domain import node_events as does
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import FinishReason
from llmhostd.node import invariants
from llmhostd.node.core import NodeMind

MIB = 1 << 20
COARSE_SAMPLES, ALL_SAMPLES = 2, 4


class SimulatedNode(Builds):
    """A worker process from its start to its death, with a wire in each direction."""

    def __init__(self, spec, profile_of):
        self.spec = spec
        self.mind = NodeMind(spec)
        self.commands, self.reports = deque(), deque()
        self.alive = True
        self.budget_bytes = spec.memory_bytes
        self.solid = True
        """Whether the budget never fell and the engine kept its word: then nothing may ever exceed the budget."""
        self.now = 0.0
        self._profile_of = profile_of
        self.hosted, self.where = {}, {}
        self.doing = None
        """The action that the device is busy with."""
        self.resizes, self.removals = deque(), deque()
        self.building = None
        self.spoilt = False
        """Whether the next sample of a profile breaks its instance."""

    # What the daemon says.

    def obey(self, command, now):
        self.now = now
        match command:
            case commands.LoadInstance():
                self.hosted.setdefault(command.instance_id, Hosted(command))
                self.tell(command)
            case commands.SubmitRequest():
                self.tell(command, *self._submit(command))
            case commands.StageRequest():
                self.tell(command, *self._stage(command))
            case _:
                self.tell(command)

    def set_budget(self, memory_bytes, now):
        self.now = now
        self.solid = self.solid and memory_bytes >= self.budget_bytes
        self.budget_bytes = memory_bytes
        self._tell_budget("others use more or less")

    # What ends.

    def turn(self, now):
        """The device is free: let the mind choose; says whether it chose anything."""
        self.now = now
        return self.doing is None and self.tell(does.DeviceIdle())

    def finish(self, now, luck="well"):
        """What the device does ends: well, or with an engine that fails, or breaks."""
        self.now = now
        action, self.doing = self.doing, None
        one = self.hosted.get(action.instance_id)
        assert one is not None, "the device works for an instance that is gone"
        if luck == "well" and one.filling:
            self.tell(does.IterationBegun(instance_id=one.id, duration_s=0.01), *self._weigh(one))
        elif luck == "well":
            self._iterated(one, action)
        elif not action.rows:
            self._give_up(one, "its first iteration failed", hopeless=luck == "breaks")
        else:
            self.tell(does.IterationFailed(instance_id=one.id, duration_s=0.01, because="the engine failed"))
            if luck == "breaks":
                self._give_up(one, "the engine lost it", hopeless=False)
            else:
                self.tell(*self._weigh(one))

    def resized(self, now, luck="well"):
        """The oldest resize ends."""
        self.now = now
        action = self.resizes.popleft()
        one = self.hosted.get(action.instance_id)
        if one is None or not one.weights_bytes:
            return
        if luck == "breaks":
            self._give_up(one, "its KV was left half moved", hopeless=False)
            return
        if luck == "well":
            one.kv_blocks = action.kv_blocks
        self._report(one)
        self.tell(does.KvResized(instance_id=one.id, kv_blocks=one.kv_blocks), *self._weigh(one))

    def removed(self, now, luck="well"):
        """The oldest removal ends; in the worst case the engine keeps what it had."""
        self.now = now
        one = self.hosted[self.removals.popleft()]
        left_bytes = one.weights_bytes if luck == "breaks" else 0
        one.weights_bytes = one.kv_blocks = one.samples = 0
        if left_bytes:
            self.solid = False
            self.budget_bytes = max(0, self.budget_bytes - left_bytes)
            self._tell_budget(f"{one.id} could not be destroyed")
        if one.resting:
            one.resting = False
            one.state = ModelState.LOADING
            self._report(one)
            self.tell(does.InstanceEmptied(instance_id=one.id))
        else:
            self._gone(one, "")

    def die(self):
        """Everything ends. What was said is still heard; what comes down now is lost. Says whose work it was on."""
        self.alive = False
        self.commands.clear()
        return self.doing.instance_id if self.doing else self.building

    @property
    def held_bytes(self):
        """What the engine has, in truth."""
        growing = {each.instance_id: each.kv_blocks for each in self.resizes}
        return sum(
            one.weights_bytes + max(one.kv_blocks, growing.get(one.id, 0)) * self._block_bytes(one)
            for one in self.hosted.values()
        ) + (WARM_BYTES if self._builds_from_nothing else 0)

    @property
    def at_rest(self):
        """Whether everything was said and heard, and nothing is under way."""
        return not (self.commands or self.reports or self.doing or self.resizes or self.removals or self.building)

    # Between the mind and the engine.

    def tell(self, *events):
        pending, decided = list(events), False
        while pending:
            for action in self.mind.step(pending.pop(0), self.now):
                decided = True
                pending += getattr(self, f"_{type(action).__name__}")(action)
            invariants.check(self.mind)
        self._compare()
        return decided

    def _compare(self):
        held = self.mind.memory.held
        assert self.held_bytes <= held.owned_bytes, f"the engine has {self.held_bytes}, the books {held.owned_bytes}"
        if self.solid:
            assert self.held_bytes <= self.budget_bytes, f"over-committed: {self.held_bytes} of {self.budget_bytes}"
            assert held.free_bytes >= 0, "the books are overdrawn, which was avoidable"
        for one in self.hosted.values():
            used = sum(-(-stay.computed // self.spec.block_tokens) for stay in one.stays.values())
            assert used <= one.kv_blocks, f"{one.id} uses {used} of {one.kv_blocks} KV blocks"

    def _RunIteration(self, action):  # noqa: N802 - named after the action
        assert self.doing is None, "the device was given two things at once"
        self.doing = action
        self.hosted[action.instance_id].weights_bytes = RESIDENT_BYTES
        return ()

    def _RunProfileSample(self, action):  # noqa: N802
        """Over before anything else is heard, as in a worker."""
        assert self.doing is None, "the device was given two things at once"
        one, spoilt = self.hosted[action.instance_id], self.spoilt
        one.weights_bytes, self.spoilt = RESIDENT_BYTES, False
        return self._break(one, "it failed while it was measured", hopeless=True) if spoilt else self._sampled(one)

    def _ResizeKv(self, action):  # noqa: N802
        self.resizes.append(action)
        return ()

    def _BeginRest(self, action):  # noqa: N802
        one = self.hosted[action.instance_id]
        assert not one.stays
        one.resting = True
        self.removals.append(one.id)
        return ()

    def _BeginUnload(self, action):  # noqa: N802
        one = self.hosted[action.instance_id]
        if one.broken:
            self._forget_requests_of(one)
            self.reports.append(self._load_failed(one, one.broken) if one.hopeless else self._state(one, cold=True))
        assert not one.stays
        one.state = ModelState.UNLOADING
        if one.weights_bytes:
            self.removals.append(one.id)
            return ()
        return self._gone_events(one, "")

    def _AbandonLoad(self, action):  # noqa: N802
        return self._gone_events(self.hosted[action.instance_id], action.because)

    def _ReportProfile(self, action):  # noqa: N802
        self._say(reports.ProfileMeasured, instance_id=action.instance_id, profile=action.profile)
        return ()

    def _CallOffRest(self, action):  # noqa: N802
        self._say(reports.RestCalledOff, instance_id=action.instance_id, because=action.because)
        return ()

    def _DropRequest(self, action):  # noqa: N802
        return self._weigh(self._forget(action.request_id))

    def _ReturnRequest(self, action):  # noqa: N802
        return self._give_back(reports.RequestReturned, action, because=action.because, staged=action.staged)

    def _FailRequest(self, action):  # noqa: N802
        return self._give_back(reports.RequestFailed, action, error=action.because)

    def _give_back(self, kind, action, **why):
        one = self._forget(action.request_id)
        if one is not None:
            self._say(kind, request_id=action.request_id, **why)
        return self._weigh(one)

    def _submit(self, command):
        name = command.request.id
        if name not in self.where:
            return self._take_in(command)
        one = self.where[name]
        assert one.id == command.instance_id
        if name in one.stays:
            stay = one.stays[name]
            assert stay.staged, f"{name} is on {self.spec.id} twice"
            stay.staged, stay.out = False, command.request.tokens_out
        else:
            one.waiting = [command if each.request.id == name else each for each in one.waiting]
        return ()

    def _stage(self, command):
        if not command.known_tokens:
            assert command.request.id not in self.where, f"{command.request.id} is on {self.spec.id} twice"
            return self._take_in(command)
        one = self.where.get(command.request.id)
        if one is not None and command.request.id in one.stays:
            stay = one.stays[command.request.id]
            assert stay.staged
            assert stay.context == command.known_tokens, "a round was lost"
            stay.out = command.request.tokens_out
        return ()

    def _take_in(self, command):
        one = self.hosted.get(command.instance_id)
        if one is None or one.broken:
            return ()
        self.where[command.request.id] = one
        if not one.weights_bytes or one.resting or one.state is ModelState.UNLOADING:
            one.waiting.append(command)
            return ()
        return self._enter(one, command)

    def _enter(self, one, command):
        request = command.request
        stay = one.stays[request.id] = Stay(request.prompt_tokens, request.tokens_out)
        stay.staged = isinstance(command, commands.StageRequest)
        free = one.kv_blocks - sum(-(-each.computed // self.spec.block_tokens) for each in one.stays.values())
        busy = self.doing is not None or any(each.instance_id == one.id for each in self.resizes)
        if request.prompt_tokens % 2 or free <= 0 or busy:
            return ()
        # Its prompt begins like an earlier one, whose blocks nobody has needed since.
        stay.computed = stay.cached = min(free, (stay.context - 1) // self.spec.block_tokens) * self.spec.block_tokens
        if not stay.cached:
            return ()
        return [does.PrefixMatched(request_id=request.id, cached_tokens=stay.cached), *self._weigh(one)]

    def _iterated(self, one, action):
        rows, done = [], []
        for plan in action.rows:
            stay = one.stays[plan.request_id]
            assert stay.computed + plan.tokens <= stay.context - stay.staged
            assert plan.sample == (stay.computed + plan.tokens == stay.context)
            stay.computed += plan.tokens
            prefilled, cached, stay.cached = plan.tokens + stay.cached, stay.cached, 0
            tokens = (stay.out,) if plan.sample else ()
            stay.out += len(tokens)
            finish = FinishReason.STOP if tokens and stay.out == answer_tokens(stay.prompt) else None
            rows.append(reports.RowReport(
                request_id=plan.request_id, prefilled=prefilled, cached=cached, tokens=tokens, finish=finish
            ))  # fmt: skip
            done.append(does.RowDone(
                request_id=plan.request_id, computed_tokens=plan.tokens, new_tokens=len(tokens), finish=finish
            ))  # fmt: skip
            if finish:
                del self.where[plan.request_id], one.stays[plan.request_id]
        self._say(
            reports.IterationReported, instance_id=one.id, started_s=self.now - action.predicted_s,
            duration_s=action.predicted_s, predicted_s=action.predicted_s, rows=tuple(rows), because=action.because,
        )  # fmt: skip
        if one.state is ModelState.WARM or any(row.finish for row in rows):
            one.state = ModelState.RESIDENT
            self._report(one)
        iterated = does.IterationDone(instance_id=one.id, duration_s=action.predicted_s, rows=tuple(done))
        self.tell(iterated, *self._weigh(one))

    def _sampled(self, one):
        one.state, one.samples = ModelState.RESIDENT, one.samples + 1
        complete = one.samples >= ALL_SAMPLES
        self._say(reports.ProfileProgressed, instance_id=one.id, done=one.samples, total=ALL_SAMPLES)
        if not complete and one.samples != COARSE_SAMPLES:
            return self._weigh(one)
        one.samples = 0 if complete else one.samples
        profile = msgspec.structs.replace(self._profile_of(one.command.shape), coarse=not complete)
        self._report(one)
        self._say(reports.ProfileMeasured, instance_id=one.id, profile=profile)
        return [does.ProfileUpdated(instance_id=one.id, profile=profile, complete=complete), *self._weigh(one)]

    def _break(self, one, error, *, hopeless):
        one.broken, one.hopeless = error, hopeless
        return [does.InstanceBroken(instance_id=one.id, because=error)]

    def _give_up(self, one, error, *, hopeless):
        self.tell(*self._break(one, error, hopeless=hopeless))

    def _gone(self, one, error):
        self.tell(*self._gone_events(one, error))

    def _gone_events(self, one, error):
        del self.hosted[one.id]
        self._forget_requests_of(one)
        if not one.broken:
            unloaded = one.state is ModelState.UNLOADING
            self.reports.append(self._state(one, cold=True) if unloaded else self._load_failed(one, error))
        return [does.InstanceGone(instance_id=one.id)]

    def _forget_requests_of(self, one):
        self.where = {key: each for key, each in self.where.items() if each is not one}
        one.stays.clear()
        one.waiting.clear()

    def _forget(self, request_id):
        one = self.where.pop(request_id, None)
        if one is not None:
            one.stays.pop(request_id, None)
            one.waiting = [each for each in one.waiting if each.request.id != request_id]
        return one

    def _weigh(self, one):
        if one is None or not one.weights_bytes or one.resting or one.state is ModelState.UNLOADING:
            return []
        return [does.InstanceWeighed(
            instance_id=one.id, held_bytes=one.weights_bytes, kv_blocks=one.kv_blocks, shared_blocks=0
        )]  # fmt: skip

    def _tell_budget(self, because):
        self._say(reports.NodeMemoryChanged, memory_bytes=self.budget_bytes, because=because)
        self.tell(does.BudgetChanged(memory_bytes=self.budget_bytes, because=because))

    def _report(self, one):
        self.reports.append(self._state(one))

    def _state(self, one, *, cold=False):
        used = sum(-(-stay.computed // self.spec.block_tokens) for stay in one.stays.values())
        return reports.InstanceReported(
            node_id=self.spec.id, instance_id=one.id, state=ModelState.COLD if cold else one.state,
            held_bytes=0 if cold else one.weights_bytes, kv_bytes=0 if cold else one.kv_blocks * self._block_bytes(one),
            kv_used_bytes=0 if cold else used * self._block_bytes(one),
        )  # fmt: skip

    def _load_failed(self, one, error):
        return reports.LoadFailed(node_id=self.spec.id, instance_id=one.id, error=error)

    def _say(self, kind, **fields):
        self.reports.append(kind(node_id=self.spec.id, **fields))

    def _block_bytes(self, one):
        return one.command.shape.kv_bytes_per_token * self.spec.block_tokens
