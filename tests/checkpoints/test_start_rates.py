"""Do estimates of start times follow what was seen, and nothing else?"""

import statistics

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmhostd.checkpoints.load_plan import Pending, plan_load, queue_s
from llmhostd.checkpoints.tiers import StartPolicy, StartRates, slowest
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId, ShapeKey
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, WeightFormat
from llmhostd.domain.profile import Profile
from llmhostd.domain.start import StartSeen, StorageTier, TierBytes

KEY = ShapeKey("small")
POLICY = StartPolicy(window=5)
IN_MEMORY = TierBytes(memory_bytes=300_000_000)
SECONDS = st.floats(0.001, 100.0)


def shape(layers: int = 12, weight_bytes: int = 300_000_000) -> ModelShape:
    architecture = Architecture(
        family="llama", layers=layers, hidden=768, heads=12, kv_heads=4, head_dim=64, intermediate=2048, vocab=32000,
        max_context_tokens=4096, norm_eps=1e-5, rope_theta=1e4,
    )  # fmt: skip
    return ModelShape(
        architecture=architecture, weights=WeightFormat.BF16, compute=ComputePrecision.BF16, kv=KvPrecision.U8,
        weight_bytes=weight_bytes, kv_bytes_per_token=1024,
    )  # fmt: skip


def seen(
    lay: TierBytes = IN_MEMORY,
    *,
    key: ShapeKey = KEY,
    read_s: float = 0.1,
    load_s: float = 0.4,
    pack_s: float | None = 0.2,
    beside: bool = False,
    layers: int = 12,
    estimated_s: float | None = None,
) -> StartSeen:
    return StartSeen(
        model=ModelName("wren"), node_id=NodeId("cpu0"), hardware_key=HardwareKey("here"), shape_key=key,
        weights=WeightFormat.BF16, layers=layers, weight_bytes=300_000_000, came_from=lay, read_s=read_s,
        load_s=load_s, beside=beside, pack_s=pack_s, packed_beside=beside, estimated_s=estimated_s,
    )  # fmt: skip


def profile(*, load_s: float = 3.0, first_run_s: float = 1.0, measured: bool = True) -> Profile:
    return Profile(
        shape_key=KEY, hardware_key=HardwareKey("here"), prefill=(), decode=(), load_s=load_s,
        first_run_s=first_run_s, resident_bytes=1, warm_bytes=1, measured=measured,
    )  # fmt: skip


@given(st.lists(SECONDS, min_size=1, max_size=20), st.lists(SECONDS, max_size=20))
def test_a_load_is_foretold_as_the_median_of_the_latest_alike(alone: list[float], beside: list[float]) -> None:
    """Against a slow twin that keeps everything and looks back."""
    rates, lies = StartRates(POLICY), TierBytes(memory_bytes=300_000_000)
    for load_s in alone:
        rates.learn(seen(read_s=0.0005, load_s=load_s, pack_s=load_s))
    for load_s in beside:
        rates.learn(seen(read_s=0.0005, load_s=load_s, pack_s=load_s, beside=True))
    for near, loads_s in ((False, alone), (True, beside or alone)):
        plan = plan_load(shape(), KEY, lies, rates, None, beside=near)
        last = loads_s[-POLICY.window :]
        assert abs(plan.load_s - statistics.median(last)) < 1e-9
        assert abs(rates.pack_s(KEY, beside=near) - statistics.median(last)) < 1e-9  # type: ignore[operator]


@given(
    st.lists(st.tuples(SECONDS, st.booleans()), max_size=8),
    st.floats(0.0, 50.0),
)
def test_a_queue_is_as_long_as_playing_it_takes(loads: list[tuple[float, bool]], began_ago_s: float) -> None:
    """Against a twin that lets time pass in small steps. Only the first can have begun."""
    now, step_s = 100.0, 0.01
    pending = [
        Pending(load_s, now - began_ago_s if begun and not place else None)
        for place, (load_s, begun) in enumerate(loads)
    ]
    left_s = [one.load_s if one.began_s is None else max(one.load_s - (now - one.began_s), 0.0) for one in pending]
    clock = 0.0
    while any(each > 1e-9 for each in left_s):
        first = next(place for place, each in enumerate(left_s) if each > 1e-9)
        gone_s = min(left_s[first], max(step_s, left_s[first] / 3))
        left_s[first] -= gone_s
        clock += gone_s
    assert abs(queue_s(pending, now) - clock) < 1e-6


