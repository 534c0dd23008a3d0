"""Which states does an instance go through on its node? One table for code, tests and the documents' diagram."""

from enum import StrEnum


class Phase(StrEnum):
    """Where an instance is, as its node sees it. An instance that is gone is not on the node any more."""

    QUEUED = "queued"
    """Ordered; another load runs."""
    LOADING = "loading"
    WARM = "warm"
    """Compiled; its first iteration will pack the weights."""
    RESIDENT = "resident"
    RESTING = "resting"
    """On its way back to warm."""
    UNLOADING = "unloading"


class Trigger(StrEnum):
    """What moves it on."""

    LOAD_BEGUN = "load begun"
    LOADED = "loaded"
    RAN = "ran"
    REST_BEGUN = "rest begun"
    UNLOAD_BEGUN = "unload begun"


TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.QUEUED, Trigger.LOAD_BEGUN): Phase.LOADING,
    (Phase.QUEUED, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.LOADING, Trigger.LOADED): Phase.WARM,
    (Phase.WARM, Trigger.RAN): Phase.RESIDENT,
    (Phase.WARM, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.RESIDENT, Trigger.RAN): Phase.RESIDENT,
    (Phase.RESIDENT, Trigger.REST_BEGUN): Phase.RESTING,
    (Phase.RESIDENT, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.RESTING, Trigger.LOADED): Phase.WARM,
}

COMPUTES = (Phase.WARM, Phase.RESIDENT)
"""Phases in which an instance may be given iterations."""


def moved(phase: Phase, trigger: Trigger) -> Phase:
    """Return the next phase; the same one when the table has no such move (late news)."""
    return TRANSITIONS.get((phase, trigger), phase)
