"""How is a Markov chain written into the weights of a transformer, exactly?

The residual stream has one place per token of the vocabulary (what may follow, as log-probabilities), three codes of
+-1 (the current token's, the previous one's, the one's before) and a constant.

- The embedding writes the current token's code, the constant, and what follows this token alone.
- Layer 0's attention copies codes from one and two tokens back: its queries and keys are constants, and rotary
  embedding turns them so that exactly that distance scores highest.
- Each neuron of the MLPs is one longer context: its gate opens when all its codes match, and its output turns what
  follows the shorter context into what follows the longer one.
- The head reads the places of the vocabulary.

So the model computes the chain, whatever runs it, with the cost of any model of its shape.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from llmhostd.checkpoints.tensors import EMBEDDING, FINAL_NORM, TensorSpec, expected_tensors
from llmhostd.demo.config_json import config_json
from llmhostd.demo.markov import Chain, Context
from llmhostd.demo.noise import noise_architecture
from llmhostd.demo.vocabulary import ASSISTANT_ID, write_tokenizer
from llmhostd.domain.model import Architecture
from llmhostd.loader.safetensors_writer import PlannedTensor, stored, write_safetensors

Floats = npt.NDArray[np.float32]

_CODE = 128
"""Width of a token's code; two codes of 2,000 agree by chance in less than half their places."""
_CODES = 3
_HEAD_DIM = 64
_KV_HEADS = _CODE // _HEAD_DIM
_DISTANCES = 2
_CONSTANT = 64.0
_ROPE_THETA = 100.0
_SHARPNESS = 10.0
"""Queries and keys have entries up to this: the right distance wins the softmax by e^23 among 8192."""
_FLOOR_NATS = 18.0
"""Log-probabilities are stored above this floor; what never follows lies at it, e^-18."""
_LOG_PROBABILITY_SCALE = 1 / 64
"""Keeps log-probabilities small beside the codes, so that the norms hardly depend on them."""
_GATE_SLOPE = 64.0
_GATE_MARGIN = 0.25
"""A gate opens when its codes agree better than (their number - margin)."""


