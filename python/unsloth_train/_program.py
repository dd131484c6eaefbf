"""Finds the program, and the LibTorch and CUDA libraries of this Python environment that it is linked with."""

import importlib.util
import os
import re
from pathlib import Path

_LIB = Path(__file__).parent / "lib"


class NotInstalledError(RuntimeError):
    """The program, or the torch that it was built for, is not in this Python environment."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"unsloth-train: error[library.cannot-load]: {problem}\n  {advice}")


def program() -> tuple[str, dict[str, str]]:
    """The program's path, and the environment to start it with. $UNSLOTH_TRAIN names another program, such as a build's.

    Raises NotInstalledError.
    """
    environment = dict(os.environ)
    if named := environment.get("UNSLOTH_TRAIN"):
        return named, environment
    path = _LIB / "unsloth-train"
    if not path.exists():
        raise NotInstalledError(f"{path} is missing", "Install the wheel, or name a build's program in UNSLOTH_TRAIN.")
    site = path.resolve().parents[2]  # the program's run path leads to the packages of this folder
    _check_torch(site)
    libraries = [lib for torch in _folders_of("torch") for lib in torch.glob("lib")]
    libraries += [lib for nvidia in _folders_of("nvidia") for lib in sorted(nvidia.glob("*/lib"))]
    libraries += _folders_of("pyarrow")
    if elsewhere := [str(folder) for folder in libraries if site not in folder.resolve().parents]:
        environment["LD_LIBRARY_PATH"] = ":".join([*elsewhere, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    return str(path), environment


def _folders_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)  # imports nothing
    return [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []


def _check_torch(site: Path) -> None:
    """LibTorch's interface changes with every version and CUDA: another one would not load, or crash."""
    wanted = (_LIB / "torch-version").read_text()  # 2.11.0+cu130; 2.11.0 of a program without CUDA
    files = [folder / "version.py" for folder in (site / "torch", *_folders_of("torch"))]
    file = next((file for file in files if file.exists()), None)
    version = re.search(r"^__version__ = '(.*)'", file.read_text() if file else "", re.MULTILINE)
    found = version[1] if version else "missing"
    if wanted not in (found, found.partition("+")[0]):
        place = f"in {file.parent}" if file else "of this Python environment"
        raise NotInstalledError(
            f"the program needs torch {wanted}; the one {place} is {found}",
            f"Run: python -m pip install --force-reinstall torch=={wanted.partition('+')[0]}",
        )
