"""A small, slow, exact engine in numpy: the contract of `engines.interface` spelled out with plain loops.

A Llama-like transformer (rotary positions, grouped-query attention, RMS norm, gated MLP) in double precision over a
paged KV cache whose unwritten slots are NaN, so that reading what was never written shows in the logits. A checkpoint
is a folder with `reference.json`: a seed, and the faults that a test wants.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from llmhostd.domain.errors import CheckpointError, EngineError, InstanceLostError, ProcessLostError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, WeightFormat
from llmhostd.domain.reports import LoadStages
from llmhostd.engines.interface import EngineFacts, Floats, Iteration, LoadOptions

BLOCK_TOKENS = 8
ARCHITECTURE = Architecture(
    family="llama", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=64, vocab=300,
    max_context_tokens=256, norm_eps=1e-5, rope_theta=10000.0, eos_token_ids=(2,),
)  # fmt: skip
KV_BYTES_PER_TOKEN = 2 * ARCHITECTURE.layers * ARCHITECTURE.kv_heads * ARCHITECTURE.head_dim * 8
SHAPE = ModelShape(
    architecture=ARCHITECTURE,
    weights=WeightFormat.F32,
    compute=ComputePrecision.F32,
    kv=KvPrecision.F32,
    weight_bytes=100_000,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
)


def write_checkpoint(folder: Path, **wanted: object) -> Path:
    """`seed`, and faults.

    Run numbers from 1: `die_at_run`, `fail_at_run`, `fail_from_run`, `lose_at_run` (the instance),
    `lose_process_at_run`. Blocks: `most_blocks`, beyond which a growth is
    refused. Flags: `die_at_load`, `fail_at_shrink`, `break_at_shrink` (half done, then an error that no contract
    names), `keep_at_unload` (nothing is given back). Seconds: `load_s`, `run_s`, `unload_s`. `fills`: see
    `FillingReference`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.json").write_text(json.dumps(wanted))
    return folder


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + ARCHITECTURE.norm_eps)


def rotate(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    half = ARCHITECTURE.head_dim // 2
    angles = positions[:, None] * ARCHITECTURE.rope_theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)


