"""Which models can be asked for, and under which promise? The registered ones, as this configuration serves them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from llmhostd.api.nearest import nearest
from llmhostd.domain.errors import CallerError, UnknownModelError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelSpec
from llmhostd.engines.frames import AdapterFile
from llmhostd.state.families import specs_of
from llmhostd.state.models import RegisteredModel
from llmhostd.state.policy import AdapterPolicy, PrecisionPolicy, SloPolicy
from llmhostd.text.tokenizer import has_text_files


class Models:
    """By name. The state keeps the registrations; this keeps what follows from them."""

    def __init__(
        self, slo: SloPolicy, precision: PrecisionPolicy, adapters: AdapterPolicy, *, bf16_hardware: bool
    ) -> None:
        self._slo = slo
        self._precision = precision
        self._adapters = adapters
        self._bf16_hardware = bf16_hardware
        self._registered: dict[ModelName, RegisteredModel] = {}
        self._specs: dict[ModelName, ModelSpec] = {}
        self._checkpoints: dict[ModelName, Path] = {}
        self._adapter_files: dict[str, AdapterFile] = {}

    def __iter__(self) -> Iterator[ModelSpec]:
        return iter(self._specs.values())

    def known(self) -> list[RegisteredModel]:
        """List what is registered."""
        return list(self._registered.values())

    def resolve(self, model: RegisteredModel) -> ModelSpec:
        """Say what it would be under this configuration. Raises OperatorError for a precision that does not exist."""
        return self._specs_with([model])[model.name]

    def add(self, models: Sequence[RegisteredModel]) -> list[ModelSpec]:
        """Add or replace. Returns what is new or another than before, bases first: theirs have room for their adapters.

        Raises OperatorError for a precision that does not exist.
        """
        before, self._specs = self._specs, self._specs_with(models)
        for model in models:
            self._registered[model.name] = model
            if model.adapter is not None:
                identity = model.adapter.identity
                self._adapter_files[identity] = AdapterFile(identity=identity, path=model.path)
            else:
                # A removed model's requests may still be moved: its checkpoint stays known.
                self._checkpoints[model.name] = Path(model.path)
        return [spec for name, spec in self._specs.items() if before.get(name) != spec]

    def remove(self, name: ModelName) -> tuple[RegisteredModel, list[ModelSpec]]:
        """Let nobody ask for it any more. Returns it, and the models that are others without it.

        Raises UnknownModelError, and CallerError for a base that has adapters.
        """
        model = self.registered(name)
        check_no_adapters(name, self._registered.values())
        del self._registered[name]
        before, self._specs = self._specs, self._specs_with([])
        return model, [spec for key, spec in self._specs.items() if before[key] != spec]

    def spec(self, name: ModelName) -> ModelSpec:
        """Raises UnknownModelError with the nearest name."""
        self.registered(name)
        return self._specs[name]

    def registered(self, name: ModelName) -> RegisteredModel:
        """Raises UnknownModelError with the nearest name."""
        model = self._registered.get(name)
        if model is None or name not in self._specs:
            raise UnknownModelError(f"there is no model {name[:100]!r}{nearest(name, self._specs)}")
        return model

    def checkpoint_of(self, name: ModelName) -> Path:
        """Where the weights of a model are that is, or was, registered; of an adapter, those of its base."""
        spec = self._specs.get(name)
        return self._checkpoints[spec.served_by if spec else name]

    def adapter_file(self, identity: str) -> AdapterFile:
        """Where an adapter is that is, or was, registered."""
        return self._adapter_files[identity]

    def text_of(self, name: ModelName) -> tuple[Path, ...]:
        """Where the files for a model's text are: of an adapter its own, as far as it has some, then its base's.

        Raises UnknownModelError with the nearest name.
        """
        own, base = Path(self.registered(name).path), self.checkpoint_of(name)
        return (own, base) if own != base and has_text_files(own) else (base,)

    def _specs_with(self, models: Sequence[RegisteredModel]) -> dict[ModelName, ModelSpec]:
        together = {**self._registered, **{one.name: one for one in models}}
        bf16 = self._bf16_hardware
        return specs_of(together.values(), self._slo, self._precision, self._adapters, bf16_hardware=bf16)


def check_no_adapters(name: ModelName, known: Iterable[RegisteredModel]) -> None:
    """Raise CallerError naming the adapters of a model if it has some: they are nothing without it."""
    adapters = sorted(one.name for one in known if one.adapter and one.adapter.base == name)
    if adapters:
        raise CallerError(f"{name} is the base of {', '.join(adapters)}: remove them first", field="name")
