from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, NEW_TOKENS, PROMPT_TOKENS, Case, prompt

from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.paged_contexts import PagedContexts

GOLDENS = np.load(Path(__file__).parent.parent / "goldens" / "goldens.npz")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("chunk", [None, 16, 7])
def test_f32_equals_transformers(load, case: Case, chunk: int | None) -> None:
    contexts = PagedContexts([load(case.name)], kv_blocks=8)
    for length in PROMPT_TOKENS:
        tokens, logits = contexts.greedy(prompt(case, length), NEW_TOKENS, chunk)
        golden = GOLDENS[f"{case.name}/{length}/logits"]
        assert np.abs(logits - golden).max() <= 1e-3
        assert tokens == GOLDENS[f"{case.name}/{length}/tokens"].tolist()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("compute", "kv"),
    [
        (ComputePrecision.F32, KvPrecision.U8),
        (ComputePrecision.BF16, KvPrecision.BF16),
        (ComputePrecision.BF16, KvPrecision.U8),
    ],
)
def test_narrow_precisions_stay_near(load, case: Case, compute: ComputePrecision, kv: KvPrecision) -> None:
    """Their root mean square error stays within 6% of the logits' spread, teacher-forced by the first token."""
    contexts = PagedContexts([load(case.name, compute, kv)], kv_blocks=8)
    for length in PROMPT_TOKENS:
        _, logits = contexts.greedy(prompt(case, length), 1, chunk=16)
        golden = GOLDENS[f"{case.name}/{length}/logits"][:1]
        assert np.sqrt(((logits - golden) ** 2).mean()) <= 0.06 * golden.std()
