"""Which states does an instance go through on its node? One table for code, tests and the documents' diagram."""

from enum import StrEnum


class Phase(StrEnum):
    """Where an instance is, as its node sees it. An instance that is gone is not on the node any more."""

    QUEUED = "queued"
    """To be built: another load runs, or its memory is not there yet. Holds nothing."""
    LOADING = "loading"
    FILLING = "filling"
    """Compiled; weights are still being read. Its iterations begin, and end once it is warm."""
    WARM = "warm"
    """Compiled; its first iteration will pack the weights."""
    RESIDENT = "resident"
    RESTING = "resting"
    """Being destroyed, to be built again."""
    UNLOADING = "unloading"


class Trigger(StrEnum):
    """What moves it on."""

    LOAD_BEGUN = "load begun"
    COMPILED = "compiled"
    LOADED = "loaded"
    RAN = "ran"
    REST_BEGUN = "rest begun"
    EMPTIED = "emptied"
    UNLOAD_BEGUN = "unload begun"
    BROKE = "broke"


TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.QUEUED, Trigger.LOAD_BEGUN): Phase.LOADING,
    (Phase.QUEUED, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.LOADING, Trigger.COMPILED): Phase.FILLING,
    (Phase.LOADING, Trigger.LOADED): Phase.WARM,
    (Phase.FILLING, Trigger.LOADED): Phase.WARM,
    (Phase.FILLING, Trigger.BROKE): Phase.UNLOADING,
    (Phase.WARM, Trigger.RAN): Phase.RESIDENT,
    (Phase.WARM, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.RESIDENT, Trigger.RAN): Phase.RESIDENT,
    (Phase.RESIDENT, Trigger.REST_BEGUN): Phase.RESTING,
    (Phase.RESIDENT, Trigger.UNLOAD_BEGUN): Phase.UNLOADING,
    (Phase.RESTING, Trigger.EMPTIED): Phase.QUEUED,
    (Phase.WARM, Trigger.BROKE): Phase.UNLOADING,
    (Phase.RESIDENT, Trigger.BROKE): Phase.UNLOADING,
}

COMPUTES = (Phase.WARM, Phase.RESIDENT)
"""Phases in which all of an instance computes."""

PRESENT = (Phase.FILLING, *COMPUTES)
"""Phases in which an instance has a pool and may be given iterations."""

LOADS = (Phase.LOADING, Phase.FILLING)
"""Phases in which the builder works for an instance."""

RELEASES = (Phase.RESTING, Phase.UNLOADING)
"""Phases that end with memory given back."""


def moved(phase: Phase, trigger: Trigger) -> Phase:
    """Return the next phase; the same one when the table has no such move (late news)."""
    return TRANSITIONS.get((phase, trigger), phase)