class ReferenceInstance:
    def __init__(self, seed: int, wanted: dict[str, float]) -> None:
        a = ARCHITECTURE
        rng = np.random.default_rng(seed)
        self.shape = SHAPE
        self.stages = LoadStages()
        self.settled = True
        self.block_tokens = BLOCK_TOKENS
        self.token_step = 1
        self.token_counts = ()
        self.kv_bytes_per_block = BLOCK_TOKENS * KV_BYTES_PER_TOKEN
        self.kv_blocks = 0
        self.wanted = wanted
        self.runs = 0
        self.embedding = rng.standard_normal((a.vocab, a.hidden))
        self.head = rng.standard_normal((a.hidden, a.vocab))
        kv = a.kv_heads * a.head_dim
        sizes = {
            "q": (32, 32),
            "k": (32, kv),
            "v": (32, kv),
            "o": (32, 32),
            "up": (32, 64),
            "gate": (32, 64),
            "down": (64, 32),
        }
        self.layers = [
            {name: rng.standard_normal(size) / np.sqrt(size[0]) for name, size in sizes.items()}
            for _ in range(a.layers)
        ]
        if "poison" in wanted:  # a token whose row, and nobody else's, comes out as no numbers
            self.embedding[int(wanted["poison"])] = np.nan
        self.kv = np.full((a.layers, 2, 0, BLOCK_TOKENS, a.kv_heads, a.head_dim), np.nan)

    def run(self, iteration: Iteration) -> Floats:
        self.runs += 1
        time.sleep(self.wanted.get("run_s", 0))
        if self.runs == self.wanted.get("die_at_run"):
            signal.raise_signal(signal.SIGSEGV)
        if self.runs == self.wanted.get("fail_at_run") or self.runs >= self.wanted.get("fail_from_run", np.inf):
            raise EngineError("the reference engine was asked to fail")
        if self.runs == self.wanted.get("lose_at_run"):
            raise InstanceLostError("the reference engine lost its mind")
        if self.runs == self.wanted.get("lose_process_at_run"):
            raise ProcessLostError("the reference engine lost everybody's mind")
        x, done = self.so_far(iteration)
        for layer in range(done, len(self.layers)):
            x = self.through(layer, x, iteration)
        return (norm(x[iteration.sampled_indices]) @ self.head).astype(np.float32)

    def so_far(self, iteration: Iteration) -> tuple[np.ndarray, int]:
        return self.embedding[iteration.token_ids], 0

    def through(self, layer: int, x: np.ndarray, iteration: Iteration) -> np.ndarray:
        weights = self.layers[layer]
        x = x + self.attend(layer, weights, norm(x), iteration) @ weights["o"]
        y = norm(x)
        gate = y @ weights["gate"]
        return x + (gate / (1 + np.exp(-gate)) * (y @ weights["up"])) @ weights["down"]

    def attend(self, layer: int, weights: dict[str, np.ndarray], x: np.ndarray, it: Iteration) -> np.ndarray:
        a = ARCHITECTURE
        q = rotate((x @ weights["q"]).reshape(-1, a.heads, a.head_dim), it.positions)
        k = rotate((x @ weights["k"]).reshape(-1, a.kv_heads, a.head_dim), it.positions)
        v = (x @ weights["v"]).reshape(-1, a.kv_heads, a.head_dim)
        out = np.empty((len(x), a.heads, a.head_dim))
        for row, past in enumerate(it.past_lens):
            begin, end = it.subsequence_begins[row], it.subsequence_begins[row + 1]
            table = it.block_indices[it.block_indices_begins[row] : it.block_indices_begins[row + 1]]
            assert len(table) == -(-(past + end - begin) // BLOCK_TOKENS)
            assert (it.positions[begin:end] == np.arange(past, past + end - begin)).all()
            for token in range(begin, end):
                block, slot = divmod(past + token - begin, BLOCK_TOKENS)
                self.kv[layer, 0, table[block], slot] = k[token]
                self.kv[layer, 1, table[block], slot] = v[token]
            keys = self.kv[layer, 0, table].reshape(-1, a.kv_heads, a.head_dim)
            values = self.kv[layer, 1, table].reshape(-1, a.kv_heads, a.head_dim)
            for token in range(begin, end):
                seen = past + token - begin + 1
                for head in range(a.heads):
                    scores = keys[:seen, head // 2] @ q[token, head] / np.sqrt(a.head_dim)
                    p = np.exp(scores - scores.max())
                    out[token, head] = p / p.sum() @ values[:seen, head // 2]
        return out.reshape(len(x), -1)

    def pack(self) -> None:
        pass

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        if kv_blocks > self.wanted.get("most_blocks", 100_000):
            raise EngineError("there is not that much memory")
        if kv_blocks < self.kv_blocks and self.wanted.get("fail_at_shrink"):
            raise EngineError("the tail cannot be given back")
        if kv_blocks < self.kv_blocks and self.wanted.get("break_at_shrink"):
            self.kv_blocks -= 1
            raise MemoryError("in the middle of it")
        for source, target in moves:
            self.kv[:, :, target] = self.kv[:, :, source]
        old = self.kv[:, :, :kv_blocks]
        self.kv = np.full((*old.shape[:2], kv_blocks, *old.shape[3:]), np.nan)
        self.kv[:, :, : old.shape[2]] = old
        self.kv_blocks = kv_blocks

    def held_bytes(self) -> int:
        return 200_000 if self.runs else 10_000

    def unload(self) -> None:
        time.sleep(self.wanted.get("unload_s", 0))
        if self.wanted.get("keep_at_unload"):
            raise RuntimeError("somebody still reads it")
        del self.kv, self.layers


class FillingReference(ReferenceInstance):
    """Its second layer is there once a file `rest` lies in its checkpoint, and never if that says `damaged`.

    A file `begun` says that an iteration has begun.
    """

    def __init__(self, seed: int, wanted: dict[str, float], checkpoint: Path) -> None:
        super().__init__(seed, wanted)
        self.filling = True
        self.checkpoint = checkpoint
        self.begun: tuple[Iteration, np.ndarray] | None = None

    def fill(self, more: Callable[[], None]) -> None:
        rest = self.checkpoint / "rest"
        while not rest.exists():
            time.sleep(0.005)
            more()
        if rest.read_text() == "damaged":
            raise CheckpointError(f"{rest}: is damaged")
        self.filling = False

    def begin(self, iteration: Iteration) -> None:
        assert self.filling
        self.begun = iteration, self.so_far(iteration)[0]
        (self.checkpoint / "begun").touch()

    def so_far(self, iteration: Iteration) -> tuple[np.ndarray, int]:
        begun, self.begun = self.begun, None
        if begun is not None and all(
            np.array_equal(getattr(iteration, name), getattr(begun[0], name)) for name in Iteration.__slots__
        ):
            return begun[1], 1
        return self.through(0, super().so_far(iteration)[0], iteration), 1

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        self.begun = None
        super().resize_kv(kv_blocks, moves)


class ReferenceEngine:
    def facts(self) -> EngineFacts:
        return EngineFacts(
            name="reference", version="1", compute=(ComputePrecision.F32,), features=(), caveats=("everything is slow",)
        )

    def load(self, checkpoint: Path, options: LoadOptions) -> ReferenceInstance:
        path = checkpoint / "reference.json"
        if not path.exists():
            raise CheckpointError(f"{path}: no such file")
        wanted = json.loads(path.read_text())
        time.sleep(wanted.get("load_s", 0))
        if wanted.get("die_at_load"):
            os.abort()
        if wanted.get("fills") and options.early:
            return FillingReference(wanted.get("seed", 0), wanted, checkpoint)
        return ReferenceInstance(wanted.get("seed", 0), wanted)


def open_engine(node: NodeSpec) -> ReferenceEngine:
    return ReferenceEngine()
