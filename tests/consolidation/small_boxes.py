"""Boxes whose instances and batches are where a test wants them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "host"))

from boxes import Box, node, profile, row

from llmhostd.compute.shadow_validation import Verdict
from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.model import ModelState
from llmhostd.host.offers import Offer
from llmhostd.host.request import LiveRequest

__all__ = ["Box", "node", "profile", "row", "seat"]


def seat(box, name, node_id, batch, *, tokens=3, **more):
    """Let a resident instance of a model run a batch on a node; returns its id. Each has said a few tokens already."""
    fleet, mind = box.mind.fleet, box.mind
    instance = mind.residency.draft(fleet.models[name], fleet.nodes[node_id], box.now)
    here = []
    for _ in range(batch):
        live = LiveRequest(RequestLoad(box.shape_of(name, **more)))
        fleet.requests[live.load.shape.id] = live
        here.append(live.load)
        box.decided += mind.placement.place(live, Offer(instance, live.load, Verdict(True, 0.0, "test")), box.now)
    if not batch:
        fleet.add(instance)
        box.decided += mind.residency.settle(instance, box.now, "test")
    box.report(instance.id, ModelState.WARM)
    box.report(instance.id, ModelState.RESIDENT)
    rows = [row(load.shape.id, prefilled=load.pending_tokens, tokens=tokens) for load in here]
    box.iterate(instance.id, *rows, after=0.0)
    return instance.id
