"""Who must act? Errors are few and divided by that; `api.errors` maps them to HTTP, `cli` to exit statuses."""


class LlmhostdError(Exception):
    """Base of all errors that a person may see: one line, no traceback."""


class CallerError(LlmhostdError):
    """The caller must change the request. `field` names the part that is wrong, when one is."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownNameError(CallerError):
    """Nothing of that name is there; says the nearest one."""


class UnknownModelError(UnknownNameError):
    """No model of that name; says the nearest one."""


class OperatorError(LlmhostdError):
    """Whoever runs the box must act: configuration, disk, port, permission."""


class CheckpointError(OperatorError):
    """A checkpoint is missing, truncated, misshapen or of an unknown architecture; names the file and the tensor."""


class EngineError(LlmhostdError):
    """An engine refused or failed an operation; the node goes on without the instance."""


class InstanceLostError(EngineError):
    """An instance cannot be trusted to compute any more: it must be destroyed and built again."""


class ProcessLostError(LlmhostdError):
    """Native code in this process cannot be trusted any more: the process must end, and what it ran go elsewhere."""


def in_words(error: Exception) -> str:
    """What is wrong, without the number and the path that the system's errors are printed with."""
    return getattr(error, "strerror", None) or str(error)
