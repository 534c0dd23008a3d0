"""Every setting, gathered.

A setting is a field of a policy dataclass beside the code that reads it; here they become the tables of one TOML file.
A key that does not exist is an error that names the nearest one that does: a misspelt setting must not be a default.
"""

import dataclasses
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import EnumType
from pathlib import Path
from typing import Any

import msgspec

from llmhostd.api.policy import HttpPolicy
from llmhostd.checkpoints.tiers import StartPolicy
from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.prior import PriorPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy
from llmhostd.consolidation.bin_packing import PackingPolicy
from llmhostd.consolidation.preemption import PreemptionPolicy
from llmhostd.devices.domains import DevicePolicy
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind
from llmhostd.engines.supervisor import SupervisorPolicy
from llmhostd.host.best_effort import BestEffortPolicy
from llmhostd.host.budget import BudgetPolicy
from llmhostd.host.hope import HopePolicy
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.offers import RoutingPolicy
from llmhostd.host.policies import HostPolicies
from llmhostd.host.precedence import PrecedencePolicy
from llmhostd.host.recovery import RecoveryPolicy
from llmhostd.host.refusal import RefusalPolicy
from llmhostd.host.residency import ResidencyPolicy
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.memory.host_tier import HostTierPolicy
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.memory.machine_share import MachineMemoryPolicy
from llmhostd.migration.live_migration import MigrationPolicy
from llmhostd.state.journal import JournalPolicy
from llmhostd.state.policy import AdapterPolicy, FlexPolicy, PrecisionPolicy, SloPolicy
from llmhostd.text.cache import TokenizerPolicy
from llmhostd.text.template_process import TemplatePolicy

CONFIG_FILES = (Path("/etc/llmhostd/llmhostd.toml"), Path("~/.config/llmhostd/llmhostd.toml"))
"""Read when no `--config` is given: the first that exists."""


