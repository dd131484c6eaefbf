"""Fine-tuning with unsloth-train, a native program, from Python: `train` waits for a run, `stream` yields its metrics."""

from ._program import NotInstalledError
from ._train import TrainingError, stream, train

__all__ = ["NotInstalledError", "TrainingError", "stream", "train"]
