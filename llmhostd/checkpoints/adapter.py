"""Which low-rank updates does an adapter_config.json describe?

Follows what the `peft` library computes for LoRA on a decoder: y += scale * B (A x) beside each linear layer that is
targeted, scale = alpha / r, or alpha / sqrt(r) (rank-stabilized). What that library would compute otherwise is refused:
an adapter that runs is the adapter that was trained.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from llmhostd.checkpoints.fields import ConfigFields
from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import AdapterSlots, Architecture, ComputePrecision, LowRankAdapter, ModelShape
from llmhostd.domain.words import Word

TENSOR_PREFIX = "base_model.model."
"""What `peft` puts before the name that a module has in its base."""

_READ = (
    "alpha_pattern", "base_model_name_or_path", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "task_type", "use_rslora",
)  # fmt: skip
_NOTHING_COMPUTED = (
    "auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
)  # fmt: skip
"""Fields about training, initialization (`init_lora_weights` says whether one took place) and other machines."""
_NEUTRAL: tuple[object, ...] = (None, False, "none", [], {})
"""Values by which a field that is not read says that it is off: `bias`, `use_dora`, `modules_to_save` and the like."""
_KEEPS_THE_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Initializations that leave the weights of the base as they are; others subtract something from them."""
_LARGEST_RANK = 8192
"""Bounds the memory that a broken or hostile configuration can ask for."""
_PLAIN_PATTERN = re.compile(r"\^?[A-Za-z0-9_.]+\$?")


class AdaptedLinear(Word):
    """The update of one linear layer: A `[rank, inputs]`, B `[outputs, rank]`."""

    layer: int
    name: str
    """Its name in the layer, e.g. `self_attn.q_proj`."""
    rank: int
    scale: float
    inputs: int
    outputs: int

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, int]], tuple[str, tuple[int, int]]]:
        """Names and shapes of A and B in the adapter's file."""
        prefix = f"{TENSOR_PREFIX}{_full_name(self.layer, self.name)}"
        return (
            (f"{prefix}.lora_A.weight", (self.rank, self.inputs)),
            (f"{prefix}.lora_B.weight", (self.outputs, self.rank)),
        )


class Adapter(Word):
    """All updates of one adapter, by layer."""

    base: str
    """What it says it was trained on; not checked, since names of the same model differ."""
    linears: tuple[AdaptedLinear, ...]

    @property
    def rank(self) -> int:
        """The largest rank of an update."""
        return max(one.rank for one in self.linears)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the linear layers that are updated in some layer, in the order of `linear_names`."""
        return tuple(dict.fromkeys(sorted((one.name for one in self.linears), key=linear_names().index)))


_RANK_STEP = 8
"""Slots have a multiple of this as their rank."""


def room_for(adapters: Sequence[LowRankAdapter], base: ModelShape, most_slots: int) -> AdapterSlots | None:
    """Say what room a base needs for its adapters; None when it has none.

    A slot for each, each for any of them; their number a power of two, so that not every new one is another shape.
    """
    if not adapters:
        return None
    slots = min(1 << (len(adapters) - 1).bit_length(), most_slots)
    rank = -(-max(one.rank for one in adapters) // _RANK_STEP) * _RANK_STEP
    modules = tuple(name for name in linear_names() if any(name in one.modules for one in adapters))
    shapes = linear_shapes(base.architecture)
    elements = sum(sum(shapes[f"{name}.weight"]) for name in modules) * rank * base.architecture.layers
    width = 4 if base.compute is ComputePrecision.F32 else 2
    return AdapterSlots(slots=slots, rank=rank, modules=modules, slot_bytes=elements * width)


def linear_names() -> tuple[str, ...]:
    """Names of a layer's linear layers, in the order of computation."""
    return (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )  # fmt: skip


def parse_adapter(config: Mapping[str, Any], base: Architecture, where: str = "adapter_config.json") -> Adapter:
    """Read the parsed adapter_config.json of an adapter for `base`. `where` is its path, for errors.

    Raises CheckpointError naming the file and the field.
    """
    fields = ConfigFields(config, where)
    _refuse_what_is_not_computed(config, fields)
    rank, alpha = _rank(fields, "r"), fields.positive_float("lora_alpha")
    ranks, alphas = _patterns(fields, "rank_pattern"), _patterns(fields, "alpha_pattern")
    root = fields.flag("use_rslora", default=False)
    shapes = linear_shapes(base)
    linears = []
    for layer, name in _targets(config, fields, base):
        full = _full_name(layer, name)
        own_rank, own_alpha = int(_first(ranks, full, rank)), _first(alphas, full, alpha)
        outputs, inputs = shapes[f"{name}.weight"]
        scale = own_alpha / (math.sqrt(own_rank) if root else own_rank)
        linears.append(
            AdaptedLinear(layer=layer, name=name, rank=own_rank, scale=scale, inputs=inputs, outputs=outputs)
        )
    if not linears:
        raise fields.wrong("layers_to_transform", "leaves nothing of `target_modules` to update")
    return Adapter(base=fields.text("base_model_name_or_path", ""), linears=tuple(linears))


