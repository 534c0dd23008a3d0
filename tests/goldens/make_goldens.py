"""What would `transformers` answer? Remakes goldens.npz; needs torch and transformers, which nothing else here does.

    python tests/goldens/make_goldens.py

Per case and prompt: the logits of the prompt's last position and of each greedy step (float32), and the greedy tokens.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from families import CASES, NEW_TOKENS, PROMPT_TOKENS, Case, prompt  # noqa: E402
from seeded import seeded_checkpoint  # noqa: E402


def golden(case: Case, directory: Path) -> dict[str, np.ndarray]:
    """Run one case greedily in float32 with eager attention."""
    path = seeded_checkpoint(directory / case.name, case.config, case.seed, case.dtype, case.shards)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    answers = {}
    for length in PROMPT_TOKENS:
        tokens = prompt(case, length)
        rows = []
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
                rows.append(logits)
                tokens.append(int(logits.argmax()))
        answers[f"{case.name}/{length}/logits"] = np.stack(rows).astype(np.float32)
        answers[f"{case.name}/{length}/tokens"] = np.array(tokens[length:], np.int32)
    return answers


def main() -> None:
    """Write goldens.npz beside this file."""
    answers: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as directory:
        for case in CASES:
            answers |= golden(case, Path(directory))
            gaps = [np.sort(answers[f"{case.name}/{n}/logits"], 1) for n in PROMPT_TOKENS]
            nearest = min(float((gap[:, -1] - gap[:, -2]).min()) for gap in gaps)
            print(f"{case.name}: smallest gap between the two likeliest tokens {nearest:.4f}")
    np.savez_compressed(HERE / "goldens.npz", **answers)


if __name__ == "__main__":
    main()
