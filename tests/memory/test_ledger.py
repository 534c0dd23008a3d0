"""Does the ledger always add up, whatever is done to it?"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llmhostd.domain.ids import InstanceId
from llmhostd.memory.ledger import Ledger, Purpose

INSTANCES = st.sampled_from([InstanceId(f"m@cpu0#{n}") for n in range(4)])
PURPOSES = st.sampled_from(list(Purpose))
SIZES = st.integers(0, 1 << 40)
CAPACITY = 1 << 38


class LedgerAgainstPlainSums(RuleBasedStateMachine):
    """The twin is a flat list of what every (instance, purpose) was last told to own."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.told: list[tuple[InstanceId, Purpose, int]] = []

    def owned(self, instance_id=None, purpose=None) -> int:
        last = {(who, why): size for who, why, size in self.told}
        return sum(size for (who, why), size in last.items() if instance_id in (None, who) and purpose in (None, why))

    @rule(instance_id=INSTANCES, purpose=PURPOSES, size_bytes=SIZES)
    def own(self, instance_id, purpose, size_bytes):
        self.ledger.set(instance_id, purpose, size_bytes)
        self.told.append((instance_id, purpose, size_bytes))

    @rule(instance_id=INSTANCES)
    def release(self, instance_id):
        assert self.ledger.release(instance_id) == self.owned(instance_id)
        self.told += [(instance_id, purpose, 0) for purpose in Purpose]

    @rule(instance_id=INSTANCES, purpose=PURPOSES, size_bytes=st.integers(max_value=-1))
    def refuse_negative_sizes(self, instance_id, purpose, size_bytes):
        with pytest.raises(ValueError, match="cannot own"):
            self.ledger.set(instance_id, purpose, size_bytes)

    @invariant()
    def adds_up(self):
        assert self.ledger.owned_bytes + self.ledger.free_bytes == CAPACITY
        assert self.ledger.owned_bytes == self.owned()
        assert self.ledger.violations() == []

    @invariant()
    def knows_whose_each_byte_is(self):
        owners = {who for who, _, _ in self.told}
        for instance_id in owners:
            assert self.ledger.of(instance_id) == self.owned(instance_id)
            for purpose in Purpose:
                assert self.ledger.of(instance_id, purpose) == self.owned(instance_id, purpose)
        for purpose in Purpose:
            assert self.ledger.total(purpose) == self.owned(purpose=purpose)


TestLedger = LedgerAgainstPlainSums.TestCase


def test_a_ledger_says_what_does_not_add_up():
    ledger = Ledger(100)
    ledger.set(InstanceId("m@cpu0#0"), Purpose.KV, 10)
    ledger._owned_bytes = 11
    assert ledger.violations() == ["owned 10 + free 89 != capacity 100"]
