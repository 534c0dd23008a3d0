"""One iteration: OmniServe's order, within everybody's headroom."""

from hypothesis import given
from hypothesis import strategies as st
from nodes import LinearEstimator, instance, node, request

from llmhostd.compute.chunked_prefill import ChunkPolicy
from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.estimator import IterationKind
from llmhostd.compute.headroom import Agenda, HeadroomPolicy
from llmhostd.compute.iteration_plan import IterationPolicy, SchedulingPolicy, describe, next_plan

POLICY = SchedulingPolicy(headroom=HeadroomPolicy(reserve_s=0.0))


def rows(plan):
    return [f"{row.request_id} {row.tokens}{'*' if row.sample else ''}" for row in plan.rows]


def moved(name, prompt, **more):
    """A stream that has said a token elsewhere, and whose context is computed again here."""
    return request(name, prompt, out=1, computed=0, **more)


def plan_of(box, now=1.0, policy=POLICY, best_effort_s=0.0):
    return next_plan(Agenda(box), now, policy, best_effort_s=best_effort_s)


def test_nothing_to_run():
    assert plan_of(node(instance("a"))) is None
    assert plan_of(node(instance("a", request("r1"), ready=9.0))) is None


def test_decodes_then_the_prefills_that_fit():
    a = instance("a", request("r1", out=2), request("r2", 140), request("r3", 60, arrived=0.2))
    plan = plan_of(node(a))
    assert rows(plan) == ["r1 1*", "r2 140*", "r3 60*"]
    assert plan.kind is IterationKind.PREFILL
    assert plan_of(node(instance("a", request("r1", out=2)))).kind is IterationKind.DECODE


def test_a_long_prompt_is_cut_so_that_a_neighbour_is_not_late():
    # r1 decodes elsewhere and is due at 1.1: its own 10 ms off, 90 ms are left, 10 of them for reading weights.
    a, b = instance("a", request("r1", out=1, arrived=-1.1)), instance("b", moved("r2", 3000, arrived=-1.35))
    plan = plan_of(node(a, b))
    assert rows(plan) == ["r2 384"]
    assert plan.predicted_s <= 0.09 < plan.predicted_s + 32 * 0.0002


def test_a_prefill_progresses_even_without_any_slack():
    a, b = instance("a", request("r1", out=1, arrived=-1.185)), instance("b", moved("r2", 3000, arrived=-1.4))
    assert rows(plan_of(node(a, b))) == ["r2 64"]


def test_a_decode_without_headroom_runs_alone_first():
    a = instance("a", request("r1", out=1, arrived=-1.19), request("r2", 500, arrived=0.9))
    assert rows(plan_of(node(a))) == ["r1 1*"]
    a.requests["r1"].tokens_out += 1
    a.requests["r1"].computed_tokens += 1
    assert rows(plan_of(node(a))) == ["r1 1*", "r2 500*"]


def test_a_prefill_that_is_most_urgent_progresses_whatever_it_costs():
    a = instance("a", request("r1", out=1, arrived=-1.19), moved("r2", 500, arrived=-1.4))
    plan = plan_of(node(a))
    assert rows(plan) == ["r1 1*", "r2 64"]


def test_a_batch_is_bounded_and_the_nearest_deadlines_come_first():
    policy = SchedulingPolicy(iteration=IterationPolicy(max_batch=3))
    decoding = [request(f"d{k}", out=1, arrived=-k / 10) for k in range(5)]
    assert rows(plan_of(node(instance("a", *decoding)), policy=policy)) == ["d4 1*", "d3 1*", "d2 1*"]
    with_prefill = node(instance("a", *decoding, request("p", 10)))
    assert rows(plan_of(with_prefill, policy=policy)) == ["d4 1*", "d3 1*", "p 10*"]


def test_chunks_of_one_iteration_share_a_bound():
    policy = SchedulingPolicy(chunk=ChunkPolicy(max_chunk_tokens=256))
    a = instance("a", request("r1", 200), request("r2", 200, arrived=0.1))
    assert rows(plan_of(node(a), policy=policy)) == ["r1 200*"]
    a = instance("a", request("r1", 100), request("r2", 200, arrived=0.1))
    assert rows(plan_of(node(a), policy=policy)) == ["r1 100*", "r2 128"]


def test_best_effort_rides_in_omniserve_order_within_its_allowance():
    a = instance(
        "a", request("b1", out=2, best_effort=True), request("b2", 300, best_effort=True), request("r2", 40),
        request("r1", out=2),
    )  # fmt: skip
    assert rows(plan_of(node(a))) == ["r1 1*", "r2 40*"]
    plan = plan_of(node(a), best_effort_s=0.1)
    assert rows(plan) == ["r1 1*", "r2 40*", "b2 300*", "b1 1*"]
    assert 0 < plan.best_effort_s <= 0.1
    plan = plan_of(node(a), best_effort_s=0.03)
    assert rows(plan) == ["r1 1*", "r2 40*", "b2 128", "b1 1*"]


def test_best_effort_takes_a_turn_only_while_everybody_has_headroom():
    idle = instance("b", request("b1", out=1, best_effort=True))
    waiting = instance("a", request("r1", out=2))
    assert plan_of(node(waiting, idle), best_effort_s=0.1).instance_id == "b"
    assert plan_of(node(waiting, idle), best_effort_s=0.005).instance_id == "a"
    assert plan_of(node(waiting, idle), now=1.95, best_effort_s=0.1).instance_id == "a"
    first_token = instance("a", request("r1"))
    assert plan_of(node(first_token, idle), best_effort_s=0.1).instance_id == "a"


