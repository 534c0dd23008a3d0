"""Under load, with either end dying now and then: no stream is lost or changed, and none pauses for long."""

import pytest
from profiled_box import node
from virtual_world import VirtualWorld

NODES = [node(f"cpu{n}", 2000) for n in range(3)]


@pytest.mark.parametrize(("kill_every_s", "seed"), [(None, 1), (1.0, 1), (1.0, 8)])
def test_streams_that_move_pause_for_two_iterations_at_most(kill_every_s, seed):
    seen = VirtualWorld(NODES, ("wren", "owl"), seed=seed, kill_every_s=kill_every_s).run(switches=40)
    assert not seen.wrong
    assert not seen.lost
    live = [one for one in seen.switches if one.live and not one.death]
    assert len(live) >= 30
    assert max(one.iterations for one in live) <= 2
    assert bool(seen.kills) == bool(kill_every_s)
