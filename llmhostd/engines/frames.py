"""What do a daemon and its workers say to each other, byte by byte?

A frame is a 4-byte big-endian length and one message in MessagePack, told apart by its class name. Down go the host
mind's commands, with the payload that no mind needs; up go the reports of `domain.reports`, one frame per iteration.
"""

from typing import Generic, TypeVar

import msgspec

from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.domain.commands import (
    CancelRequest,
    KeepWeights,
    LearnProfile,
    LoadInstance,
    MeasureProfile,
    RecallRequest,
    ReleaseWeights,
    RestInstance,
    StageRequest,
    SubmitRequest,
    UnloadInstance,
)
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.reports import NodeReport
from llmhostd.domain.request import Sampling
from llmhostd.domain.words import Message, Word
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.memory.machine_share import MachineMemoryPolicy

MAX_FRAME_BYTES = 64 << 20
"""A context of a million tokens takes 5 MB."""

_HEADER_BYTES = 4


class FrameError(LlmhostdError):
    """A frame is not a message that this side knows. It is left behind; what follows it can be read."""


class BrokenStreamError(FrameError):
    """What was sent are no frames at all; nothing after it can be read."""


class StartFrame(Message):
    """The first frame down: which node the worker is, and how its mind decides."""

    spec: NodeSpec
    scheduling: SchedulingPolicy
    kv_demand: KvDemandPolicy
    watermark: WatermarkPolicy
    correction: CorrectionPolicy
    machine_memory: MachineMemoryPolicy = MachineMemoryPolicy()
    fetch: FetchPolicy = FetchPolicy()


class LoadFrame(Message):
    """A `LoadInstance`, and where the checkpoint is."""

    command: LoadInstance
    checkpoint: str
    """Absolute path of the checkpoint's folder."""


class KeepFrame(Message):
    """A `KeepWeights`, and where the checkpoint is."""

    command: KeepWeights
    checkpoint: str
    """Absolute path of the checkpoint's folder."""


class AdapterFile(Word):
    """Where an adapter is."""

    identity: str
    """What it must be: another in its place is not what was asked for."""
    path: str
    """Absolute path of its folder."""


class SubmitFrame(Message):
    """A `SubmitRequest`, and what it is about."""

    command: SubmitRequest
    context: tuple[int, ...]
    """Prompt and the output tokens streamed so far (`command.request.tokens_out` of them)."""
    sampling: Sampling
    adapter: AdapterFile | None = None
    """What it is computed with; None: the base as it is."""


class StageFrame(Message):
    """A `StageRequest`, and what it is about."""

    command: StageRequest
    tokens: tuple[int, ...]
    """Of its context: those behind the first `command.known_tokens`."""
    adapter: AdapterFile | None = None
    """As in `SubmitFrame`."""


class ShutdownFrame(Message):
    """Finish the running iteration, give everything back, and exit."""


class WorkerRefused(Message):
    """The worker cannot be this node, and starting it again would change nothing. It exits."""

    error: str
    """For a person."""


DownFrame = (
    StartFrame
    | LoadFrame
    | KeepFrame
    | ReleaseWeights
    | SubmitFrame
    | StageFrame
    | RestInstance
    | UnloadInstance
    | CancelRequest
    | RecallRequest
    | MeasureProfile
    | LearnProfile
    | ShutdownFrame
)
UpFrame = NodeReport | WorkerRefused

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: Message) -> bytearray:
    """Return header and body. Raises FrameError for a message of more than MAX_FRAME_BYTES."""
    frame = bytearray(_HEADER_BYTES)
    _encoder.encode_into(message, frame, _HEADER_BYTES)
    size = len(frame) - _HEADER_BYTES
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} takes {size} bytes, more than {MAX_FRAME_BYTES}")
    frame[:_HEADER_BYTES] = size.to_bytes(_HEADER_BYTES, "big")
    return frame


T = TypeVar("T")


class FrameReader(Generic[T]):
    """Turns bytes, however they are cut, into messages. Does no I/O, so that sockets and streams share it."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decoder = decoder
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what was received."""
        self._bytes += data

    def next_message(self) -> T | None:
        """Return the next whole message, None when there is none yet.

        Raises FrameError for one that this side does not know, after which reading goes on behind it, and
        BrokenStreamError for a length that no frame has.
        """
        if len(self._bytes) < _HEADER_BYTES:
            return None
        size = int.from_bytes(self._bytes[:_HEADER_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise BrokenStreamError(f"a frame claims {size} bytes, more than {MAX_FRAME_BYTES}")
        end = _HEADER_BYTES + size
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[_HEADER_BYTES:end])
        del self._bytes[:end]
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise FrameError(f"a frame of {size} bytes is no message: {error}") from error


def down_reader() -> FrameReader[DownFrame]:
    """What a worker reads with."""
    return FrameReader(msgspec.msgpack.Decoder(DownFrame))


def up_reader() -> FrameReader[UpFrame]:
    """What a daemon reads with."""
    return FrameReader(msgspec.msgpack.Decoder(UpFrame))
