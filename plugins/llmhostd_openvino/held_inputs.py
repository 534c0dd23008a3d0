"""How does the engine come to know an iteration's token ids, positions and block tables?

By arrays that it was pointed at once and that are written again for the next iteration: as long as nothing changes its
shape, which is so from one decode to the next, that is a few copies of some bytes. Pointing it at new arrays takes
some 10 us each, right after an iteration that left nothing else in the caches.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import openvino as ov


class HeldInputs:
    """The small inputs of one infer request."""

    def __init__(self, request: ov.InferRequest, ports: Mapping[str, int]) -> None:
        """`ports`: the place of each input, by name."""
        self._request = request
        self._ports = ports
        self._held: dict[str, npt.NDArray[Any]] = {}

    def put(self, name: str, values: npt.NDArray[Any]) -> None:
        """Let an input be these values. Raises RuntimeError as the engine does."""
        held = self._held.get(name)
        if held is not None and held.shape == values.shape:
            held[...] = values
            return
        tensor = ov.Tensor(values)  # copies
        self._request.set_input_tensor(self._ports[name], tensor)
        self._held[name] = tensor.data