def test_bytes_come_as_fast_as_the_slowest_tier_on_their_way() -> None:
    rates = StartRates(StartPolicy(memory_bytes_per_s=4e9, disk_bytes_per_s=2e9, remote_bytes_per_s=1e8))
    assert rates.bytes_per_s(StorageTier.MEMORY) == 4e9
    assert rates.bytes_per_s(StorageTier.DISK) == 2e9
    fast = StartRates(StartPolicy(memory_bytes_per_s=1e9))
    fast.learn(seen(TierBytes(disk_bytes=500_000_000), read_s=0.1))
    assert fast.bytes_per_s(StorageTier.DISK) == 5e9, "what was only configured bounds nothing that was seen"
    assert fast.bytes_per_s(StorageTier.MEMORY) == 5e9, "what comes from the disk has passed memory as fast"
    rates.learn(seen(TierBytes(memory_bytes=100_000_000), read_s=0.1))
    assert rates.bytes_per_s(StorageTier.MEMORY) == 1e9
    assert rates.bytes_per_s(StorageTier.DISK) == 1e9, "what comes from the disk passes memory"
    assert rates.bytes_per_s(StorageTier.REMOTE) == 1e8
    assert rates.read_s(TierBytes(memory_bytes=10**9, remote_bytes=10**8)) == 2.0


def test_how_fast_its_own_shape_comes_tells_more_than_another_shape_beside_others() -> None:
    rates, other = StartRates(POLICY), ShapeKey("other")
    rates.learn(seen(read_s=0.1))
    rates.learn(seen(key=other, read_s=3.0, beside=True))
    assert rates.bytes_per_s(StorageTier.MEMORY, KEY, beside=True) == 3e9
    assert rates.bytes_per_s(StorageTier.MEMORY, ShapeKey("new"), beside=True) == 1e8
    rates.learn(seen(read_s=0.3, beside=True))
    assert rates.bytes_per_s(StorageTier.MEMORY, KEY, beside=True) == 1e9


def test_waits_for_iterations_of_others_are_no_part_of_a_start_alone() -> None:
    rates = StartRates(POLICY)
    rates.learn(replace(seen(beside=True), hops_s=0.2))
    alone, beside = (
        lambda: plan_load(shape(), KEY, IN_MEMORY, rates, None).hops_s,
        lambda: plan_load(shape(), KEY, IN_MEMORY, rates, None, beside=True).hops_s,
    )
    assert (alone(), beside()) == (0.2, 0.2), "better than nothing"
    rates.learn(replace(seen(), hops_s=0.01))
    assert (alone(), beside()) == (0.01, 0.2)


def test_what_came_from_memory_beside_the_disk_is_taken_off() -> None:
    rates = StartRates(StartPolicy(memory_bytes_per_s=2e9))
    rates.learn(seen(TierBytes(memory_bytes=100_000_000, disk_bytes=200_000_000), read_s=0.25))
    assert abs(rates.bytes_per_s(StorageTier.DISK) - 1e9) < 1
    rates.learn(seen(TierBytes(memory_bytes=250_000_000, disk_bytes=50_000_000), read_s=9.0))
    assert abs(rates.bytes_per_s(StorageTier.DISK) - 1e9) < 1, "a few bytes from a disk tell nothing of it"


def test_one_hiccup_changes_nothing() -> None:
    rates = StartRates(POLICY)
    for load_s in (0.4, 0.4, 30.0, 0.4):
        rates.learn(seen(load_s=load_s))
    assert plan_load(shape(), KEY, TierBytes(memory_bytes=300_000_000), rates, None).load_s == 0.4


def test_what_was_seen_counts_before_what_was_measured_before_what_others_suggest_before_settings() -> None:
    lies, rates = (
        TierBytes(memory_bytes=300_000_000),
        StartRates(StartPolicy(memory_bytes_per_s=3e9, build_layer_s=0.5)),
    )
    assert plan_load(shape(), KEY, lies, rates, None).build_s == 6.0
    assert plan_load(shape(), KEY, lies, rates, profile(measured=False)).start_s == 4.0
    rates.learn(seen(key=ShapeKey("other"), load_s=0.4, layers=3))
    assert abs(plan_load(shape(), KEY, lies, rates, profile(measured=False)).build_s - 1.2) < 1e-9
    assert plan_load(shape(), KEY, lies, rates, profile()).start_s == 4.0
    rates.learn(seen(load_s=0.7))
    plan = plan_load(shape(), KEY, lies, rates, profile(), queue_s=1.0)
    assert (round(plan.load_s, 9), plan.pack_s, round(plan.start_s, 9)) == (0.7, 0.2, 1.9)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_slowest_tier_is_one_that_a_good_part_comes_from(memory: int, disk: int, remote: int) -> None:
    lies = TierBytes(memory_bytes=memory, disk_bytes=disk, remote_bytes=remote)
    tier = slowest(lies)
    order = list(StorageTier)
    assert not lies.total_bytes or lies.of(tier) >= 0.1 * lies.total_bytes
    assert all(lies.of(each) <= max(0.1 * lies.total_bytes, 1) for each in order[order.index(tier) + 1 :])


def test_an_engine_that_says_nothing_of_its_reading_is_foretold_as_a_whole() -> None:
    rates, lies = StartRates(POLICY), TierBytes(disk_bytes=300_000_000)
    rates.learn(seen(lies, read_s=0.0, load_s=2.0))
    assert abs(plan_load(shape(), KEY, lies, rates, None).load_s - 2.0) < 1e-9
    assert rates.bytes_per_s(StorageTier.DISK) == StartPolicy().disk_bytes_per_s
