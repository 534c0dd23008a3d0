"""Are a box's limits, what it lacks, and what more of it would buy, found as one would find them by trying?"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.bench.load import Load
from llmhostd.bench.schedule import Lengths
from llmhostd.config import Config
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.hardware import NodeKind
from llmhostd.evaluation import plan_words
from llmhostd.evaluation.boxes import asked, on_this_box, planned
from llmhostd.evaluation.limit import FINE_ENOUGH, LEAST, MOST, find_limit
from llmhostd.evaluation.plan_report import write_plan
from llmhostd.evaluation.planning import Plan, make_plan
from llmhostd.evaluation.question import Answer, Question, answer
from llmhostd.evaluation.relief import Scarce, relieve, twice_as_fast, twice_as_fast_loads
from llmhostd.evaluation.variants import one_more, twice_the_memory, variants
from llmhostd.evaluation.watching import Miss
from llmhostd.simulator.box import make_box

GIB = 1 << 30


def question(*, models: int = 4, nodes: int = 1, memory_bytes: int = 8 * GIB, **load: object) -> Question:
    box = make_box(models=models, nodes=nodes, memory_bytes=memory_bytes)
    traffic = Load(models=[], **{"rate": 2.0, "requests": 80} | load)  # type: ignore[arg-type]
    empty, _ = on_this_box(Config(), box.nodes, box.models, (), 0)
    return asked(empty, planned(traffic, box.models, {}))


def rated(attainment: float) -> Answer:
    return Answer(requests=100, met=0, attainment=attainment, rate=1.0, missed={}, models=(), nodes=())


@given(st.floats(0.01, 200.0))
def test_the_limit_of_a_box_that_breaks_at_a_known_traffic_is_found(breaks_at: float) -> None:
    asked_for: list[float] = []

    def ask(speed: float) -> Answer:
        asked_for.append(speed)
        return rated(1.0 if speed < breaks_at else 0.5)

    limit = find_limit(ask, ask(1.0))
    assert len(set(asked_for)) == len(asked_for) == len(limit.tried)
    if breaks_at <= LEAST:
        assert (limit.held, limit.speed) == (None, LEAST)
    elif breaks_at > MOST:
        assert (limit.broke, limit.speed) == (None, MOST)
    else:
        assert limit.speed <= breaks_at <= limit.speed * FINE_ENOUGH * 1.0001
    assert len(asked_for) <= 12


def test_a_light_load_is_all_served_and_its_figures_add_up() -> None:
    calm = answer(question())
    assert (calm.requests, calm.met, calm.missed) == (80, 80, {})
    assert sum(one.requests for one in calm.models) == 80
    assert sum(one.cold_starts for one in calm.models) == 4
    assert relieve(question(), calm, None) is None
    (node,) = calm.nodes
    assert 0 < node.loading < 0.5
    assert 0 < node.busy < 1
    assert 0 < node.memory <= node.memory_peak <= 1


def test_who_asks_too_much_of_the_cores_lacks_compute_and_another_node_helps() -> None:
    crowded = question(rate=40.0, requests=100, input_tokens=Lengths(first=200, last=400))
    short = answer(crowded)
    assert short.attainment < 0.7
    assert next(iter(short.missed)) is Miss.LATE
    assert sum(short.missed.values()) == 100 - short.met
    assert sum((Counter(one.missed) for one in short.models), Counter()) == Counter(short.missed)
    assert answer(one_more(crowded, NodeKind.CPU)).met > short.met
    assert answer(twice_as_fast(crowded)).met > short.met
    assert answer(crowded.faster(0.25)).attainment > short.attainment


def test_models_that_do_not_fit_beside_each_other_lack_memory_and_twice_of_it_helps() -> None:
    tight = question(models=6, memory_bytes=700 << 20, rate=6.0, requests=150, zipf=0.0)
    short = answer(tight)
    assert next(iter(short.missed)) is Miss.NO_ROOM
    assert answer(twice_the_memory(tight)).met > short.met
    relief = relieve(tight, short, None)
    assert relief is not None
    assert relief.breaks is Scarce.MEMORY
    assert set(relief.with_twice) == set(Scarce)


def test_loads_twice_as_fast_take_half_the_time() -> None:
    calm = question()
    (before,), (after,) = answer(calm).nodes, answer(twice_as_fast_loads(calm)).nodes
    assert after.loading == pytest.approx(before.loading / 2, rel=0.05)


def test_what_can_never_fit_is_told_apart() -> None:
    impossible = answer(question(memory_bytes=100 << 20, requests=5))
    assert impossible.missed == {Miss.TOO_LARGE: 5}


def test_one_more_node_has_a_name_of_its_own() -> None:
    two = one_more(question(nodes=2), NodeKind.CPU)
    assert [node.id for node in two.box.nodes] == ["cpu0", "cpu1", "cpu2"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    told: list[tuple[str, int, int]] = []
    made: Plan
    with ThreadPoolExecutor(1) as pool:
        made = make_plan(
            question(requests=60), pool, limits=True, told=lambda name, done, total: told.append((name, done, total))
        )
    assert [done for _, done, _ in told] == [1, 2, 3, 4, 5]
    assert {name for name, _, _ in told} == {one.name for one in made.outlooks}
    return made


def test_a_plan_answers_for_the_box_as_it_is_and_for_its_variants(plan: Plan) -> None:
    names = [one.name for one in variants(question(requests=1))]
    assert [one.name for one in plan.outlooks] == names
    assert names == ["as it is", "one more CPU node", "twice the memory", "half the traffic", "twice the traffic"]
    assert [one.limit is not None for one in plan.outlooks] == [True, True, True, False, False]
    limits = [one.limit.speed for one in plan.outlooks if one.limit]
    assert limits[1] > limits[0] > 1.0
    assert plan.as_it_is.limit is not None
    assert plan.as_it_is.limit.broke is not None


def test_a_plan_in_words(plan: Plan) -> None:
    assert plan_words.verdict(plan) == "All 4 models keep their promises: 100 % of 60."
    said = plan_words.breaking(plan.as_it_is)
    assert said.startswith(f"Up to {plan_words.times(plan.as_it_is.limit.speed)} this traffic")  # type: ignore[union-attr]
    assert "Compute breaks first: at " in said
    assert "with nodes twice as fast" in said
    assert "room for" in plan_words.buys(plan, plan.outlooks[1])
    assert plan_words.buys(plan, plan.outlooks[3]) == "the same promises kept"
    assert plan_words.percent(0.99999) == "99.9 %"


def test_a_plan_is_drawn_into_an_image_or_a_page_that_needs_nothing_else(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.png", "A box.")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    write_plan(plan, tmp_path / "plan.html", "A box <with> & memory.")
    text = (tmp_path / "plan.html").read_text()
    assert "A box &lt;with&gt; &amp; memory." in text
    assert all(str(one.model) in text for one in plan.as_it_is.answer.models)
    assert "<svg" in text
    assert not any(outside in text for outside in ("<script", "<link", "src=", "@import"))
    write_plan(plan, tmp_path / "again.html", "A box <with> & memory.")
    assert (tmp_path / "again.html").read_text() == text
    with pytest.raises(CallerError, match=r"plan\.pdf is neither a \.png nor an \.html file"):
        write_plan(plan, tmp_path / "plan.pdf", "")
    with pytest.raises(OperatorError, match=r"absent/plan\.png: cannot be written"):
        write_plan(plan, tmp_path / "absent" / "plan.png", "")


def test_each_model_asks_at_its_own_rate() -> None:
    box = make_box(models=3)
    rows = planned(Load(models=[], duration_s=400.0, seed=3), box.models, {"model-0": 2.0, "model-2": 0.5})
    counts = Counter(row.model for row in rows)
    assert set(counts) == {"model-0", "model-2"}
    assert 700 < counts["model-0"] < 900
    assert 150 < counts["model-2"] < 250
    assert [row.due_s for row in rows] == sorted(row.due_s for row in rows)
    with pytest.raises(CallerError, match="there is no such model; there are: model-0"):
        planned(Load(models=[]), box.models, {"model-9": 1.0})


def test_a_trace_that_asks_for_strangers_or_for_nothing_is_said(tmp_path: Path) -> None:
    box = make_box(models=2)
    (tmp_path / "trace.csv").write_text("arrival_s,model_id\n1.0,gull\n")
    with pytest.raises(OperatorError, match="asks for 'gull'; there are: model-0, model-1"):
        planned(Load(models=[], trace=tmp_path / "trace.csv"), box.models, {})
    with pytest.raises(OperatorError, match="nobody asks"):
        planned(Load(models=[], trace=tmp_path / "trace.csv", start_s=5.0), box.models, {})


def test_a_box_says_which_models_were_never_measured() -> None:
    box = make_box(models=2)
    question_of, guessed = on_this_box(Config(), box.nodes, box.models, (), 0)
    assert guessed == ("model-0", "model-1")
    known = question_of.box.profiles
    assert on_this_box(Config(), box.nodes, box.models, known, 0)[1] == ()
