"""Where is what was computed kept, so that nothing is computed twice? One JSON file per experiment."""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llmhostd import __version__
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.words import Word
from llmhostd.evaluation.drawing import write
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.outcome import Outcome

FOLDER = "points"


class Point(Word):
    """One file."""

    experiment: Experiment
    outcome: Outcome
    version: str
    """Of the llmhostd that simulated it."""
    at_unix_s: float


def _path(kind: type, text: str) -> Path:
    if kind is not Path:
        raise NotImplementedError(kind)
    return Path(text)


_encoder = msgspec.json.Encoder(enc_hook=str)
"""Paths are written as text."""
_decoder = msgspec.json.Decoder(Point, dec_hook=_path)


class Points:
    """The folder `points` of an evaluation."""

    def __init__(self, out: Path) -> None:
        """Make the folder if need be. Raises OperatorError naming it."""
        self.folder = out / FOLDER
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OperatorError(f"{self.folder}: cannot be made: {error.strerror}") from error

    def file(self, experiment: Experiment) -> Path:
        """Where an experiment's outcome is, or will be."""
        return self.folder / f"{slug(experiment)}.json"

    def load(self, experiments: Iterable[Experiment]) -> dict[Experiment, Point]:
        """Read what there is of these. Raises OperatorError for a file that is no point; delete it then."""
        found: dict[Experiment, Point] = {}
        for experiment in experiments:
            file = self.file(experiment)
            if not file.exists():
                continue
            try:
                found[experiment] = _decoder.decode(file.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:
                raise OperatorError(f"{file}: cannot be read: {error}; delete it, or use --again") from error
        return found

    def keep(self, experiment: Experiment, outcome: Outcome) -> Point:
        """Write a point, whole or not at all. Raises OperatorError naming the file."""
        point = Point(experiment=experiment, outcome=outcome, version=__version__, at_unix_s=time.time())
        file = self.file(experiment)
        fresh = file.with_suffix(".new")
        write(fresh, msgspec.json.format(_encoder.encode(point), indent=2))
        fresh.replace(file)
        return point


def slug(experiment: Experiment) -> str:
    """A name that a person can read, and that no other experiment has: it ends in a digest of all that matters.

    Settings of an experiment that are at their defaults are not in the digest, so that a new one changes no name; every
    assumption is, so that a new value of one is a new experiment.
    """
    usual = Experiment(trace=experiment.trace, profiles=experiment.profiles)
    said = {
        name: getattr(experiment, name)
        for name in Experiment.__struct_fields__
        if name == "assumptions" or getattr(experiment, name) != getattr(usual, name)
    }
    named = said | {"trace": experiment.trace.name, "profiles": experiment.profiles.name}
    digest = hashlib.blake2b(msgspec.json.encode(named, order="sorted"), digest_size=5).hexdigest()
    sizes = "+".join(f"{size}x{share}" for size, share in experiment.mix) or experiment.size
    without = "".join(f"-no-{each}" for each in experiment.without)
    without += "-apart" if experiment.disaggregated else ""
    without += f"-{experiment.minutes:g}min" if experiment.minutes is not None else ""
    trace = experiment.trace.name.partition(".csv")[0]
    models = experiment.models or "all"
    return f"{experiment.policy}{without}-{sizes}-{models}-{trace}-{experiment.cluster}-{digest}".replace("/", "_")
