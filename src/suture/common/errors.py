"""All errors that Suture raises on purpose, as one tree.

A message names the offender, the allowed values, and the remedy. The tree::

    SutureError
    ├── NetworkError          a model that cannot become a network
    │   ├── TracingError      no backend can cut it
    │   ├── UntrainedError    it cannot be made untrained
    │   ├── SourceError       a model string that does not resolve
    │   └── CheckpointError   weights that do not fit the model, or are unsafe to load
    ├── CutError              a cut that a network does not have
    ├── ShapeError            two tensors that no stitch joins
    ├── DataError             data that cannot be measured on
    │   └── NoClassesError    data without classes, where they are needed
    ├── FitError              a fit that went wrong (a loss that is not finite)
    ├── FrozenError           a frozen network that changed during a trial
    ├── FoldError             a stitch that no neighbouring layer can take
    ├── DeviceError           a device that is not there, or has no room
    ├── CodeError             code or an object of the user's that no key can describe
    ├── OutputError           a place that results cannot be written to
    ├── StoreError            a folder that is not a store of this run
    └── RunnerError           a place where trials cannot run

``SutureWarning`` says what was taken where something else may be meant; ``LeftOut`` is one.
"""


class SutureError(Exception):
    """Base of every error that Suture raises on purpose."""


class NetworkError(SutureError):
    """A model that cannot become a network."""


class TracingError(NetworkError):
    """No backend can cut this model."""


class UntrainedError(NetworkError):
    """The network cannot be made untrained without help."""


class SourceError(NetworkError):
    """A model string that does not resolve to a model."""


class CheckpointError(NetworkError):
    """Weights that do not fit the model, or that are unsafe to load."""


class CutError(SutureError):
    """A cut that a network does not have, or that two networks do not share."""


class ShapeError(SutureError):
    """Two tensors that no stitch joins."""


class DataError(SutureError):
    """Data that cannot be measured on."""


class NoClassesError(DataError):
    """Data without classes, where they are needed."""


class FitError(SutureError):
    """A fit that went wrong."""


class FrozenError(SutureError):
    """A frozen network that changed during a trial."""


class FoldError(SutureError):
    """A stitch that no neighbouring layer can take."""


class DeviceError(SutureError):
    """A device that is not there, or has no room."""


class CodeError(SutureError):
    """Code or an object of the user's that no key can describe."""


class OutputError(SutureError):
    """A place that results cannot be written to."""


class StoreError(SutureError):
    """A folder that is not a store, or not this run's."""


class RunnerError(SutureError):
    """A place where trials cannot run."""


class SutureWarning(UserWarning):
    """Input that can be read in more than one way, with the reading that was chosen."""


class LeftOut(SutureWarning):
    """A control that cannot be made and is left out of a plan, with the reason."""


_OF_MEMORY = ("out of memory", "not enough memory", "allocate memory", "cuda error", "cudnn error")


def may_be_of_machine(error: BaseException) -> bool:
    """Return whether the machine may have caused an error or its origin: memory, a disk, a lock, a damaged file.

    The same work may then succeed later, or elsewhere.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError | MemoryError | DeviceError | OutputError | StoreError | RunnerError):
            return True
        is_of_files = type(found).__module__.partition(".")[0] in ("safetensors", "safetensors_rust", "filelock")
        if is_of_files or any(word in str(found).lower() for word in _OF_MEMORY):
            return True
        found = found.__cause__ or found.__context__
    return False
