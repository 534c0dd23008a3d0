import numpy as np
import pytest
from goldens.families import CASES, prompt

from llmhostd.domain.errors import EngineError
from llmhostd.engines.interface import ModuleRange
from llmhostd.engines.paged_contexts import PagedContexts


@pytest.mark.parametrize("name", ["llama", "qwen2-tied", "qwen2-window", "qwen3", "mistral-window"])
@pytest.mark.parametrize(
    "ranges",
    [
        [ModuleRange(first=0, end=1, head=False), ModuleRange(first=1, end=3, embedding=False)],
        [
            ModuleRange(first=0, end=0, head=False),
            ModuleRange(first=0, end=2, embedding=False, head=False),
            ModuleRange(first=2, end=3, embedding=False, head=False),
            ModuleRange(first=3, end=3, embedding=False),
        ],
    ],
    ids=["two", "embedding-layers-layer-head"],
)
def test_ranges_in_a_row_equal_the_whole_exactly(load, name: str, ranges: list[ModuleRange]) -> None:
    case = next(case for case in CASES if case.name == name)
    whole = PagedContexts([load(name)], kv_blocks=8)
    split = PagedContexts([load(name, modules=one) for one in ranges], kv_blocks=8)
    expected_tokens, expected = whole.greedy(prompt(case, 70), 6, chunk=32)
    tokens, logits = split.greedy(prompt(case, 70), 6, chunk=32)
    assert tokens == expected_tokens
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (ModuleRange(first=0, end=4), "layers 0 to 4 are not a range of this model's 3 layers"),
        (ModuleRange(first=2, end=1), "layers 2 to 1"),
        (ModuleRange(first=-1, end=1), "layers -1 to 1"),
        (ModuleRange(first=1, end=1, embedding=False, head=False), "an empty range"),
    ],
)
def test_ranges_that_do_not_exist(load, modules: ModuleRange, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        load("llama", modules=modules)
