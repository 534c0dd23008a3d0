"""Does the engine that stands in for devices keep the contract, its times, and answer tokens that can be checked?"""

import time
from pathlib import Path

import msgspec
import pytest
from llmhostd_profiled import open_engine
from llmhostd_profiled.times import read_times
from llmhostd_profiled.tokens import continuation

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import EngineError, OperatorError
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.conformance import check_engine
from llmhostd.engines.discovery import engine_names, known_profile
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.safetensors import describe

OPTIONS = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 5


def test_it_is_found_by_the_same_door_as_anyones() -> None:
    assert "profiled" in engine_names()


def test_it_keeps_every_clause_of_the_contract(stand_in, checkpoint: Path) -> None:
    assert len(check_engine(open_engine(stand_in()), checkpoint, OPTIONS, tolerance=0.0)) == 11


def test_an_answer_is_a_fixed_function_of_its_context(stand_in, checkpoint: Path) -> None:
    instance = open_engine(stand_in()).load(checkpoint, OPTIONS)
    architecture = instance.shape.architecture
    whole, _ = PagedContexts([instance], kv_blocks=32).greedy(PROMPT, 12)
    assert whole == continuation(PROMPT, 12, architecture)
    moved, _ = PagedContexts([instance], kv_blocks=32).greedy([*PROMPT, *whole[:5]], 7, chunk=9)
    assert moved == whole[5:], "a request that moves as its tokens goes on as if it had stayed"
    assert not set(whole) & set(architecture.eos_token_ids)
    for place in (0, 7, len(PROMPT) - 1):
        other = [*PROMPT[:place], PROMPT[place] + 1, *PROMPT[place + 1 :]]
        assert continuation(other, 12, architecture) != whole, "every token of the context counts"


def test_a_mixed_up_block_table_shows_in_the_tokens(stand_in, checkpoint: Path) -> None:
    instance = open_engine(stand_in()).load(checkpoint, OPTIONS)
    contexts = PagedContexts([instance], kv_blocks=32)
    one, other = Context(PROMPT), Context(PROMPT[::-1])
    contexts.step([(one, len(PROMPT)), (other, len(PROMPT))])
    one.blocks[-1], other.blocks[-1] = other.blocks[-1], one.blocks[-1]
    one.tokens.append(7)
    (row,) = contexts.step([(one, 1)])
    assert int(row.argmax()) != continuation([*PROMPT, 7], 1, instance.shape.architecture)[0]


def test_iterations_never_take_less_than_the_profile_says(stand_in, checkpoint: Path) -> None:
    node = stand_in()
    shape = describe(checkpoint).shape(OPTIONS.compute, OPTIONS.kv)
    profile = known_profile(node, shape)
    assert profile is not None
    assert (profile.shape_key, profile.hardware_key) == (shape.key, node.hardware_key)
    estimator = ProfiledEstimator(profile)
    began_s = time.monotonic()
    instance = open_engine(node).load(checkpoint, OPTIONS)
    assert time.monotonic() - began_s >= profile.load_s
    contexts = PagedContexts([instance], kv_blocks=32)
    contexts.greedy([1, 2], 1)
    running = Context(PROMPT)
    for count, predicted_s in (
        (len(PROMPT), estimator.iteration_s(prefill=((len(PROMPT), 0),), decode_batch=0, decode_context=0)),
        (1, estimator.iteration_s(prefill=(), decode_batch=1, decode_context=len(PROMPT) + 1)),
    ):
        running.tokens += [1] * (running.done + count - len(running.tokens))
        began_s = time.monotonic()
        contexts.step([(running, count)])
        assert time.monotonic() - began_s >= predicted_s


def test_memory_is_what_the_node_was_given(stand_in, checkpoint: Path) -> None:
    instance = open_engine(stand_in(memory_bytes=1 << 20)).load(checkpoint, OPTIONS)
    most = (1 << 20) // instance.kv_bytes_per_block
    instance.resize_kv(most)
    with pytest.raises(EngineError, match=f"this node can hold 0 to {most}"):
        instance.resize_kv(most + 1)
    assert instance.kv_blocks == most


def measured(stand_in, checkpoint: Path) -> dict[str, object]:
    shape = describe(checkpoint).shape(OPTIONS.compute, OPTIONS.kv)
    profile = known_profile(stand_in(), shape)
    return msgspec.json.decode(msgspec.json.encode(profile))


def test_profiles_as_the_admin_api_answers_them_are_taken(stand_in, checkpoint: Path) -> None:
    profile = measured(stand_in, checkpoint) | {"load_s": 0.125, "hardware_key": "elsewhere"}
    shape = describe(checkpoint).shape(OPTIONS.compute, OPTIONS.kv)
    for contents in ([profile], {"profiles": [profile]}):
        found = known_profile(stand_in(contents), shape)
        assert found is not None
        assert (found.load_s, found.hardware_key) == (0.125, "profile/times/1")
    other = describe(checkpoint).shape(ComputePrecision.BF16, KvPrecision.BF16)
    with pytest.raises(OperatorError, match=rf"has no profile of shape {other.key} and no roofline; .*: {shape.key}"):
        known_profile(stand_in([profile]), other)
    with pytest.raises(EngineError, match="has no profile of shape"):
        open_engine(stand_in([profile])).load(
            checkpoint, LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.BF16, threads=1)
        )


@pytest.mark.parametrize(
    ("contents", "complaint"),
    [
        ("{", "cannot be used: Input data was truncated"),
        ("{}", "has neither `profiles` nor a `roofline`"),
        ('{"roofline": {"memory_bytes_per_sec": 1}}', "unknown field `memory_bytes_per_sec`"),
        ('{"roofline": {"operations_per_s": 0}}', r"roofline\.operations_per_s: is 0(\.0)?; expected more than 0"),
        ('[{"shape_key": 1}]', "Expected `str`, got `int`"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(stand_in, contents: str, complaint: str) -> None:
    node = stand_in(contents)
    with pytest.raises(OperatorError, match=complaint) as caught:
        open_engine.check(node)
    assert str(caught.value).startswith(f"profile: {node.profile}: ")


def test_two_profiles_of_one_shape_are_refused(stand_in, checkpoint: Path) -> None:
    profile = measured(stand_in, checkpoint)
    node = stand_in([profile | {"hardware_key": "a"}, profile | {"hardware_key": "b"}])
    with pytest.raises(OperatorError, match=r"two profiles of .*, on a and b; keep one"):
        read_times(node.profile)


def test_a_profile_with_a_hole_is_refused(stand_in, checkpoint: Path) -> None:
    profile = measured(stand_in, checkpoint)
    decode = profile["decode"]
    assert isinstance(decode, list)
    place = (decode[-1]["batch"], decode[-1]["context_tokens"])
    others = [one for one in decode if (one["batch"], one["context_tokens"]) != place]
    holed = stand_in([profile | {"decode": others}])
    with pytest.raises(OperatorError, match="decode has no sample for batch"):
        read_times(holed.profile)
