"""Is the choice of who gives way one that trying every set of neighbours would make?"""

from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from llmhostd.consolidation.preemption import Neighbour, PreemptionPolicy, preempt

POLICY = PreemptionPolicy(most_moves=100)


@dataclass
class Node:
    """A node with neighbours: bytes and load that each frees, load that must go, and room elsewhere."""

    neighbours: list
    frees_load: dict
    short_bytes: int
    excess_load: int
    room: int
    """Requests that all other nodes together can take."""
    bound: dict = field(default_factory=dict)
    """Those that cannot go anywhere, even alone."""
    asked: int = 0

    def in_time(self, without):
        self.asked += 1
        return sum(self.frees_load[name] for name in without) >= self.excess_load

    def rehouse(self, victims):
        room, moves = self.room, []
        for one in self.neighbours:
            if one.id not in victims:
                continue
            room -= one.batch
            if room < 0 or one.id in self.bound:
                return one.id
            moves += [f"{one.id}/{n}" for n in range(one.batch)]
        return tuple(moves)


ROOM = st.integers(0, 12)


@st.composite
def nodes(draw, room=ROOM):
    many = draw(st.integers(0, 5))
    ones = [Neighbour(f"n{n}", draw(st.integers(0, 5)), draw(st.integers(0, 9))) for n in range(many)]
    loads = {one.id: draw(st.integers(0, 9)) for one in ones}
    bound = {one.id: None for one in ones if draw(st.integers(0, 4)) == 0}
    return Node(ones, loads, draw(st.integers(-5, 25)), draw(st.integers(0, 25)), draw(room), bound)


def every_answer(node, own_batch):
    """All sets of neighbours that would do, by trying every one."""
    for size in range(1, len(node.neighbours) + 1):
        for some in combinations(node.neighbours, size):
            names = [one.id for one in some]
            if (
                all(0 < one.batch < own_batch for one in some)
                and sum(one.gives_bytes for one in some) >= node.short_bytes
                and sum(node.frees_load[name] for name in names) >= node.excess_load
                and isinstance(node.rehouse(names), tuple)
            ):
                yield some


@given(nodes(), st.integers(0, 6))
def test_what_is_chosen_is_one_of_all_answers(node, own_batch):
    chosen = preempt(own_batch, node.neighbours, node, POLICY)
    answers = [{one.id for one in some} for some in every_answer(node, own_batch)]
    if chosen is None:
        return
    assert set(chosen.victims) in answers
    assert not any(each < set(chosen.victims) for each in answers), "nobody gives way for nothing"
    assert chosen.moves == tuple(
        f"{one.id}/{n}" for one in node.neighbours if one.id in chosen.victims for n in range(one.batch)
    ), "each request moves once, none is left"


@given(nodes(room=st.just(100)), st.integers(0, 6))
def test_where_places_are_plenty_the_smallest_give_way_whenever_anybody_can(node, own_batch):
    chosen = preempt(own_batch, node.neighbours, node, POLICY)
    answers = list(every_answer(node, own_batch))
    assert (chosen is None) == (not answers)
    if chosen:
        batch = {one.id: one.batch for one in node.neighbours}
        assert max(batch[name] for name in chosen.victims) == min(max(one.batch for one in some) for some in answers)


@given(nodes(), st.integers(0, 6))
def test_memory_that_nobody_can_give_costs_no_validation(node, own_batch):
    if sum(one.gives_bytes for one in node.neighbours) < node.short_bytes:
        assert preempt(own_batch, node.neighbours, node, POLICY) is None
        assert node.asked == 0


def test_the_smallest_of_sixteen_is_found_with_few_validations():
    ones = [Neighbour(f"n{n}", n + 1, 10) for n in range(15)]
    node = Node(ones, {one.id: 10 for one in ones}, short_bytes=0, excess_load=10, room=100)
    assert preempt(16, ones, node, POLICY).victims == ("n0",)
    assert node.asked <= 5


def test_none_gives_way_to_an_equal_or_where_it_is_off_or_too_much_would_move():
    one = Neighbour("n0", 3, 10)
    node = Node([one], {"n0": 10}, short_bytes=5, excess_load=5, room=9)
    assert preempt(3, [one], node, POLICY) is None
    assert preempt(4, [one], node, PreemptionPolicy(preempt=False)) is None
    assert preempt(4, [one], node, PreemptionPolicy(most_moves=2)) is None
    assert preempt(4, [one], node, PreemptionPolicy(most_moves=3)).victims == ("n0",)
