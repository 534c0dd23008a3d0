"""In which order do an iteration's rows meet the slots of their adapters?

Products with the factors of several slots cost less if each slot is multiplied by its own row alone: a vector times a
matrix that is read as it lies, where it would else be copied into the order of the instructions first (1.1B, 8 adapters
of all linear layers: a step of 1.14 times the base's instead of 1.20). That takes as many slots, side by side, as rows,
each row at its slot's place. Requests of one token can be put there, in whatever order they come. In all other
iterations all rows are multiplied by all slots from the first to the last in use.
"""

from copy import copy
from typing import NamedTuple

import numpy as np

from llmhostd.engines.interface import Int32s, Iteration
from llmhostd_openvino.padding import append_request, pad, padded_count


class SlotView(NamedTuple):
    """Slots that lie side by side, and whether each is multiplied apart."""

    first: int
    end: int
    apart: bool


class SlotRows(NamedTuple):
    """Which slots an iteration uses, and which row which."""

    view: SlotView
    row_slots: Int32s
    """`[batch, rows]`: each token's slot, or -1; batch is the number of slots if they are apart, else 1."""


def arranged(iteration: Iteration, slots: int, scratch_block: int, *, any_order: bool) -> tuple[Iteration, SlotRows]:
    """Pad an iteration, and bring its requests into order if that helps. Results of what was asked for come first.

    Its adapters are named by the places of their slots. `any_order`: whether tokens come in and only sampled rows go
    out; rows of hidden states stay where they are.
    """
    used = _used(iteration)
    first, end = min(used, default=0), max(used, default=0) + 1
    rows = padded_count(len(iteration.positions))
    if end - first <= rows and _may_be_apart(iteration, used, slots, any_order=any_order):
        first = min(first, slots - rows)
        ordered = _in_place(iteration, first, rows, scratch_block)
        return pad(ordered, scratch_block), SlotRows(
            SlotView(first, first + rows, apart=True), _adapters(ordered)[:, None]
        )
    padded = pad(iteration, scratch_block)
    count = min(1 << (end - first - 1).bit_length(), slots)  # few sizes: the engine makes kernels for each
    first = min(first, slots - count)
    row_slots = np.repeat(_adapters(padded), np.diff(padded.subsequence_begins))
    return padded, SlotRows(SlotView(first, first + count, apart=False), row_slots[None])


def slots_needed(iteration: Iteration, slots: int, *, any_order: bool) -> int:
    """How many slots an iteration looks at if those that it uses lie side by side."""
    used = _used(iteration)
    apart = _may_be_apart(iteration, used, slots, any_order=any_order)
    return padded_count(len(iteration.positions)) if apart else len(set(used))


def _used(it: Iteration) -> list[int]:
    return [slot for slot in _adapters(it).tolist() if slot != -1]


def _may_be_apart(it: Iteration, used: list[int], slots: int, *, any_order: bool) -> bool:
    """Whether all requests have one token, no two the same adapter, and there are slots for all rows."""
    one_each = len(it.past_lens) == len(it.positions) and 1 < len(used) == len(set(used))
    return any_order and one_each and padded_count(len(it.positions)) <= slots


def _in_place(it: Iteration, first: int, rows: int, scratch_block: int) -> Iteration:
    """Put each request at its slot's place, those without an adapter and some that compute nothing at the others."""
    adapters = _adapters(it)
    places = {slot - first: request for request, slot in enumerate(adapters.tolist()) if slot != -1}
    others = iter([*np.flatnonzero(adapters == -1).tolist(), *range(len(adapters), rows)])
    order = [places[place] if place in places else next(others) for place in range(rows)]
    if order == list(range(len(adapters))):
        return it
    ordered = copy(it)
    for _ in range(rows - len(adapters)):
        append_request(ordered, 1, scratch_block)
    begins = ordered.block_indices_begins.tolist()
    tables = [ordered.block_indices[begins[one] : begins[one + 1]] for one in order]
    for name in ("token_ids", "positions", "past_lens", "adapters"):
        setattr(ordered, name, getattr(ordered, name)[order])
    ordered.block_indices = np.concatenate(tables)
    ordered.block_indices_begins = np.cumsum([0, *map(len, tables)], dtype=np.int32)
    ordered.sampled_indices = np.argsort(order)[it.sampled_indices]
    return ordered


def _adapters(it: Iteration) -> Int32s:
    return np.full(len(it.past_lens), -1, np.int32) if it.adapters is None else it.adapters
