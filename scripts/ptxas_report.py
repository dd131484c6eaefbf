#!/usr/bin/env python3
"""What ptxas says of the project's kernels on architectures of which no card need be here: a row for each, then every kernel that
spills registers to memory. Minutes an architecture; the build itself refuses spills for 9.0a (cmake/Modules.cmake).
    scripts/ptxas_report.py [ARCHITECTURE...]      (80, 86, 89, 90a, 100, 120 unless named)
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCHITECTURES = ["80", "86", "89", "90a", "100", "120"]
ENTRY = re.compile(r"Compiling entry function '(\S+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def compiler():
    packages = sorted(ROOT.glob(".deps/venv/lib/python3*/site-packages"))
    if not packages:
        sys.exit("There is no CUDA compiler in .deps. Run scripts/setup.sh.")
    toolkit = packages[0] / "nvidia/cu13"
    return [toolkit / "bin/nvcc", f"-isystem={toolkit / 'include'}", f"-isystem={packages[0] / 'nvidia/cudnn/include'}"]


def kernels_of(source, architecture, nvcc):
    """(name, registers, bytes of static shared memory, spill stores, spill loads) of each kernel."""
    flags = (
        f"-O3 -DNDEBUG -DUNSLOTH_CUDA=1 --expt-relaxed-constexpr -std=c++17 -Xptxas=-v -arch=sm_{architecture}".split()
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [*nvcc, *flags, f"-I{ROOT}", f"-I{ROOT / 'include'}", "-cubin", "-o", f"{folder}/out.cubin", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{source.name} does not compile for sm_{architecture}:\n{done.stderr}")
    found, name, spills = [], "", (0, 0)
    for line in done.stderr.splitlines():
        if match := ENTRY.search(line):
            name, spills = match[1], (0, 0)
        elif match := SPILLS.search(line):
            spills = int(match[1]), int(match[2])
        elif match := USED.search(line):
            found.append((name, int(match[1]), int(match[2] or 0), *spills))
    return found


def readable(name):
    text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False).stdout.strip()
    return re.sub(r"unsloth::kernels::|\(anonymous namespace\)::|^void ", "", text).split("(")[0]


def main(architectures):
    nvcc, sources, spilling = compiler(), sorted((ROOT / "kernels").glob("*.cu")), []
    print("| architecture | kernels | most registers | most static shared memory | kernels that spill |")
    print("| -- | -- | -- | -- | -- |")
    for architecture in architectures:
        kernels = [(source, *kernel) for source in sources for kernel in kernels_of(source, architecture, nvcc)]
        spilled = [kernel for kernel in kernels if kernel[4] or kernel[5]]
        most = [max(kernel[i] for kernel in kernels) for i in (2, 3)]
        print(f"| sm_{architecture} | {len(kernels)} | {most[0]} | {most[1]} | {len(spilled)} |", flush=True)
        spilling += [(architecture, *kernel) for kernel in spilled]
    for architecture, source, name, _, _, stores, loads in spilling:
        print(f"sm_{architecture} {source.name} {readable(name)}: {stores} bytes stored, {loads} loaded")


if __name__ == "__main__":
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    main(sys.argv[1:] or ARCHITECTURES)
