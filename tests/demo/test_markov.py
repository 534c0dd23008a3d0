from hypothesis import given
from hypothesis import strategies as st

from llmhostd.demo.markov import learn

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=6)


@given(DOCUMENTS)
def test_probabilities_are_shares_of_what_was_counted(documents: list[list[int]]) -> None:
    chain = learn(documents, {2: 100, 3: 100})
    for context, successors in chain.successors.items():
        size = len(context)
        followers = [
            document[place + size]
            for document in documents
            for place in range(len(document) - size)
            if tuple(document[place : place + size]) == context
        ]
        if size > 1 or len(followers) < 12:
            assert successors == {one: followers.count(one) / len(followers) for one in set(followers)}
        assert abs(sum(successors.values()) - 1) < 1e-9


@given(DOCUMENTS, st.integers(0, 5), st.integers(0, 5))
def test_a_kept_context_has_its_shorter_one_kept_and_budgets_hold(
    documents: list[list[int]], pairs: int, triples: int
) -> None:
    chain = learn(documents, {2: pairs, 3: triples})
    assert len(chain.of_length(2)) <= pairs
    assert len(chain.of_length(3)) <= triples
    assert all(context[1:] in chain.successors for context in chain.successors if len(context) > 1)


def test_the_most_telling_contexts_are_kept() -> None:
    documents = [[1, 2, 3]] * 9 + [[4, 2, 5]] * 9 + [[6, 2, 3], [6, 2, 5]]
    chain = learn(documents, {2: 2})
    assert chain.of_length(2) == [(1, 2), (4, 2)]
    assert chain.successors[(1, 2)] == {3: 1.0}
    assert chain.successors[(2,)] == {3: 0.5, 5: 0.5}


def test_successors_seen_once_after_a_frequent_token_are_dropped() -> None:
    chain = learn([[1, 2]] * 20 + [[1, 3]], {})
    assert chain.successors[(1,)] == {2: 1.0}
