"""Which models can be asked for, and under which promise? The registered ones, as this configuration serves them."""

from collections.abc import Iterator
from pathlib import Path

from llmhostd.api.nearest import nearest
from llmhostd.domain.errors import UnknownModelError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelSpec
from llmhostd.state.models import RegisteredModel, spec_of
from llmhostd.state.policy import PrecisionPolicy, SloPolicy


class Models:
    """By name. The state keeps the registrations; this keeps what follows from them."""

    def __init__(self, slo: SloPolicy, precision: PrecisionPolicy, *, bf16_hardware: bool) -> None:
        self._slo = slo
        self._precision = precision
        self._bf16_hardware = bf16_hardware
        self._registered: dict[ModelName, RegisteredModel] = {}
        self._specs: dict[ModelName, ModelSpec] = {}
        self._checkpoints: dict[ModelName, Path] = {}

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def resolve(self, model: RegisteredModel) -> ModelSpec:
        """Say what it would be under this configuration. Raises OperatorError for a precision that does not exist."""
        return spec_of(model, self._slo, self._precision, bf16_hardware=self._bf16_hardware)

    def add(self, model: RegisteredModel) -> ModelSpec:
        """Add or replace. Raises OperatorError for a precision that does not exist."""
        spec = self.resolve(model)
        self._registered[model.name] = model
        self._specs[model.name] = spec
        # A removed model's requests may still be moved: its checkpoint stays known.
        self._checkpoints[model.name] = Path(model.path)
        return spec

    def remove(self, name: ModelName) -> RegisteredModel:
        """Let nobody ask for it any more. Raises UnknownModelError."""
        model = self.registered(name)
        del self._registered[name], self._specs[name]
        return model

    def spec(self, name: ModelName) -> ModelSpec:
        """Raises UnknownModelError with the nearest name."""
        self.registered(name)
        return self._specs[name]

    def registered(self, name: ModelName) -> RegisteredModel:
        """Raises UnknownModelError with the nearest name."""
        model = self._registered.get(name)
        if model is None:
            raise UnknownModelError(f"there is no model {name[:100]!r}{nearest(name, self._registered)}")
        return model

    def checkpoint_of(self, name: ModelName) -> Path:
        """Where the weights of a model are that is, or was, registered."""
        return self._checkpoints[name]
