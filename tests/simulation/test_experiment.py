"""Does an experiment count everybody once, take the same decisions again, and change what its options name?"""

import os
import subprocess
import sys

import msgspec
import pytest
from experiment_files import crowd, experiment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmhostd.domain.errors import OperatorError
from llmhostd.simulator.assumptions import Assumptions, KvGrowth
from llmhostd.simulator.experiment import run
from llmhostd.simulator.outcome import Outcome, as_text
from llmhostd.simulator.policies import Ablation, elastic
from llmhostd.simulator.seeds import run_seeds

KEYS = [
    "policy", "size", "models", "requests", "slo_met", "slo_rate", "dropped", "ttft_s", "tpot_s", "max_gap_s",
    "nodes_used", "decode_tokens_per_node_s", "kv_utilization", "kv_scaling_share", "migrations", "cold_starts",
    "wall_s", "slo_rate_by_eq1",
]  # fmt: skip
EVERYBODY = ("sllm", "sllm+c", "sllm+c+s", "slinfer", "llmhostd")
BUSY = crowd(models=6, every_s=0.15, seconds=25.0)


def still(outcome):
    """An outcome without the time that it took."""
    return msgspec.structs.replace(outcome, wall_s=0.0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """A crowd on one CPU node and one GPU, by every policy."""
    folder = tmp_path_factory.mktemp("grid")
    return {policy: run(experiment(folder, *BUSY, cluster="1cpu+1gpu", policy=policy)) for policy in EVERYBODY}


def test_the_keys_are_what_reports_are_made_of(outcomes):
    words = msgspec.to_builtins(outcomes["slinfer"])
    assert list(words) == KEYS
    assert (list(words["ttft_s"]), list(words["tpot_s"]), list(words["max_gap_s"])) == (
        ["p50", "p90", "p99"], ["p50", "p99"], ["p50", "p99"],
    )  # fmt: skip
    assert list(words["nodes_used"]) == list(words["decode_tokens_per_node_s"]) == ["cpu", "gpu"]


@pytest.mark.parametrize("policy", EVERYBODY)
def test_everybody_is_counted_once_and_figures_are_in_their_bounds(outcomes, policy):
    outcome = outcomes[policy]
    assert (outcome.policy, outcome.size, outcome.models, outcome.requests) == (policy, "7b", 6, len(BUSY))
    assert outcome.slo_met <= outcome.requests - outcome.dropped
    assert outcome.slo_rate == outcome.slo_met / outcome.requests
    assert 0.0 <= outcome.nodes_used.cpu <= 1.0
    assert 0.0 < outcome.nodes_used.gpu <= 1.0
    assert 0.0 < outcome.kv_utilization <= 1.0
    assert 0.0 <= outcome.kv_scaling_share < 0.2
    assert outcome.tpot_s.p50 <= outcome.max_gap_s.p99
    assert f"{outcome.slo_rate:.2%}" in as_text(outcome)


def test_sharing_serves_more_than_exclusive_nodes(outcomes):
    rates = {policy: outcome.slo_rate for policy, outcome in outcomes.items()}
    assert rates["sllm"] < rates["slinfer"]
    assert rates["sllm"] < rates["llmhostd"]
    assert outcomes["sllm"].kv_utilization < outcomes["slinfer"].kv_utilization


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.floats(0, 8), st.integers(0, 3), st.integers(1, 5000), st.integers(1, 80)), min_size=1, max_size=40
    ),
    st.sampled_from(EVERYBODY),
    st.sampled_from(["1cpu", "1gpu", "1cpu+1gpu"]),
)
def test_whatever_is_asked_everybody_is_served_or_dropped(tmp_path, rows, policy, cluster):
    outcome = run(experiment(tmp_path, *rows, policy=policy, cluster="1gpu" if policy == "sllm" else cluster))
    assert outcome.requests == len(rows)
    assert outcome.slo_met + outcome.dropped <= len(rows)


SCRIPT = """
import sys
from pathlib import Path
from llmhostd.simulator.experiment import Experiment, run
import msgspec
for policy in ("slinfer", "sllm+c+s"):
    outcome = run(Experiment(trace=Path(sys.argv[1]), profiles=Path(sys.argv[2]), cluster="1cpu+1gpu", policy=policy,
                             noise=0.1))
    print(msgspec.json.encode(msgspec.structs.replace(outcome, wall_s=0.0)).decode())
"""


def test_outcomes_do_not_depend_on_the_hash_seed(tmp_path):
    one = experiment(tmp_path, *BUSY[:60])
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(one.trace), str(one.profiles)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for seed in ("0", "4242")
    ]  # fmt: skip
    assert said[0] == said[1] != ""