@dataclass(frozen=True, slots=True)
class DaemonPolicy:
    """How the daemon itself behaves."""

    state_dir: str = ""
    """Where models, profiles and the unix socket live. Empty: `$STATE_DIRECTORY`, else `~/.local/state/llmhostd`."""
    drain_timeout_s: float = 30.0
    """When told to stop, running requests may go on this long; new ones get 503."""
    profile_at_start: bool = False
    """Measure every model that was never measured on this hardware as soon as the daemon starts, not when it is asked
    for."""
    usage_flush_s: float = 30.0
    """Usage counters are written to disk this often; a power cut loses no more."""
    load_again: bool = True
    """Load again what was loaded when the daemon ended, last used first, while nobody is served."""
    placement_flush_s: float = 2.0
    """What is loaded where is written to disk this often, if it changed."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One schedulable device: CPU cores with their memory, or a GPU, that compute one iteration at a time.

    Without any, the box is split by what it is (`devices.cpu_nodes`).
    """

    id: str = "cpu0"
    """Its name."""
    kind: NodeKind = NodeKind.CPU
    """`cpu` or `gpu`. Requests go to CPU nodes first; GPU nodes take what those cannot serve in time."""
    cores: str = "all"
    """Logical cores as the kernel writes lists of them, e.g. `0-3,8`: where it computes, or, for a GPU, where the
    thread runs that drives it. No two nodes may share one. `all`: those that the daemon may use; for a GPU those that
    no CPU node has, if there are any."""
    engine: str = "openvino"
    """Entry-point name of the engine plugin."""
    memory: str = "auto"
    """What its models may hold together, e.g. `24 GiB`. `auto`: its share of what the machine, its NUMA domain and the
    control group leave, less a reserve (`machine_memory`); for a GPU what is free on it when the daemon starts, less
    the reserve."""
    device: str = ""
    """A GPU's index or UUID, as `nvidia-smi -L` lists them; empty: the first that no other node has."""
    profile: str = ""
    """Absolute path of a JSON file for an engine that takes its times from a profile (`profiled`)."""


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file; nobody is handed it but the code that composes the daemon."""

    daemon: DaemonPolicy = field(default_factory=DaemonPolicy)
    http: HttpPolicy = field(default_factory=HttpPolicy)
    slo: SloPolicy = field(default_factory=SloPolicy)
    precision: PrecisionPolicy = field(default_factory=PrecisionPolicy)
    adapters: AdapterPolicy = field(default_factory=AdapterPolicy)
    tokenizers: TokenizerPolicy = field(default_factory=TokenizerPolicy)
    templates: TemplatePolicy = field(default_factory=TemplatePolicy)
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    packing: PackingPolicy = field(default_factory=PackingPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    migration: MigrationPolicy = field(default_factory=MigrationPolicy)
    residency: ResidencyPolicy = field(default_factory=ResidencyPolicy)
    starts: StartPolicy = field(default_factory=StartPolicy)
    host_memory: HostTierPolicy = field(default_factory=HostTierPolicy)
    fetch: FetchPolicy = field(default_factory=FetchPolicy)
    keep_alive: KeepAlivePolicy = field(default_factory=KeepAlivePolicy)
    best_effort: BestEffortPolicy = field(default_factory=BestEffortPolicy)
    recovery: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    refusal: RefusalPolicy = field(default_factory=RefusalPolicy)
    hope: HopePolicy = field(default_factory=HopePolicy)
    precedence: PrecedencePolicy = field(default_factory=PrecedencePolicy)
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    kv_demand: KvDemandPolicy = field(default_factory=KvDemandPolicy)
    shadow: ShadowPolicy = field(default_factory=ShadowPolicy)
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    prior: PriorPolicy = field(default_factory=PriorPolicy)
    correction: CorrectionPolicy = field(default_factory=CorrectionPolicy)
    watermark: WatermarkPolicy = field(default_factory=WatermarkPolicy)
    devices: DevicePolicy = field(default_factory=DevicePolicy)
    machine_memory: MachineMemoryPolicy = field(default_factory=MachineMemoryPolicy)
    supervision: SupervisorPolicy = field(default_factory=SupervisorPolicy)
    journal: JournalPolicy = field(default_factory=JournalPolicy)
    flex: FlexPolicy = field(default_factory=FlexPolicy)
    nodes: tuple[NodeSettings, ...] = ()

    def host_policies(self) -> HostPolicies:
        """Return what the host mind decides by."""
        return HostPolicies(**{one.name: getattr(self, one.name) for one in dataclasses.fields(HostPolicies)})


def find_config(option: Path | None) -> Path | None:
    """Return the file to read: the option, else the first of `CONFIG_FILES` that exists, else None."""
    if option is not None:
        return option
    return next((path for path in map(Path.expanduser, CONFIG_FILES) if path.exists()), None)


def load_config(file: Path | None) -> Config:
    """Read a TOML file; None gives the defaults. Raises OperatorError naming the file, the key and the nearest one."""
    if file is None:
        return Config()
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise OperatorError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OperatorError(f"{file}: is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise OperatorError(f"{file}: is not TOML: {error}") from error
    return parse_config(values, str(file))


def parse_config(values: Mapping[str, Any], where: str) -> Config:
    """Check and convert parsed TOML; `where` begins every error."""
    for key, problem in _problems(values, Config, ""):
        raise OperatorError(f"{where}: {key}: {problem}")
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise OperatorError(f"{where}: {path.rstrip('`') or 'the file'}: {_plain(message)}") from error


def state_directory(option: Path | None, environ: Mapping[str, str], config: Config) -> Path:
    """Return where state lives: the option, else systemd's directory, else the file, else the user's own."""
    if option is not None:
        return option.expanduser().absolute()
    # systemd hands several directories separated by colons; ours asks for one.
    named = environ.get("STATE_DIRECTORY", "").split(":")[0] or config.daemon.state_dir
    if named:
        return Path(named).expanduser().absolute()
    base = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
    return Path(base) / "llmhostd"


def _problems(values: Mapping[str, Any], kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield unknown keys and negative numbers, which msgspec lets pass."""
    hints = typing.get_type_hints(kind)
    names = [one.name for one in dataclasses.fields(kind)]
    for key, value in values.items():
        path = f"{prefix}{key}"
        if key not in names:
            yield path, _unknown(key, names, prefix)
            continue
        inner = _dataclass_of(hints[key])
        rows = value if isinstance(value, list) else [value]
        for index, row in enumerate(rows):
            here = f"{path}[{index}]" if isinstance(value, list) else path
            if inner is not None and isinstance(row, dict):
                yield from _problems(row, inner, f"{here}.")
            elif isinstance(row, int | float) and not 0 <= row < float("inf"):
                yield here, f"is {row}; expected a number that is not negative"
            elif isinstance(hints[key], EnumType) and isinstance(row, str):
                yield from ((here, problem) for problem in _not_among(row, list(map(str, hints[key]))))


def _unknown(key: str, names: list[str], prefix: str) -> str:
    near = get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f"did you mean `{prefix}{near[0]}`?" if near else f"known here: {', '.join(names)}"
    return f"there is no such setting; {hint}"


def _not_among(value: str, choices: list[str]) -> Iterator[str]:
    if value not in choices:
        near = get_close_matches(value, choices, n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else f"expected {' or '.join(f'`{one}`' for one in choices)}"
        yield f"is {value!r}; {hint}"


def _dataclass_of(hint: Any) -> type | None:
    """Return the dataclass behind `X` or `tuple[X, ...]`."""
    for one in (hint, *typing.get_args(hint)):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return one
    return None


def _plain(message: str) -> str:
    """Say msgspec's complaint in TOML's words."""
    for ours, theirs in (("`str`", "text"), ("`int`", "a whole number"), ("`float`", "a number"),
                         ("`bool`", "true or false"), ("`object`", "a table"), ("`array`", "a list")):  # fmt: skip
        message = message.replace(ours, theirs)
    return message[:1].lower() + message[1:]
