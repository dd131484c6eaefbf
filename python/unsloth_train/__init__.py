"""Fine-tuning with unsloth-train, a native program, from Python: `train` waits for a run, `stream` yields its metrics."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._train import NotInstalledError, TrainingError, stream, train

__all__ = ["NotInstalledError", "TrainingError", "stream", "train"]


def __getattr__(name: str) -> Any:
    """Imports what the command line does not need when it is asked for: `unsloth-train` starts sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _train

    return getattr(_train, name)
