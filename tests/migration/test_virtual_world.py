"""Under load, with either end dying now and then: no stream is lost or changed, and none pauses for long."""

import pytest
from profiled_box import node
from virtual_world import VirtualWorld

NODES = [node(f"cpu{n}", 2000) for n in range(3)]


@pytest.mark.parametrize("kill_every_s", [None, 2.0])
def test_streams_that_move_pause_for_two_iterations_at_most(kill_every_s):
    seen = VirtualWorld(NODES, ("wren", "owl"), seed=1, kill_every_s=kill_every_s).run(switches=30)
    assert not seen.wrong
    assert not seen.lost
    live = [one for one in seen.switches if one.live]
    assert len(live) >= 20
    assert max(one.iterations for one in live) <= 2
    assert bool(seen.kills) == bool(kill_every_s)
