"""Does the queue keep people and work in order of arrival, whoever comes and goes?"""

from boxes import Box
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.request import Tier
from llmhostd.host.request import LiveRequest
from llmhostd.host.waiting import ArrivalQueue, Waiting


def waiting_request(name, arrived_s=0.0, tier=Tier.LATENCY_SENSITIVE, model="wren"):
    return LiveRequest(RequestLoad(Box(models=()).shape_of(model, id=name, arrived_s=arrived_s, tier=tier)))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans())))
def test_a_queue_is_a_sorted_list(steps):
    arrivals = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 1.0, "e": 0.0, "f": 2.0}
    requests = {name: waiting_request(name, at) for name, at in arrivals.items()}
    queue, twin = ArrivalQueue(), []
    for name, comes in steps:
        one = requests[name]
        if comes and name not in twin:
            queue.add(one)
            twin = sorted([*twin, name], key=lambda each: (arrivals[each], each))
        elif not comes:
            assert queue.discard(one) == (name in twin)
            twin = [each for each in twin if each != name]
        assert [each.load.shape.id for each in queue] == twin
        assert (one in queue) == (name in twin)
        assert len(queue) == len(twin)


def test_everybody_waits_in_one_queue():
    waiting = Waiting()
    work, person = waiting_request("b1", tier=Tier.BEST_EFFORT), waiting_request("r1")
    waiting.add(work)
    waiting.add(person)
    assert (len(waiting), waiting.of("wren")) == (2, [person, work])
    assert (waiting.places_of(work), waiting.places_of(person)) == (1, 1)
    waiting.discard(work)
    waiting.discard(person)
    assert (len(waiting), waiting.best_effort) == (0, {})
