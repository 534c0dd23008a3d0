"""The claim is that the weights *are* the chain: a plain numpy transformer must compute the chain's probabilities."""

from pathlib import Path

import numpy as np
import pytest

from llmhostd.checkpoints.tensors import expected_tensors
from llmhostd.demo.corpus import reference_paragraphs
from llmhostd.demo.markov import Chain, learn
from llmhostd.demo.prose import ProseWeights, prose_architecture, write_prose_model
from llmhostd.demo.vocabulary import ASSISTANT_ID, EOS_ID, train_tokenizer
from llmhostd.domain.model import Architecture
from llmhostd.loader.safetensors import describe

VOCAB = 400
CONTEXTS = {2: 200, 3: 60}
LAYERS = 2


def documents() -> list[list[int]]:
    texts = reference_paragraphs()[:60]
    tokenizer = train_tokenizer(texts, VOCAB)
    return [[ASSISTANT_ID, *tokenizer.encode(text, add_special_tokens=False).ids, EOS_ID] for text in texts]


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def turn(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary embedding of `[heads, tokens, head_dim]`."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(a: Architecture, w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Probabilities of the next token after each of `ids`, `[tokens, vocab]`."""
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(a.layers):
        t = {name.split(".", 3)[3]: values for name, values in w.items() if name.startswith(f"model.layers.{layer}.")}
        h = norm(x, t["input_layernorm.weight"], a.norm_eps)
        q, k, v = (
            (h @ t[f"self_attn.{one}_proj.weight"].T).reshape(len(ids), -1, a.head_dim).swapaxes(0, 1) for one in "qkv"
        )
        if a.qk_norm:
            q = norm(q, t["self_attn.q_norm.weight"], a.norm_eps)
            k = norm(k, t["self_attn.k_norm.weight"], a.norm_eps)
        k, v = (one.repeat(a.heads // a.kv_heads, 0) for one in (turn(k, a.rope_theta), v))
        scores = turn(q, a.rope_theta) @ k.swapaxes(1, 2) / np.sqrt(a.head_dim)
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        x = x + (softmax(scores) @ v).swapaxes(0, 1).reshape(len(ids), -1) @ t["self_attn.o_proj.weight"].T
        h = norm(x, t["post_attention_layernorm.weight"], a.norm_eps)
        gate, up = h @ t["mlp.gate_proj.weight"].T, h @ t["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-np.clip(gate, -500, 500))) * up) @ t["mlp.down_proj.weight"].T
    return softmax(norm(x, w["model.norm.weight"], a.norm_eps) @ w["lm_head.weight"].T)


def expected(chain: Chain, ids: list[int]) -> np.ndarray:
    """What the chain says: the longest kept context decides."""
    longest = max(length for length in (1, 2, 3) if tuple(ids[-length:]) in chain.successors)
    probabilities = np.zeros(VOCAB)
    for token, share in chain.successors[tuple(ids[-longest:])].items():
        probabilities[token] = share
    return probabilities


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_plain_transformer_computes_the_chain(family: str) -> None:
    texts = documents()
    chain = learn(texts, CONTEXTS)
    architecture = prose_architecture(family, VOCAB, sum(CONTEXTS.values()), LAYERS)
    made = ProseWeights(architecture, chain, seed=0)
    weights = {spec.name: made.tensor(spec).astype(np.float64) for spec in expected_tensors(architecture)}
    assert all(weights[spec.name].shape == spec.shape for spec in expected_tensors(architecture))
    used = set()
    for ids in texts[:6]:
        computed = forward(architecture, weights, ids[:-1])
        for place in range(1, len(ids)):
            wanted = expected(chain, ids[:place])
            used.add(max(length for length in (1, 2, 3) if tuple(ids[:place][-length:]) in chain.successors))
            assert np.abs(computed[place - 1] - wanted).max() < 0.01, (place, ids[:place][-3:])
    assert used == {1, 2, 3}


def test_the_checkpoint_on_disk_is_whole(tmp_path: Path) -> None:
    texts = reference_paragraphs()[:60]
    tokenizer = train_tokenizer(texts, VOCAB)
    architecture = prose_architecture("llama", VOCAB, sum(CONTEXTS.values()), LAYERS)
    write_prose_model(tmp_path, architecture, learn(documents(), CONTEXTS), tokenizer)
    assert describe(tmp_path).architecture == architecture
