"""Frames survive any cut, and what is no frame is told apart from what cannot be read on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.domain.commands import CancelRequest
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, NodeId, RequestId
from llmhostd.domain.reports import IterationReported, NodeUp, RowReport, TokenLogprobs
from llmhostd.domain.request import FinishReason
from llmhostd.engines.discovery import engine_names, find_engine
from llmhostd.engines.frames import (
    MAX_FRAME_BYTES,
    BrokenStreamError,
    FrameError,
    ShutdownFrame,
    StartFrame,
    down_reader,
    encode_frame,
    up_reader,
)
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy

NODE = NodeId("cpu0")
SPEC = NodeSpec(id=NODE, engine="openvino", hardware_key=HardwareKey("here"), cores=(0, 1), memory_bytes=1 << 30)
DOWN = [
    StartFrame(
        spec=SPEC,
        scheduling=SchedulingPolicy(),
        kv_demand=KvDemandPolicy(least_tokens=9),
        watermark=WatermarkPolicy(),
        correction=CorrectionPolicy(weight=0.5),
    ),
    CancelRequest(node_id=NODE, request_id=RequestId("req-1"), because="the caller is gone"),
    ShutdownFrame(),
]
UP = [
    NodeUp(node_id=NODE, memory_bytes=5),
    IterationReported(
        node_id=NODE,
        instance_id=InstanceId("m@cpu0#1"),
        started_s=1.5,
        duration_s=0.02,
        predicted_s=0.03,
        because="headroom 41 ms",
        rows=(
            RowReport(request_id=RequestId("req-1"), prefilled=64, cached=32),
            RowReport(
                request_id=RequestId("req-2"),
                prefilled=1,
                tokens=(7,),
                logprobs=(TokenLogprobs(chosen=-0.5, top=((7, -0.5), (1, -2.0))),),
                finish=FinishReason.STOP,
            ),
        ),
    ),
]


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 300), max_size=30))
def test_frames_survive_any_cut(cuts: list[int]) -> None:
    for messages, reader in ((DOWN * 3, down_reader()), (UP * 3, up_reader())):
        stream = b"".join(map(encode_frame, messages))
        received = []
        for size in [*cuts, len(stream)]:
            reader.feed(stream[:size])
            stream = stream[size:]
            while (message := reader.next_message()) is not None:
                received.append(message)
        assert received == messages


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4type\xa5Nobody", b"\x81\xa4type\xadCancelRequest"])
def test_an_unknown_message_is_left_behind(body: bytes) -> None:
    reader = down_reader()
    reader.feed(len(body).to_bytes(4, "big") + body + encode_frame(ShutdownFrame()))
    with pytest.raises(FrameError, match=f"a frame of {len(body)} bytes is no message"):
        reader.next_message()
    assert reader.next_message() == ShutdownFrame()
    assert reader.next_message() is None


def test_frames_are_bounded_both_ways() -> None:
    reader = up_reader()
    reader.feed(b"HTTP/1.1 200 OK")
    with pytest.raises(BrokenStreamError, match="claims 1213486160 bytes"):
        reader.next_message()
    with pytest.raises(FrameError, match="CancelRequest takes"):
        encode_frame(CancelRequest(node_id=NODE, request_id=RequestId("r"), because="x" * MAX_FRAME_BYTES))


def test_an_engine_is_found_by_name_and_a_misspelt_one_names_the_nearest() -> None:
    assert "openvino" in engine_names()
    assert callable(find_engine("openvino"))
    with pytest.raises(OperatorError, match="no engine is called 'openvin'; the nearest installed is 'openvino'"):
        find_engine("openvin")