def _refuse_what_is_not_computed(config: Mapping[str, Any], fields: ConfigFields) -> None:
    kind = fields.text("peft_type", "")
    if kind != "LORA":
        raise fields.wrong("peft_type", f"is {kind!r}; only 'LORA' is read")
    task = fields.text("task_type", "CAUSAL_LM")
    if task != "CAUSAL_LM":
        raise fields.wrong("task_type", f"is {task!r}; only 'CAUSAL_LM' is computed")
    start = config.get("init_lora_weights", True)
    if start not in _KEEPS_THE_BASE:
        raise fields.wrong(
            "init_lora_weights", f"is {start!r}, which changes the base's weights; save it converted to plain LoRA"
        )
    for field, value in sorted(config.items()):
        if field not in (*_READ, *_NOTHING_COMPUTED) and value not in _NEUTRAL:
            raise fields.wrong(field, f"is {value!r}; that is not computed: only plain LoRA is")


def _targets(config: Mapping[str, Any], fields: ConfigFields, base: Architecture) -> Iterator[tuple[int, str]]:
    """List (layer, name) of the linear layers that are updated."""
    layers = _layers(config, fields, base)
    wanted = config.get("target_modules")
    if wanted == "all-linear":
        yield from ((layer, name) for layer in range(base.layers) for name in linear_names())
        return
    if isinstance(wanted, str):
        raise fields.wrong("target_modules", f"is {wanted!r}; a list of names or 'all-linear' is read, no expression")
    names = fields.texts("target_modules")
    if not names:
        raise fields.wrong("target_modules", f"is missing or empty; known: {', '.join(linear_names())}")
    for one in names:
        if not any(_ends_with(full, one) for full in _all_full_names(base)):
            short = [name.rpartition(".")[2] for name in linear_names()]
            near = get_close_matches(one.rpartition(".")[2], short, n=1, cutoff=0.0)[0]
            raise fields.wrong(
                "target_modules", f"names {one!r}, no linear layer of this base's layers; nearest: {near}"
            )
    for layer in range(base.layers):
        for name in linear_names():
            full = _full_name(layer, name)
            if full in names or (layer in layers and any(_ends_with(full, one) for one in names)):
                yield layer, name


def _layers(config: Mapping[str, Any], fields: ConfigFields, base: Architecture) -> tuple[int, ...]:
    """Return the layers that names without a layer's number speak of."""
    value = config.get("layers_to_transform")
    if value is None:
        return tuple(range(base.layers))
    layers = value if isinstance(value, list) else [value]
    if not layers or any(type(one) is not int or not 0 <= one < base.layers for one in layers):
        raise fields.wrong("layers_to_transform", f"is {value!r}; this base's layers are 0 to {base.layers - 1}")
    if config.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
        raise fields.wrong("layers_pattern", f"is {config['layers_pattern']!r}; only 'layers' is read")
    if isinstance(config.get("target_modules"), str):
        raise fields.wrong("layers_to_transform", "goes with a list of target_modules only")
    return tuple(layers)


def _patterns(fields: ConfigFields, field: str) -> dict[str, float]:
    """Read numbers by pattern. `peft` takes expressions; names, which is what adapters have, are all we match."""
    section = fields.section(field)
    if section is None:
        return {}
    found = {}
    for pattern in section.names():
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise section.wrong(pattern, "is an expression; only names of modules are read")
        found[pattern] = _rank(section, pattern) if field == "rank_pattern" else section.positive_float(pattern)
    return found


def _rank(fields: ConfigFields, field: str) -> int:
    rank = fields.positive_int(field)
    if rank > _LARGEST_RANK:
        raise fields.wrong(field, f"is {rank}; at most {_LARGEST_RANK} is read")
    return rank


def _first(patterns: Mapping[str, float], full: str, default: float) -> float:
    """Return the value of the first pattern that matches, as `peft` does."""
    for pattern, value in patterns.items():
        name = pattern.removesuffix("$")
        if full == name[1:] if name.startswith("^") else _ends_with(full, name):
            return value
    return default


def _ends_with(full: str, name: str) -> bool:
    return full == name or full.endswith(f".{name}")


def _full_name(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{name}"


def _all_full_names(base: Architecture) -> Iterator[str]:
    return (_full_name(layer, name) for layer in range(base.layers) for name in linear_names())


def check_tensors(adapter: Adapter, stored: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Hold the shapes in an adapter's file (its path is `where`) against what its configuration asks for.

    Raises CheckpointError naming the file and the tensor: one that is missing, misshapen, or not asked for.
    """
    expected = {name: shape for one in adapter.linears for name, shape in one.tensors}
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{where}: tensor `{name}` is missing; the configuration and the base ask for it")
        if stored[name] != shape:
            raise CheckpointError(
                f"{where}: tensor `{name}` has shape {list(stored[name])}; the configuration and the base ask for "
                f"{list(shape)}"
            )
    for name in stored:
        if name not in expected:
            raise CheckpointError(f"{where}: tensor `{name}` is not asked for by the configuration: it is not computed")
