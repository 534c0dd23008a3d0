"""Is the box filled as tightly as looking at everything would fill it?"""

from hypothesis import given
from hypothesis import strategies as st

from llmhostd.consolidation.bin_packing import NEARNESS, PackingPolicy, Standing, fit, fragments, preference
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.model import ModelState

CPU, GPU = NodeKind.CPU, NodeKind.GPU
RESIDENT, WARM, LOADING = ModelState.RESIDENT, ModelState.WARM, ModelState.LOADING
POLICY = PackingPolicy()


def standing(name, kind=CPU, state=RESIDENT, batch=0, used_s=0.0):
    return Standing(name, kind, state, batch, used_s)


def in_order(*ones, policy=POLICY):
    return [one.id for one in sorted(ones, key=lambda one: preference(one, policy))]


def test_cpu_first_then_ready_then_the_largest_batch_then_the_nearest():
    ones = (
        standing("gpu-full", GPU, batch=9),
        standing("cpu-loading", state=LOADING, batch=5),
        standing("cpu-warm", state=WARM, batch=0),
        standing("cpu-idle", batch=0, used_s=1.0),
        standing("cpu-lately", batch=0, used_s=2.0),
        standing("cpu-busy", batch=2),
    )
    assert in_order(*ones) == ["cpu-busy", "cpu-lately", "cpu-idle", "cpu-warm", "cpu-loading", "gpu-full"]


def test_each_preference_can_be_switched_off():
    ones = (standing("gpu", GPU, batch=1), standing("cpu", batch=9), standing("small", GPU, batch=0))
    assert in_order(*ones, policy=PackingPolicy(cpu_first=False)) == ["cpu", "gpu", "small"]
    assert in_order(*ones, policy=PackingPolicy(cpu_first=False, largest_batch_first=False)) == ["gpu", "cpu", "small"]
    spaces = [("a", CPU, 50), ("b", CPU, 10), ("c", GPU, 5)]

    def best(policy):
        return min(spaces, key=lambda space: fit(space[1], space[2], policy))[0]

    assert best(POLICY) == "b"
    assert best(PackingPolicy(best_fit=False)) == "a"
    assert best(PackingPolicy(cpu_first=False)) == "c"


SPACES = st.lists(st.tuples(st.sampled_from(NodeKind), st.integers(-50, 50)), min_size=1, max_size=8)


@given(SPACES)
def test_a_new_instance_goes_where_brute_force_would_put_it(spaces):
    chosen = min(range(len(spaces)), key=lambda n: fit(*spaces[n], POLICY))
    kind, left = spaces[chosen]
    assert not (kind is GPU and any(other is CPU for other, _ in spaces))
    alike = [size for other, size in spaces if other is kind]
    roomy = [size for size in alike if size >= 0]
    assert left == (min(roomy) if roomy else max(alike))


@given(st.lists(st.integers(1, 10), max_size=20), st.lists(st.integers(10, 30), min_size=2, max_size=5))
def test_packing_by_fit_is_best_fit(items, bins):
    ours, twin = list(bins), list(bins)
    for item in items:
        nodes = [n for n in range(len(bins)) if ours[n] >= item]
        if nodes:
            ours[min(nodes, key=lambda n: fit(CPU, ours[n] - item, POLICY))] -= item
        best = None
        for n, free in enumerate(twin):
            if free >= item and (best is None or free < twin[best]):
                best = n
        if best is not None:
            twin[best] -= item
        assert ours == twin


@given(st.lists(st.tuples(st.sampled_from(NodeKind), st.sampled_from(list(ModelState)), st.integers(0, 9)), max_size=6))
def test_all_but_the_preferred_are_fragments(seen):
    ones = [standing(f"i{n}", *each) for n, each in enumerate(seen)]
    found = fragments(ones, POLICY)
    taking = [one for one in ones if one.state in NEARNESS]
    kept = [one for one in taking if one.id not in found]
    assert len(kept) == min(len(taking), 1)
    for one in kept:
        assert all(preference(one, POLICY) <= preference(each, POLICY) for each in taking)
