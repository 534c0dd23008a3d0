"""The table of an instance's states."""

from llmhostd.node.states import COMPUTES, TRANSITIONS, Phase, Trigger, moved


def reachable_from(phase, seen=()):
    seen = {*seen, phase}
    for (before, _), after in TRANSITIONS.items():
        if before in seen and after not in seen:
            seen |= reachable_from(after, seen)
    return seen


def test_every_state_is_reached_and_every_state_that_lasts_can_be_left_for_good():
    assert reachable_from(Phase.QUEUED) == set(Phase)
    for phase in Phase:
        assert Phase.UNLOADING in reachable_from(phase)


def test_only_what_is_loaded_computes():
    ran = {before for before, trigger in TRANSITIONS if trigger is Trigger.RAN}
    assert ran == set(COMPUTES)


def test_late_news_moves_nothing():
    for phase in Phase:
        for trigger in Trigger:
            if (phase, trigger) not in TRANSITIONS:
                assert moved(phase, trigger) is phase
