"""What did others publish? Figures that ours stand beside, each with its source.

`PAPER`: SLINFER, figures and tables of §IX as far as its text tells them. `REIMPLEMENTED`: an independent small
reimplementation of the paper and its artefact, with the artefact's traces and profiles, KV pools copied at 17 GB/s.
"""

from llmhostd.domain.words import Word


class Figures(Word):
    """Of one policy, size and number of models. None: not told."""

    slo_rate: float | None = None
    gpus_used: float | None = None
    cpus_used: float | None = None


Key = tuple[str, str, int]
"""Policy, size, models."""

PAPER: dict[Key, Figures] = {
    # Table III, aggregated
    ("sllm+c+s", "7b", 32): Figures(slo_rate=0.99, gpus_used=2.0),
    ("sllm+c+s", "7b", 64): Figures(slo_rate=0.93, gpus_used=3.6),
    ("sllm+c+s", "7b", 128): Figures(slo_rate=0.65, gpus_used=4.0),
    ("slinfer", "7b", 32): Figures(slo_rate=0.99, gpus_used=0.9),
    ("slinfer", "7b", 64): Figures(slo_rate=0.99, gpus_used=2.5),
    ("slinfer", "7b", 128): Figures(slo_rate=0.86, gpus_used=4.0),
    # §IX-B
    ("sllm+c", "7b", 32): Figures(gpus_used=1.5),
    ("slinfer", "3b", 32): Figures(gpus_used=0.0, cpus_used=3.0),
    ("sllm", "3b", 32): Figures(gpus_used=3.2),
}

REIMPLEMENTED: dict[Key, Figures] = {
    ("slinfer", "3b", 32): Figures(slo_rate=0.993, gpus_used=0.03),
    ("slinfer", "3b", 64): Figures(slo_rate=0.996, gpus_used=0.9),
    ("slinfer", "3b", 128): Figures(slo_rate=0.992, gpus_used=3.0),
    ("slinfer", "7b", 32): Figures(slo_rate=0.993, gpus_used=0.8),
    ("slinfer", "7b", 64): Figures(slo_rate=0.984, gpus_used=2.4),
    ("slinfer", "7b", 128): Figures(slo_rate=0.863, gpus_used=4.0),
    ("slinfer", "13b", 32): Figures(slo_rate=0.995),
    ("slinfer", "13b", 64): Figures(slo_rate=0.866),
    ("slinfer", "13b", 128): Figures(slo_rate=0.620),
    ("sllm+c+s", "7b", 32): Figures(slo_rate=0.985, gpus_used=2.0),
    ("sllm+c+s", "7b", 64): Figures(slo_rate=0.936, gpus_used=3.6),
    ("sllm+c+s", "7b", 128): Figures(slo_rate=0.664, gpus_used=4.0),
    ("sllm", "7b", 32): Figures(slo_rate=0.92),
    ("sllm", "7b", 64): Figures(slo_rate=0.74),
    ("sllm", "7b", 128): Figures(slo_rate=0.46),
    ("sllm+c", "7b", 32): Figures(slo_rate=0.98),
    ("sllm+c", "7b", 64): Figures(slo_rate=0.90),
    ("sllm+c", "7b", 128): Figures(slo_rate=0.68),
}

APART: dict[tuple[str, int, bool], Figures] = {
    ("sllm+c+s", 32, False): Figures(slo_rate=0.99, gpus_used=2.0),
    ("sllm+c+s", 32, True): Figures(slo_rate=0.93, gpus_used=3.0),
    ("sllm+c+s", 64, False): Figures(slo_rate=0.93, gpus_used=3.6),
    ("sllm+c+s", 64, True): Figures(slo_rate=0.70, gpus_used=3.9),
    ("sllm+c+s", 128, False): Figures(slo_rate=0.65, gpus_used=4.0),
    ("sllm+c+s", 128, True): Figures(slo_rate=0.35, gpus_used=4.0),
    ("slinfer", 32, False): Figures(slo_rate=0.99, gpus_used=0.9),
    ("slinfer", 32, True): Figures(slo_rate=0.99, gpus_used=1.0),
    ("slinfer", 64, False): Figures(slo_rate=0.99, gpus_used=2.5),
    ("slinfer", 64, True): Figures(slo_rate=0.98, gpus_used=2.9),
    ("slinfer", 128, False): Figures(slo_rate=0.86, gpus_used=4.0),
    ("slinfer", 128, True): Figures(slo_rate=0.69, gpus_used=4.0),
}
"""Table III, 7B: policy, models, whether prefill and decode are apart (§IX-G)."""

IMPROVEMENT_AT_128: dict[str, tuple[float, float]] = {
    "sllm": (0.86, 1.54), "sllm+c": (0.47, 0.62), "sllm+c+s": (0.18, 0.70),
}  # fmt: skip
"""SLO-met requests of SLINFER over each baseline's, least and most over the three sizes (§IX-B)."""

WITHOUT_SHARING_SLO_RATE = 0.89
"""64 models of 7B (§IX-C, fig. 23)."""

KV_SCALING_SHARE: dict[float, float] = {0.0: 0.113, 0.25: 0.014}
"""Share of an instance's lifetime in KV scaling, by watermark (§IX-I5, fig. 31)."""

MOST_MIGRATED_SHARE = 0.003
"""Requests moved because their output was underestimated, at most (§IX-I5)."""

LONGBENCH_MISSED_BY_HALVES = 0.634
"""SLO violations of sllm+c+s on LongBench, 64 models of 8B (§IX-I1, fig. 35)."""

HALF_THE_NODES = 8
"""SLINFER on four nodes serves what sllm+c+s serves on eight (§IX-H, fig. 32)."""
