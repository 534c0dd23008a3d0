"""How long does everything take on the device that is stood in for? A file says so.

JSON: what `GET /api/v1/profiles` answers (a list of profiles, one per model shape), or an object with `profiles`, or
with a `roofline` that answers for every shape without a profile, or both:

    {"roofline": {"memory_bytes_per_s": 2e12, "operations_per_s": 3e14, "iteration_overhead_s": 0.004}}
"""

from pathlib import Path

import msgspec

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey, ShapeKey
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import Profile
from llmhostd.domain.words import Word
from llmhostd.simulator.roofline import Roofline, profile_on


class _Roofline(Roofline, forbid_unknown_fields=True):
    """A misspelt figure must not be a default."""


class _File(Word, forbid_unknown_fields=True):
    profiles: tuple[Profile, ...] = ()
    roofline: _Roofline | None = None


class Times:
    """What one file says."""

    def __init__(self, file: str, profiles: tuple[Profile, ...], roofline: Roofline | None) -> None:
        """Raises OperatorError for a profile that cannot be used, and for two of one shape."""
        self._file = file
        self._roofline = roofline
        self._profiles: dict[ShapeKey, Profile] = {}
        for profile in profiles:
            if profile.shape_key in self._profiles:
                other = self._profiles[profile.shape_key].hardware_key
                raise OperatorError(
                    f"{file}: two profiles of {profile.shape_key}, on {other} and {profile.hardware_key}; keep one"
                )
            ProfiledEstimator(profile)
            self._profiles[profile.shape_key] = profile

    def profile_of(self, shape: ModelShape, hardware_key: HardwareKey) -> Profile:
        """Say how long this shape's iterations take. Raises OperatorError for a shape that the file does not know."""
        found = self._profiles.get(shape.key)
        if found is not None:
            return msgspec.structs.replace(found, hardware_key=hardware_key)
        if self._roofline is None:
            known = ", ".join(self._profiles) or "none"
            raise OperatorError(
                f"{self._file}: has no profile of shape {shape.key} and no roofline; shapes it knows: {known}"
            )
        return profile_on(self._roofline, shape, hardware_key)


def read_times(file: str) -> Times:
    """Read a file. Raises OperatorError naming it and the field."""
    try:
        text = Path(file).read_bytes()
        if text.lstrip().startswith(b"["):
            found = _File(profiles=msgspec.json.decode(text, type=tuple[Profile, ...]))
        else:
            found = msgspec.json.decode(text, type=_File)
    except OSError as error:
        raise OperatorError(f"{file}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise OperatorError(f"{file}: cannot be used: {error}") from error
    except ValueError as error:
        raise OperatorError(f"{file}: is not UTF-8 text") from error
    if not found.profiles and found.roofline is None:
        raise OperatorError(f"{file}: has neither `profiles` nor a `roofline`")
    for name in ("memory_bytes_per_s", "operations_per_s", "load_bytes_per_s", "pack_bytes_per_s"):
        if found.roofline is not None and not 0.0 < getattr(found.roofline, name) < float("inf"):
            raise OperatorError(f"{file}: roofline.{name}: is {getattr(found.roofline, name)}; expected more than 0")
    return Times(file, found.profiles, found.roofline)
