"""Who counts as a neighbour of a load."""

import time

from llmhostd.domain.ids import InstanceId
from llmhostd.worker.neighbours import Neighbours

MINE, OTHER = InstanceId("mine"), InstanceId("other")


def test_others_crowd_while_they_compute_and_a_moment_longer() -> None:
    neighbours = Neighbours()
    neighbours.loads(MINE)
    assert not neighbours.crowd()
    neighbours.begins(OTHER)
    time.sleep(0.1)
    assert neighbours.crowd()
    neighbours.ends()
    assert neighbours.crowd()
    time.sleep(0.1)
    assert not neighbours.crowd()


def test_what_loads_does_not_crowd_itself() -> None:
    neighbours = Neighbours()
    neighbours.loads(MINE)
    neighbours.begins(MINE)
    assert not neighbours.crowd()
    neighbours.ends()
    assert not neighbours.crowd()