class Residual(NamedTuple):
    """Where each part of the residual stream lies."""

    vocab: int

    @property
    def constant(self) -> int:
        """The place of the constant."""
        return self.vocab + _CODES * _CODE

    @property
    def hidden(self) -> int:
        """Width, a multiple of 128."""
        return -(-(self.constant + 1) // 128) * 128

    def code(self, back: int) -> slice:
        """The code of the token so many places back (0: the current one)."""
        begin = self.vocab + back * _CODE
        return slice(begin, begin + _CODE)


def prose_architecture(family: str, vocab: int, contexts: int, layers: int) -> Architecture:
    """The shape that holds so many longer contexts in so many layers."""
    return noise_architecture(
        family,
        layers=layers,
        hidden=Residual(vocab).hidden,
        heads=_KV_HEADS * _DISTANCES,
        kv_heads=_KV_HEADS,
        head_dim=_HEAD_DIM,
        intermediate=-(-contexts // (layers * 128)) * 128,
        vocab=vocab,
        max_context_tokens=8192,
        rope_theta=_ROPE_THETA,
    )


def write_prose_model(
    directory: Path,
    architecture: Architecture,
    chain: Chain,
    tokenizer: Tokenizer,
    *,
    seed: int = 0,
    written: Callable[[int], None] | None = None,
) -> Path:
    """Write the whole checkpoint, in bf16, into an existing directory. Returns the directory."""
    (directory / "config.json").write_text(config_json(architecture, "bfloat16"))
    write_tokenizer(tokenizer, directory, max_context_tokens=architecture.max_context_tokens)
    weights = ProseWeights(architecture, chain, seed)
    tensors = [
        PlannedTensor(spec.name, "BF16", spec.shape, _piece(weights, spec)) for spec in expected_tensors(architecture)
    ]
    write_safetensors(directory / "model.safetensors", tensors, written=written)
    return directory


def _piece(weights: "ProseWeights", spec: TensorSpec) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    def pieces() -> Iterator[npt.NDArray[np.generic]]:
        yield stored(weights.tensor(spec), "BF16")

    return pieces


class ProseWeights:
    """Values of every tensor, made one at a time."""

    def __init__(self, architecture: Architecture, chain: Chain, seed: int) -> None:
        self._a = architecture
        self._at = Residual(architecture.vocab)
        self._chain = chain
        signs = np.random.Generator(np.random.SFC64(seed)).integers(0, 2, (architecture.vocab, _CODE))
        self._codes = (2 * signs - 1).astype(np.float32)
        neurons = chain.of_length(2) + chain.of_length(3)
        self._neurons = [neurons[layer :: architecture.layers] for layer in range(architecture.layers)]

    def tensor(self, spec: TensorSpec) -> Floats:
        """Return a tensor's values in its shape, `[out, in]` for matrices."""
        if spec.name.endswith(".bias"):
            return np.zeros(spec.shape, np.float32)
        if spec.layer is not None:
            return self._layer_tensor(spec.layer, spec.name.removeprefix(f"model.layers.{spec.layer}."))
        if spec.name == FINAL_NORM:
            return self._norm(_CODES)
        return self._embedding() if spec.name == EMBEDDING else self._head()

    def _layer_tensor(self, layer: int, name: str) -> Floats:
        parts: dict[str, Callable[[], Floats]] = {
            "input_layernorm.weight": lambda: self._norm(1 if layer == 0 else _CODES),
            "post_attention_layernorm.weight": lambda: self._norm(_CODES),
            "self_attn.q_norm.weight": self._qk_norm,
            "self_attn.k_norm.weight": self._qk_norm,
            "self_attn.q_proj.weight": self._queries,
            "self_attn.k_proj.weight": self._keys,
            "self_attn.v_proj.weight": self._values,
            "self_attn.o_proj.weight": lambda: self._attention_output(layer),
            "mlp.gate_proj.weight": lambda: self._gates(self._neurons[layer]),
            "mlp.up_proj.weight": lambda: self._ups(self._neurons[layer]),
            "mlp.down_proj.weight": lambda: self._corrections(self._neurons[layer]),
        }
        return parts[name]()

    def _embedding(self) -> Floats:
        rows = np.zeros((self._a.vocab, self._a.hidden), np.float32)
        start = (ASSISTANT_ID,)
        for token in range(self._a.vocab):
            known = (token,) if (token,) in self._chain.successors else start
            rows[token, : self._a.vocab] = self._log_probabilities(known)
        rows[:, self._at.code(0)] = self._codes
        rows[:, self._at.constant] = _CONSTANT
        return rows

    def _head(self) -> Floats:
        rows = np.zeros((self._a.vocab, self._a.hidden), np.float32)
        np.fill_diagonal(rows, 1 / _LOG_PROBABILITY_SCALE)
        return rows

    def _norm(self, codes: int) -> Floats:
        """Undo the division by the root mean square, which is known: so many codes of +-1, and the constant."""
        rms = np.sqrt((codes * _CODE + _CONSTANT**2) / self._a.hidden)
        return np.full(self._a.hidden, rms, np.float32)

    def _qk_norm(self) -> Floats:
        """Queries and keys are vectors of 32 turned pairs, each `_SHARPNESS` long: undo their norm too."""
        return np.full(self._a.head_dim, _SHARPNESS / np.sqrt(2), np.float32)

    def _queries(self) -> Floats:
        """Rotary embedding turns pair j by position * angle_j; a query starts `distance` turns behind."""
        half = _HEAD_DIM // 2
        angles = _ROPE_THETA ** (-np.arange(half) / half)
        rows = np.zeros((_KV_HEADS, _DISTANCES, _HEAD_DIM, self._a.hidden), np.float32)
        for distance in range(1, _DISTANCES + 1):
            turned = np.concatenate([np.cos(distance * angles), -np.sin(distance * angles)])
            rows[:, distance - 1, :, self._at.constant] = turned * _SHARPNESS / _CONSTANT
        return rows.reshape(-1, self._a.hidden)

    def _keys(self) -> Floats:
        rows = np.zeros((_KV_HEADS, _HEAD_DIM, self._a.hidden), np.float32)
        rows[:, : _HEAD_DIM // 2, self._at.constant] = _SHARPNESS / _CONSTANT
        return rows.reshape(-1, self._a.hidden)

    def _values(self) -> Floats:
        rows = np.zeros((_CODE, self._a.hidden), np.float32)
        rows[:, self._at.code(0)] = np.eye(_CODE)
        return rows

    def _attention_output(self, layer: int) -> Floats:
        """Put what head (half of a code, distance) found where that code belongs; in layer 0 only."""
        rows = np.zeros((self._a.hidden, _KV_HEADS, _DISTANCES, _HEAD_DIM), np.float32)
        if layer == 0:
            for back in range(1, _DISTANCES + 1):
                code = rows[self._at.code(back)].reshape(_KV_HEADS, _HEAD_DIM, _KV_HEADS, _DISTANCES, _HEAD_DIM)
                for half in range(_KV_HEADS):
                    code[half, :, half, back - 1, :] = np.eye(_HEAD_DIM)
        return rows.reshape(self._a.hidden, -1)

    def _gates(self, neurons: list[Context]) -> Floats:
        rows = np.zeros((self._a.intermediate, self._a.hidden), np.float32)
        for row, context in zip(rows, neurons, strict=False):
            for back, token in enumerate(reversed(context)):
                row[self._at.code(back)] = self._codes[token] * (_GATE_SLOPE / _CODE)
            row[self._at.constant] = -_GATE_SLOPE * (len(context) - _GATE_MARGIN) / _CONSTANT
        return rows

    def _ups(self, neurons: list[Context]) -> Floats:
        """With an open gate (slope * margin, where silu is the identity), a neuron's value is 1."""
        rows = np.zeros((self._a.intermediate, self._a.hidden), np.float32)
        rows[: len(neurons), self._at.constant] = 1 / (_GATE_SLOPE * _GATE_MARGIN * _CONSTANT)
        return rows

    def _corrections(self, neurons: list[Context]) -> Floats:
        columns = np.zeros((self._a.intermediate, self._a.hidden), np.float32)
        for column, context in zip(columns, neurons, strict=False):
            longer, shorter = self._log_probabilities(context), self._log_probabilities(context[1:])
            column[: self._a.vocab] = longer - shorter
        return np.ascontiguousarray(columns.T)

    def _log_probabilities(self, context: Context) -> Floats:
        """Scaled log-probabilities above the floor of what follows a kept context."""
        values = np.zeros(self._a.vocab, np.float32)
        followers = self._chain.successors[context]
        logs = np.log(np.fromiter(followers.values(), np.float32)) + _FLOOR_NATS
        values[np.fromiter(followers, np.int64)] = logs * _LOG_PROBABILITY_SCALE
        return values
