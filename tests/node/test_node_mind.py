"""Any history: nothing is lost, one thing at a time, memory is kept, people come first, prefill goes on."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from node_script import MB, NodeScript, profile_of

from llmhostd.compute.estimator import IterationKind
from llmhostd.compute.iteration_plan import IterationPolicy
from llmhostd.domain import node_events as events
from llmhostd.node.invariants import NodeInvariantError, check
from llmhostd.node.states import Phase

INSTANCES = ("a", "b", "c")
SHARE = IterationPolicy().best_effort_share
SAVED_S = IterationPolicy().best_effort_saved_s


class World(NodeScript):
    """Carries out what the mind decides, keeps account of every request, and of what the engine really holds."""

    def __init__(self, memory_mb):
        super().__init__()
        self.now = 0.0
        self.node(0.0, memory_mb)
        self.background = []
        self.fates = {}
        self.iterations = []
        self.sampling = None
        self.refuse_growth = False
        self.refuse_shrinking = False
        self.slow_resizes = False
        """Whether resizes take their time, as on a device that copies pools, while others compute."""
        self.engine = {}
        """Instance -> [bytes beside KV, KV blocks] as the engine has them."""
        self.solid = True
        """Whether the budget never changed: then nothing may ever exceed it."""

    def hear(self, event):
        lines = self.tell(event, self.now)
        self.compare()
        return lines

    def compare(self):
        """The books against the engine."""
        memory = self.mind.memory
        truth = {name: weights + blocks * MB for name, (weights, blocks) in self.engine.items()}
        for name, size in truth.items():
            assert memory.held.of(name) >= size, f"{name} holds {size}, the books say {memory.held.of(name)}"
            one = self.mind.instances[name]
            if one.phase is Phase.RESIDENT and not one.blocked:
                assert memory.held.of(name) == size
        assert sum(truth.values()) <= memory.held.owned_bytes
        if self.solid:
            assert memory.held.free_bytes >= 0, "over the budget, which was avoidable"

    def note(self, action):
        computes = events.RunIteration | events.RunProfileSample
        assert not (self.running and isinstance(action, computes)), "the device was given two things at once"
        super().note(action)
        match action:
            case events.BeginLoad():
                self.background.append((type(action), action.instance_id))
                assert sum(kind is events.BeginLoad for kind, _ in self.background) == 1
            case events.BeginUnload() | events.BeginRest():
                self.background.append((type(action), action.instance_id))
                assert self.mind.instances[action.instance_id].idle
            case events.AbandonLoad():
                self.background.append((type(action), action.instance_id))
            case events.DropRequest():
                self.end(action.request_id, "dropped")
            case events.ReturnRequest():
                self.end(action.request_id, "returned")
            case events.FailRequest():
                self.end(action.request_id, "failed")
            case events.ResizeKv():
                assert action.kv_blocks >= self.mind.instances[action.instance_id].blocks_with({})
            case events.RunProfileSample():
                self.sampling = action.instance_id
                self.engine[action.instance_id][0] = 100 * MB
            case events.RunIteration():
                self.iterations.append((action, self.waiting()))

    def waiting(self):
        """Latency-sensitive requests that could compute now, and their headroom."""
        return {
            key: request.headroom_s(self.now)
            for one in self.mind.instances.values()
            if one.load.ready_at_s <= self.now
            for key, request in one.load.requests.items()
            if request.latency_sensitive
        }

    def end(self, request_id, fate):
        assert self.fates[request_id] is None, f"{request_id} ended twice"
        self.fates[request_id] = fate

    def device(self):
        """One turn: ask, and carry out. Returns whether there was anything to do."""
        if not self.hear(events.DeviceIdle()):
            return False
        if self.resizing and not self.slow_resizes:
            self.end_resize()
        self.end_turn()
        return True

    def end_turn(self, fails=False):
        """What computes ends."""
        if self.running:
            self.iterate(fails)
        elif self.sampling:
            self.sample(self.sampling)

    def iterate(self, fails=False):
        """The running iteration ends."""
        self.now += self.running.predicted_s
        name = self.running.instance_id
        if fails:
            self.hear(self.fail(self.now))
            return
        event = self.done(self.now)
        if name in self.engine:
            self.engine[name][0] = 100 * MB
        for row in event.rows:
            if row.finish and row.request_id not in self.mind.requests.leaving:
                self.end(row.request_id, "finished")
        for row in event.rows:
            if row.finish and row.request_id in self.mind.requests.leaving:
                self.end(row.request_id, "left")
        self.hear(event)

    def sample(self, name):
        """A sample of a profile was run; it was the last of its stage."""
        self.sampling = None
        one = self.mind.instances[name]
        assert one.kv_blocks > one.blocks_with({}), "a sample without KV of its own"
        self.hear(self.measured(self.now, name))

    def end_resize(self):
        """The oldest resize ends."""
        if not self.resizing:
            return
        self.now += 0.001
        name = next(iter(self.resizing))
        if name not in self.engine:
            del self.resizing[name]
            return
        before, asked = self.engine[name][1], self.resizing[name].kv_blocks
        fails = self.refuse_growth if asked > before else self.refuse_shrinking
        self.engine[name][1] = before if fails else asked
        self.hear(self.resized(self.now, name, self.engine[name][1]))

    def complete(self):
        """A background operation ends."""
        if not self.background:
            return
        kind, name = self.background.pop(0)
        if kind is events.BeginLoad:
            self.engine[name] = [20 * MB, 0]
            self.hear(self.loaded(self.now, name))
        else:
            self.engine.pop(name, None)
            self.hear(self.emptied(self.now, name) if kind is events.BeginRest else self.gone(self.now, name))

    def drain(self):
        """No more news: everything ends."""
        for _ in range(3000):
            busy = self.device() or bool(self.background or self.resizing)
            self.end_resize()
            self.complete()
            if not busy:
                return
        raise AssertionError("it goes on for ever")


loads = st.tuples(st.just("load"), st.sampled_from(INSTANCES), st.sampled_from(["fast", "slow", "unmeasured"]),
                  st.sampled_from(["warm", "resident"]))  # fmt: skip
submits = st.tuples(st.just("submit"), st.sampled_from(INSTANCES), st.integers(1, 1500), st.integers(1, 6),
                    st.integers(0, 4), st.booleans())  # fmt: skip
others = st.tuples(
    st.sampled_from(
        ["rest", "unload", "measure", "fail", "fail iteration", "break", "cancel", "recall", "refuse", "stick"]
    ),
    st.integers(0, 9),
)
budgets = st.tuples(st.just("budget"), st.sampled_from([0, 90, 150, 260, 400]))
turns = st.tuples(st.just("turns"), st.integers(1, 8))
completions = st.tuples(st.just("complete"))
slowly = st.tuples(st.just("slow"), st.booleans())
histories = st.lists(st.one_of(loads, submits, submits, turns, completions, others, slowly), max_size=40)
with_budgets = st.lists(st.one_of(loads, submits, submits, turns, completions, others, slowly, budgets), max_size=40)


def live(world, history):
    """Play a history; what cannot happen now is left out."""
    for what, *rest in history:
        world.now += 0.01
        match what:
            case "load" if rest[0] not in world.mind.instances:
                world.hear(world.load(world.now, *rest))
            case "submit":
                name, prompt, most, out, flex = rest
                request_id = f"r{len(world.fates)}"
                world.fates[request_id] = None
                words = ["prompt", str(prompt), "max", str(out + most), "out", str(out), *(["flex"] if flex else [])]
                world.hear(world.submit(world.now, request_id, "on", name, *words))
            case "turns":
                for _ in range(rest[0]):
                    world.device()
            case "complete":
                world.complete()
            case "cancel":
                world.hear(world.cancel(world.now, f"r{rest[0]}"))
            case "recall":
                world.hear(world.recall(world.now, f"r{rest[0]}"))
            case "refuse":
                world.refuse_growth = rest[0] < 3
            case "stick":
                world.refuse_shrinking = rest[0] < 3
            case "slow":
                world.slow_resizes = rest[0]
            case "budget":
                world.solid = False
                world.hear(world.budget(world.now, rest[0]))
            case "fail" if world.background:
                _, name = world.background.pop(0)
                world.engine.pop(name, None)
                world.hear(world.gone(world.now, name))
            case "fail iteration":
                world.hear(events.DeviceIdle())
                world.end_turn(fails=True)
            case "break":
                computing = [one for one in world.mind.instances.values() if one.computes and not one.resizing]
                if computing:
                    world.hear(world.broken(world.now, computing[0].id))
            case "rest" | "unload" | "measure":
                world.hear(getattr(world, what)(world.now, INSTANCES[rest[0] % 3]))
    world.drain()


POOL_WAITS_BESIDE_PACKING = [
    ("load", "b", "fast", "resident"), ("complete",), ("turns", 2),
    ("load", "a", "unmeasured", "resident"), ("complete",), ("turns", 1), ("break", 0),
]  # fmt: skip
TWO_ARE_MEASURED = [
    ("load", "c", "fast", "warm"), ("complete",), ("load", "a", "unmeasured", "warm"),
    ("submit", "c", 1, 1, 0, False), ("complete",), ("measure", 2),
]  # fmt: skip
A_POOL_STILL_GROWS_WHEN_THE_NEXT_RUNS = [
    ("load", "a", "fast", "warm"), ("load", "c", "fast", "warm"), ("submit", "a", 1, 1, 0, False),
    ("submit", "c", 1, 1, 0, False), ("complete",), ("complete",), ("fail iteration", 0), ("turns", 2),
]  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(histories, st.sampled_from([150, 260, 400, 2000]))
@example(A_POOL_STILL_GROWS_WHEN_THE_NEXT_RUNS, 260)
@example(POOL_WAITS_BESIDE_PACKING, 260)
@example(TWO_ARE_MEASURED, 150)
def test_nothing_is_lost_and_every_rule_holds(history, memory_mb):
    world = World(memory_mb)
    live(world, history)
    stuck = {key for key, fate in world.fates.items() if fate is None}
    assert not stuck
    assert not world.mind.requests.where
    assert not world.mind.requests.leaving


@settings(max_examples=250, deadline=None)
@given(with_budgets, st.sampled_from([260, 400]))
def test_a_budget_that_changes_is_kept_as_far_as_requests_and_pools_can_give(history, memory_mb):
    world = World(memory_mb)
    live(world, history)
    assert None not in world.fates.values()
    assert not world.mind.requests.where
    weights = sum(size for size, _ in world.engine.values())
    stuck = any(one.kv_stuck for one in world.mind.instances.values())
    assert stuck or world.mind.memory.held.owned_bytes <= max(world.mind.memory.budget_bytes, weights)


@settings(max_examples=150, deadline=None)
@given(histories)
def test_people_come_before_best_effort(history):
    """While somebody waits, best effort gets no more of the device than its share and what it saved up."""
    world = World(2000)
    live(world, history)
    people_s = best_effort_s = 0.0
    for action, waiting in world.iterations:
        if waiting and not any(row.request_id in waiting for row in action.rows):
            best_effort_s += action.predicted_s
        elif waiting:
            people_s += action.predicted_s
    assert best_effort_s <= people_s * SHARE + SAVED_S


@settings(max_examples=150, deadline=None)
@given(histories, st.sampled_from([400, 2000]))
def test_the_least_headroom_goes_first_or_is_in_time_all_the_same(history, memory_mb):
    """Every iteration for people computes something of the nearest deadline of all, or a prefill that it can bear."""
    world = World(memory_mb)
    live(world, history)
    for action, waiting in world.iterations:
        served = [waiting[row.request_id] for row in action.rows if row.request_id in waiting]
        if served and min(served) > min(waiting.values()):
            assert action.predicted_s < min(waiting.values())
            assert "first token keeps" in action.because


def test_the_most_urgent_prefill_gets_its_chunk_under_full_load():
    world = World(2000)
    for name in INSTANCES:
        world.hear(world.load(0.0, name, "slow"))
        world.complete()
    for k in range(12):
        world.fates[f"d{k}"] = None
        world.hear(world.submit(0.0, f"d{k}", "on", INSTANCES[k % 3], "prompt", "20", "max", "60", "tpot", "0.05"))
    world.fates["p"] = None
    world.hear(world.submit(0.0, "p", "on", "a", "prompt", "2500", "max", "2"))
    turns = 0
    while world.mind.requests.where.get("p") and turns < 400:
        world.device()
        turns += 1
    assert world.fates["p"] == "finished"
    assert any(fate is None for fate in world.fates.values())


def test_predictions_follow_what_iterations_take_but_not_first_runs():
    world = World(2000)
    world.hear(world.load(0.0, "a"))
    world.complete()
    world.fates["r"] = None
    world.hear(world.submit(0.0, "r", "on", "a", "prompt", "100", "max", "30"))
    world.engine.clear()
    while world.mind.requests.where:
        world.hear(events.DeviceIdle())
        if world.resizing:
            world.hear(world.resized(0.0))
            continue
        done = world.done(0.0)
        # Half as long again as the 10.2 ms of a decode at first.
        slow = events.IterationDone(instance_id=done.instance_id, duration_s=0.0153, rows=done.rows)
        world.fates["r"] = "finished"
        world.hear(slow)
    profile = world.mind.profile_of("a")
    assert 1.2 < profile.decode_correction <= 1.5
    assert profile.prefill_correction == 1.0
    one = world.mind.instances["a"].estimator
    one.observe(IterationKind.PREFILL, predicted_s=1.0, actual_s=2.0)
    assert world.mind.profile_of("a").prefill_correction > 1.0


def test_a_profile_serves_every_instance_of_its_shape():
    world = World(2000)
    world.hear(world.load(0.0, "a", "unmeasured"))
    world.shapes["b"] = world.shapes["a"]
    world.hear(world.load(0.0, "b", "unmeasured"))
    world.complete()
    world.complete()
    world.hear(world.measured(1.0, "a"))
    assert world.mind.profile_of("b") == profile_of("fast", world.shapes["a"])
    assert world.mind.profile_of("c") is None


def test_the_invariants_see_what_is_wrong():
    def broken(spoil):
        world = World(2000)
        world.hear(world.load(0.0, "a"))
        world.complete()
        world.fates["r"] = None
        world.hear(world.submit(0.0, "r", "on", "a", "prompt", "100"))
        world.device()
        world.hear(events.DeviceIdle())
        assert world.running
        check(world.mind)
        spoil(world.mind)
        try:
            check(world.mind)
        except NodeInvariantError as error:
            return str(error)
        return "not seen"

    def overflow(mind):
        mind.instances["a"].kv_blocks = 1

    def lose(mind):
        mind.requests.where.clear()

    def overrun(mind):
        mind.instances["a"].load.requests["r"].computed_tokens = 999

    def talk(mind):
        mind.instances["a"].load.requests["r"].tokens_out = 1

    def unload(mind):
        mind.instances["a"].phase = Phase.UNLOADING

    assert "overflows its KV pool" in broken(overflow)
    assert "no place" in broken(lose)
    assert "beyond its context" in broken(overrun)
    assert "summed up is out of date" in broken(talk)
    assert "runnable or not" in broken(unload)
