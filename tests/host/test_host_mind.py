"""Whatever happens, in whatever order: does the host mind stay whole, and does it always answer the same?"""

from boxes import MIB, Box, model, node, profile, row, shape
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from llmhostd.domain import commands, events, reports
from llmhostd.domain.actions import RefuseRequest
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import FinishReason, Tier
from llmhostd.host.core import HostMind

NAMES = ("wren", "owl", "rook", "heron")
STATES = st.sampled_from([state for state in ModelState if state is not ModelState.QUARANTINED])
HERON = shape(layers=20, weight_mib=500)


class HostOfAnything(RuleBasedStateMachine):
    """Events that a box may see, and some that come too late. `Box` checks every invariant after each."""

    @initialize(memory_mib=st.sampled_from([400, 800, 4096]), nodes=st.integers(1, 2), known=st.booleans())
    def begin(self, memory_mib, nodes, known):
        specs = [node(f"cpu{n}", memory_mib) for n in range(nodes)]
        profiles = (profile(), profile(HERON, resident_mib=520)) if known else ()
        models = [model(name, HERON if name == "heron" else None) for name in NAMES]
        self.box = Box(*specs, models=models, profiles=profiles)
        self.heard = []
        self.asked = []

    def tell(self, event, after=0.0):
        self.heard.append((event, self.box.now + after))
        return self.box(event, after)

    def any_of(self, data, things):
        return data.draw(st.sampled_from([*things]))

    @property
    def instances(self):
        return self.box.mind.fleet.instances

    @rule(name=st.sampled_from(NAMES), prompt=st.integers(1, 4000), flex=st.booleans())
    def ask(self, name, prompt, flex):
        tier = Tier.BEST_EFFORT if flex else Tier.LATENCY_SENSITIVE
        request = self.box.shape_of(name, prompt=prompt, tier=tier)
        self.asked.append(request.id)
        self.tell(events.RequestArrived(request=request))

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), finish=st.booleans(), after=st.floats(0.0, 0.5))
    def iterate(self, data, finish, after):
        instance = self.any_of(data, self.instances.values())
        rows = []
        for request_id, load in instance.load.requests.items():
            if self.box.mind.fleet.requests[request_id].submitted and data.draw(st.booleans()):
                left = load.context_tokens - load.computed_tokens
                tokens = int(left == 1 or data.draw(st.booleans()))
                done = FinishReason.STOP if finish and tokens else None
                rows.append(row(request_id, prefilled=0 if tokens else left - 1, tokens=tokens, finish=done))
        self.tell(
            reports.IterationReported(
                node_id=instance.node_id, instance_id=instance.id, started_s=self.box.now, duration_s=after,
                predicted_s=after, rows=tuple(rows), because="",
            ),
            after,
        )  # fmt: skip

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), state=STATES, held_mib=st.integers(0, 600), kv_mib=st.integers(0, 300))
    def report(self, data, state, held_mib, kv_mib):
        self.box.report(self.any_of(data, self.instances), state, held_mib=held_mib, kv_mib=kv_mib)

    @precondition(lambda self: self.instances)
    @rule(data=st.data())
    def measure(self, data):
        instance = self.any_of(data, self.instances.values())
        known = profile(instance.shape, resident_mib=instance.shape.weight_bytes // MIB + 20)
        self.tell(reports.ProfileMeasured(node_id=instance.node_id, instance_id=instance.id, profile=known))

    @precondition(lambda self: self.instances)
    @rule(data=st.data())
    def fail_to_load(self, data):
        instance = self.any_of(data, self.instances.values())
        self.tell(reports.LoadFailed(node_id=instance.node_id, instance_id=instance.id, error="disk"))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), how=st.sampled_from(["left", "returned", "failed"]))
    def lose(self, data, how):
        request_id = self.any_of(data, self.asked)
        if how == "left":
            self.tell(events.RequestCancelled(request_id=request_id))
        elif how == "returned":
            self.tell(reports.RequestReturned(node_id="cpu0", request_id=request_id, because=""))
        else:
            self.tell(reports.RequestFailed(node_id="cpu0", request_id=request_id, error=""))

    @rule(data=st.data(), after=st.floats(0.0, 2.0), guilty=st.booleans())
    def die_or_rise(self, data, after, guilty):
        one = self.any_of(data, self.box.mind.fleet.nodes.values())
        if one.up:
            suspect = next(iter(one.load.instances), None) if guilty else None
            self.tell(reports.NodeDown(node_id=one.spec.id, suspect=suspect, because="killed"), after)
        else:
            self.tell(reports.NodeUp(node_id=one.spec.id, memory_bytes=one.spec.memory_bytes), after)

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["warm", "unload", "release", "remove", "add"]))
    def operate(self, name, what):
        spec = model(name, HERON if name == "heron" else None)
        self.tell(
            {
                "warm": events.WarmUpAsked(name=name),
                "unload": events.UnloadAsked(name=name),
                "release": events.ModelReleased(name=name),
                "remove": events.ModelRemoved(name=name),
                "add": events.ModelAdded(spec=spec),
            }[what]
        )

    @rule(after=st.sampled_from([0.1, 1.0, 400.0, 4000.0]))
    def tick(self, after):
        self.tell(events.ClockTicked(), after)

    def teardown(self):
        if not hasattr(self, "box"):
            return
        live = self.box.mind.fleet.requests
        told = {each.request_id for each in self.box.decided if isinstance(each, RefuseRequest)}
        assert not told & live.keys(), "who is refused is forgotten"
        for each in self.box.decided:
            assert each.because
            if isinstance(each, commands.SubmitRequest):
                assert each.request.id in self.asked


HostOfAnything.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestHostMind = HostOfAnything.TestCase


def test_the_same_history_has_the_same_answers():
    def live():
        box = Box(node("cpu0", 700), node("cpu1", 400), models=NAMES)
        for n in range(30):
            box.ask(NAMES[n * n % 4], after=0.3, prompt=40 * n + 1, tier=list(Tier)[n % 3 % 2])
            for key in list(box.mind.fleet.instances)[n % 2 :: 2]:
                if key in box.mind.fleet.instances:
                    box.report(key, ModelState.WARM if n % 3 else ModelState.RESIDENT)
                    box.finish(key, *list(box.mind.fleet.instances[key].load.requests)[:2])
        return box.decided

    assert live() == live()


def test_a_mind_begins_with_every_node_down():
    mind = HostMind([node("cpu0"), node("cpu1")])
    seen = mind.snapshot(0.0)
    assert [one.up for one in seen.nodes] == [False, False]
    assert mind.step(events.ClockTicked(), 0.0) == []
