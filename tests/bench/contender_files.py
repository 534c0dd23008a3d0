"""How long do safetensors and torch take to have all tensors in memory? Runs in an interpreter that has them.

python contender_files.py safetensors|torch|make-torch FILE
"""

import sys
import time

import torch
from safetensors.torch import load_file


def main(how: str, file: str) -> None:
    """Read every byte: a mapped tensor is not there before it is touched."""
    if how == "make-torch":
        torch.save(load_file(file), file.removesuffix("model.safetensors") + "model.pt")
        return
    begun = time.perf_counter()
    tensors = load_file(file) if how == "safetensors" else torch.load(file, weights_only=True)
    for one in tensors.values():
        one.view(torch.uint8).reshape(-1)[::4096].sum()
    print(time.perf_counter() - begun)


main(*sys.argv[1:])