def test_seeds_without_noise_agree_and_with_noise_give_an_interval(tmp_path):
    calm = run_seeds(experiment(tmp_path, *BUSY[:60], cluster="1cpu+1gpu"), 2)
    assert still(calm.outcomes[0]) == still(calm.outcomes[1])
    assert calm.half_width_95["slo_rate"] == 0.0
    noisy = run_seeds(experiment(tmp_path, *BUSY[:60], cluster="1cpu+1gpu", noise=0.2), 3)
    assert noisy.half_width_95["ttft_s"]["p50"] > 0.0
    mean = sum(one.ttft_s.p50 for one in noisy.outcomes) / 3
    assert noisy.mean["ttft_s"]["p50"] == pytest.approx(mean)
    assert set(noisy.mean) == set(Outcome.__struct_fields__)


def test_the_half_width_is_students():
    from llmhostd.simulator.seeds import half_width

    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 * 1.0 / 3**0.5)


def test_each_ablation_changes_what_it_names():
    whole = elastic("slinfer", Assumptions(), ())
    assert elastic("slinfer", Assumptions(), (Ablation.SHARING,)).host.packing.instances_per_node == 1
    assert elastic("slinfer", Assumptions(), (Ablation.WATERMARK,)).watermark.watermark == 0.0
    assert not elastic("slinfer", Assumptions(), (Ablation.PREEMPTION,)).host.preemption.preempt
    apart = elastic("slinfer", Assumptions(), (Ablation.CONSOLIDATION,)).host
    assert (apart.preemption.preempt, apart.packing.largest_batch_first) == (False, False)
    assert whole.host.preemption.preempt
    assert elastic("slinfer", Assumptions(), (Ablation.CPU,)) == whole, "the cluster loses its CPU nodes, not the minds"


def test_ablations_show_in_the_outcome(tmp_path, outcomes):
    def without(ablation):
        return run(experiment(tmp_path, *BUSY, cluster="1cpu+1gpu", policy="slinfer", without=(ablation,)))

    whole = outcomes["slinfer"]
    assert without(Ablation.CPU).nodes_used.cpu == 0.0
    assert without(Ablation.SHARING).slo_rate < whole.slo_rate
    assert without(Ablation.WATERMARK).kv_scaling_share > whole.kv_scaling_share


@pytest.mark.parametrize("policy", ["sllm+c+s", "slinfer", "llmhostd"])
def test_prefill_and_decode_apart_serve_the_same_requests(tmp_path, outcomes, policy):
    apart = run(experiment(tmp_path, *BUSY, cluster="1cpu+1gpu", policy=policy, disaggregated=True))
    assert (apart.models, apart.requests) == (6, len(BUSY))
    assert 0 < apart.slo_met <= apart.requests - apart.dropped
    assert apart.cold_starts > outcomes[policy].cold_starts


def test_what_goes_on_elsewhere_crosses_the_link(tmp_path):
    lone = [(0.0, 0, 1000, 20)]
    gaps = [
        run(
            experiment(
                tmp_path, *lone, cluster="2gpu", policy="slinfer", disaggregated=True,
                assumptions=Assumptions(link_bytes_per_s=speed),
            )
        ).max_gap_s.p99
        for speed in (1e15, 1e9)
    ]  # fmt: skip
    assert gaps[1] - gaps[0] == pytest.approx(1000 * (512 << 10) / 1e9, rel=0.01)


def test_a_stream_may_wait_for_the_load_of_its_second_instance(tmp_path):
    lone = [(0.0, 0, 1000, 20)]
    apart = run(experiment(tmp_path, *lone, cluster="2gpu", policy="llmhostd", disaggregated=True))
    assert apart.slo_met == 1
    assert 1.0 < apart.max_gap_s.p99 <= 2.0, "a load of a second, within eight TPOT SLOs"


def test_allocating_a_whole_pool_makes_the_baselines_cold_starts_longer(tmp_path):
    rows = [(0.0, 0, 1024, 5)]
    took = [
        run(experiment(tmp_path, *rows, cluster="1gpu", policy="sllm", assumptions=Assumptions(kv_growth=growth)))
        for growth in KvGrowth
    ]
    pool_gib = 78 - 1.5 - 12.6
    assert took[1].ttft_s.p50 - took[0].ttft_s.p50 == pytest.approx(pool_gib * 2**30 / 34e9, rel=0.01)
    assert took[1].slo_met == 1, "a cold start's grace covers it"


def test_what_cannot_be_run_is_named(tmp_path):
    one = experiment(tmp_path, (0, 0, 1, 1))
    for changed, why in (
        ({"policy": "best"}, "no policy best; there are: sllm, sllm.c, sllm.c.s, slinfer, llmhostd"),
        ({"policy": "sllm", "without": (Ablation.CPU,)}, "takes ideas from slinfer or llmhostd, not from sllm"),
        ({"size": "13b"}, "no profile of llama-2-13b on xeon-6462c-32c"),
    ):
        with pytest.raises(OperatorError, match=why):
            run(msgspec.structs.replace(one, **changed))
