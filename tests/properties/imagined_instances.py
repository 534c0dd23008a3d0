"""What does a worker keep of each instance and each request, if nothing is computed?"""

from dataclasses import dataclass, field

from llmhostd.domain import commands
from llmhostd.domain.model import ModelState

MIB = 1 << 20
WARM_BYTES, RESIDENT_BYTES = 20 * MIB, 320 * MIB


def answer_tokens(prompt_tokens):
    """How long an answer is, which no mind knows."""
    return 40 if prompt_tokens in (401, 1000) else 8


@dataclass
class Stay:
    """A request in the engine. Tokens."""

    prompt: int
    out: int
    computed: int = 0
    cached: int = 0
    """Of `computed`: found in the prefix cache, and not told yet."""
    staged: bool = False
    """Its stream is elsewhere."""

    @property
    def context(self):
        return self.prompt + self.out


@dataclass
class Hosted:
    """An instance as its worker knows it."""

    command: commands.LoadInstance
    weights_bytes: int = 0
    """0: nothing is built."""
    kv_blocks: int = 0
    state: ModelState = ModelState.LOADING
    filling: bool = False
    """Its graphs are there, its weights are not all."""
    resting: bool = False
    broken: str = ""
    hopeless: bool = False
    samples: int = 0
    waiting: list = field(default_factory=list)
    stays: dict = field(default_factory=dict)

    @property
    def id(self):
        return self.command.instance_id
