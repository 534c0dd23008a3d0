"""How is one model measured with no daemon about? In this process, with the engine and the measurement of a worker."""

import time
from collections.abc import Callable
from pathlib import Path

from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ModelSpec, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.frames import LoadFrame
from llmhostd.engines.interface import LoadOptions
from llmhostd.node.kv_pools import MEASURING_KV_BYTES
from llmhostd.node.measuring import most_sample_tokens
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.process import bind_to_cores


def load_alone(node: NodeSpec, model: ModelSpec, checkpoint: Path) -> Hosted:
    """Load a model to `warm` on the node's cores, which this process keeps to from now on, with KV to measure in.

    Raises OperatorError, CheckpointError or EngineError.
    """
    bind_to_cores(node.cores)
    command = LoadInstance(
        node_id=node.id, instance_id=InstanceId(f"{model.name}@{node.id}#1"), model=model.name, shape=model.shape,
        target=ModelState.WARM, profile=None, because="to be measured",
    )  # fmt: skip
    hosted = Hosted(LoadFrame(command=command, checkpoint=str(checkpoint)))
    engine = find_engine(node.engine)(node)
    began_s = time.monotonic()
    shape, threads = model.shape, node.compute_threads
    options = LoadOptions(compute=shape.compute, kv=shape.kv, threads=threads, adapters=shape.adapters)
    instance = engine.load(checkpoint, options)
    runner = hosted.compiled(instance)
    hosted.built(time.monotonic() - began_s)
    wanted = -(-most_sample_tokens(model.shape) // instance.block_tokens)
    runner.resize(max(1, min(wanted, MEASURING_KV_BYTES // instance.kv_bytes_per_block)))
    return hosted


def measure_alone(hosted: Hosted, node: NodeSpec, watch: Callable[[int, int], None]) -> Profile:
    """Measure the whole grid. `watch` hears (samples done, samples in all) after each. Raises EngineError."""
    measurement = hosted.measuring()
    while True:
        profile = hosted.measure(node.hardware_key, lambda: False)
        watch(measurement.done, measurement.total)
        if profile is not None and measurement.complete:
            return profile