def test_best_effort_alone_is_bounded_in_time():
    a = instance("a", request("b1", 5000, best_effort=True), request("b2", out=3, best_effort=True))
    plan = plan_of(node(a))
    assert rows(plan) == ["b2 1*", "b1 448"]
    assert plan.predicted_s <= POLICY.iteration.best_effort_iteration_s
    assert plan.best_effort_s == plan.predicted_s


def test_a_first_token_comes_early_if_nobody_is_late_for_it():
    decode = instance("a", request("r1", out=1, arrived=-1.1))  # due at 1.1
    box = node(decode, instance("b", request("r2", 300)))
    assert plan_of(box).instance_id == "b"
    agenda = Agenda(box)
    because = describe(next_plan(agenda, 1.0, POLICY), agenda, 1.0)
    assert because == "headroom 1000 ms; its first token keeps a at 100 ms in time; chunk 300 of 300"
    assert plan_of(box, now=1.06).instance_id == "a"
    strict = SchedulingPolicy(iteration=IterationPolicy(first_tokens_early=False))
    assert plan_of(box, policy=strict).instance_id == "a"


def test_says_why():
    a, b = instance("a", request("r1", 1000)), instance("code-b", request("r2", out=1, arrived=0.5))
    agenda = Agenda(node(a, b))
    plan = next_plan(agenda, 1.76, POLICY)
    assert describe(plan, agenda, 1.76) == "headroom 240 ms; next is code-b at 940 ms; chunk 512 of 1000"


def test_a_first_token_that_cannot_be_in_time_lets_those_go_first_that_can():
    # r1 needs 0.21 s and has 0.15 s; r2, in the same batch, and r3 next door can be in time.
    a = instance("a", request("r1", 1000, arrived=-0.85), request("r2", 300, arrived=-0.8))
    b = instance("b", request("r3", 300, arrived=-0.7))
    box = node(a, b)
    assert rows(plan_of(box)) == ["r2 300*", "r1 192"]
    a.requests["r2"].computed_tokens = 300
    a.requests["r2"].said(1, 1.0)
    agenda = Agenda(box)
    plan = next_plan(agenda, 1.1, POLICY)
    assert rows(plan) == ["r3 300*"]
    assert describe(plan, agenda, 1.1) == "headroom 200 ms; its first token keeps a at 100 ms in time; chunk 300 of 300"


def test_a_first_token_that_was_late_by_another_slo_waits_no_longer():
    late = instance("a", request("r1", 1000, arrived=-3.1))  # due at -1.1, and once more at 0.9
    before = node(late, instance("b", request("r2", 1000, out=1, arrived=-1.31)))  # due at 0.89
    after = node(late, instance("b", request("r2", 1000, out=1, arrived=-1.28)))  # due at 0.92
    assert rows(plan_of(before, now=0.87)) == ["r2 1*"]
    assert rows(plan_of(after, now=0.87)) == ["r1 128"]
    assert rows(plan_of(after, now=0.9)) == ["r1 64"]
    late.requests["r1"].deadlines = DeadlinePolicy(late_first_token_slo_factor=0.0)  # as in SLINFER
    assert rows(plan_of(before, now=0.87)) == ["r1 64"]


drawn = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 900), st.integers(0, 3), st.integers(-30, 9), st.booleans()),
    min_size=1, max_size=9,
)  # fmt: skip


def due_s(one, now):
    """When it is due; from when on it cannot be in time, one TTFT SLO later."""
    seconds = LinearEstimator().iteration_s(
        prefill=((one.pending_tokens, one.computed_tokens),), decode_batch=0, decode_context=0
    )
    late = not one.tokens_out and now + seconds > one.deadline_s
    return one.deadline_s + (one.shape.slo.ttft_s if late else 0.0)


@given(drawn, st.floats(0, 0.2))
def test_every_plan_keeps_the_rules(drawn, allowance):
    held = [[] for _ in range(3)]
    for k, (where, prompt, out, arrived, flex) in enumerate(drawn):
        held[where].append(request(f"r{k}", prompt, out=out, arrived=arrived / 10, best_effort=flex))
    box = node(*(instance(f"i{k}", *some) for k, some in enumerate(held)))
    agenda = Agenda(box)
    plan = next_plan(agenda, 1.0, POLICY, best_effort_s=allowance)
    chosen = box.instances[plan.instance_id].requests
    planned = {row.request_id: row for row in plan.rows}
    assert len(planned) == len(plan.rows)
    for row in plan.rows:
        pending = chosen[row.request_id].pending_tokens
        assert 1 <= row.tokens <= pending
        assert row.sample == (row.tokens == pending)
    waiting = [one for some in held for one in some if one.latency_sensitive]
    if not waiting:
        return
    if plan.best_effort_s < plan.predicted_s:  # a plan for those who wait: for the least headroom, or a prefill
        least_s = min(due_s(one, 1.0) for one in waiting)
        assert plan.deadline_s == least_s or (plan.chunk_tokens and 1.0 + plan.predicted_s < least_s)
        assert all(one.shape.id in planned for one in chosen.values() if one.latency_sensitive and one.decoding)
    if plan.best_effort_s > 0.0:
        assert plan.best_effort_s <= allowance + 1e-9
        assert plan.predicted_s <= agenda.slack_s(1.0, POLICY.headroom, but=plan.instance_id)
