"""Packs the parts that scripts/wheel.sh collected into a wheel, and prints its path:
    pack_wheel.py PARTS VERSION [--level N] OUT
PARTS has unsloth_train/ (the package, with lib/), licenses/ and share/. Python's standard library only; objdump reads what the
libraries need. The versions of torch and pyarrow are those installed beside the Python that runs this, which the build was linked
with.

The tag follows from the versions of symbols, as auditwheel's: the oldest manylinux policy that has them all. A library that is
neither in the wheel, nor promised by manylinux, nor in a package that is declared fails the packing."""

import argparse
import base64
import hashlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

# glibc 2.X and the newest versions of gcc's libraries in manylinux_2_X (auditwheel's policies).
POLICIES = (
    (17, {"GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)}),
    (24, {"GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (4, 8, 0)}),
    (27, {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}),
    (31, {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)}),
    (34, {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}),
    (35, {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}),
    (39, {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)}),
)
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|mvec|gcc_s|stdc\+\+))\.so\.\d+")
DESCRIPTION = """\
unsloth-train fine-tunes Llama-family models with QLoRA, LoRA or full fine-tuning. It is a native program (C++20, CUDA).

    unsloth-train run.json                  # or: python -m unsloth_train run.json

    import unsloth_train
    unsloth_train.train({"model": {"path": "MODEL"}, "data": {"train_file": "rows.jsonl"}}, max_steps=100)

GPU runs need an NVIDIA driver of version 580 or newer; `unsloth-train doctor` checks the machine.
"""


def needs_of(description):
    """What `objdump -p` says of a file: the libraries it needs, and the versions of symbols as {"GLIBC": {(2, 34), …}}."""
    libraries = set(re.findall(r"^  NEEDED +(\S+)", description, re.MULTILINE))
    references = description.partition("\nVersion References:\n")[2]
    versions = {}
    for name, number in re.findall(r" (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)$", references, re.MULTILINE):
        versions.setdefault(name, set()).add(tuple(map(int, number.split("."))))
    if "GLIBC_ABI_DT_RELR" in references:  # relative relocations that older loaders do not know
        versions.setdefault("GLIBC", set()).add((2, 36))
    return libraries, versions


def oldest_policy(versions):
    """The X of the oldest manylinux_2_X that has these versions of symbols."""
    newest = {name: max(found) for name, found in versions.items()}
    glibc = newest.pop("GLIBC", (2, 17))
    for minor, limits in POLICIES:
        if all(version <= limits[name] for name, version in newest.items()):
            return max(minor, glibc[1])
    sys.exit(f"error: no manylinux policy has {newest}: build with an older compiler")


def check_libraries(lib, site, folders):
    """The policy that all files of `lib` need; ends where one needs a library that will not be there."""
    files = sorted(lib.iterdir())
    all_versions = {}
    for file in files:
        done = subprocess.run(
            ["objdump", "-p", file], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
        )
        if done.returncode != 0:
            sys.exit(f"error: objdump cannot read {file}: {done.stderr}")
        libraries, versions = needs_of(done.stdout)
        for name, found in versions.items():
            all_versions.setdefault(name, set()).update(found)
        for library in libraries:
            here = (lib / library).exists() or any((site / folder / library).exists() for folder in folders)
            if not here and not SYSTEM.fullmatch(library):
                sys.exit(f"error: {file.name} needs {library}, which neither the wheel nor its dependencies have")
    return oldest_policy(all_versions)


def installed(package):
    return importlib.metadata.version(package).partition("+")[0]


def metadata(version, licenses, requirements):
    lines = [
        "Metadata-Version: 2.4",
        "Name: unsloth_train",
        f"Version: {version}",
        "Summary: Fine-tune Llama-family models with QLoRA, LoRA or full fine-tuning",
        "License: Apache-2.0; libraries in lib/ have the terms in licenses/",
        *(f"License-File: {name}" for name in licenses),
        "Classifier: Operating System :: POSIX :: Linux",
        "Requires-Python: >=3.10",
        *(f"Requires-Dist: {requirement}" for requirement in requirements),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + DESCRIPTION


class Wheel:
    def __init__(self, path, level):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level)
        self.record = []

    def add(self, name, data, executable=False):
        entry = zipfile.ZipInfo(name)  # dated 1980, so that the same parts give the same bytes
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def add_folder(self, folder, prefix):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for file in files:
            name = file.relative_to(folder).as_posix()
            self.add(
                f"{prefix}/{name}",
                file.read_bytes(),
                executable=file.name == "unsloth-train" and file.parent.name == "lib",
            )
        return [file.relative_to(folder).as_posix() for file in files]

    def close(self, info):
        self.zip.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*self.record, f"{info}/RECORD,,", ""]))
        self.zip.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", type=pathlib.Path)
    parser.add_argument("version")
    parser.add_argument("--level", type=int, default=6)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    package = arguments.parts / "unsloth_train"
    site = pathlib.Path(sysconfig.get_path("purelib"))

    # What a wheel for CPU and CUDA finds in the packages that pip installs with torch.
    folders = ["torch/lib", "pyarrow", *(str(folder.relative_to(site)) for folder in site.glob("nvidia/*/lib"))]
    tag = f"py3-none-manylinux_2_{check_libraries(package / 'lib', site, folders)}_x86_64"
    requirements = [f"torch=={installed('torch')}"]
    if (package / "lib" / "libunsloth_parquet.so").exists():
        arrow = ".".join(installed("pyarrow").split(".")[:2])  # libarrow.so's number
        requirements.append(f'pyarrow=={arrow}.*; python_version >= "3.11"')
    engine = subprocess.run(["objdump", "-p", package / "lib" / "libunsloth_engine.so"], capture_output=True, text=True)
    # With CUDA, torch's full version: its other builds have the same number.
    exact = re.search(r"^__version__ = '(.*)'", (site / "torch" / "version.py").read_text(), re.MULTILINE)[1]
    torch = exact if "libtorch_cuda.so" in engine.stdout else installed("torch")
    (package / "lib" / "torch-version").write_text(torch)

    path = arguments.out / f"unsloth_train-{arguments.version}-{tag}.whl"
    partial = path.with_suffix(".part")
    wheel = Wheel(partial, arguments.level)
    wheel.add_folder(package, "unsloth_train")
    stem = f"unsloth_train-{arguments.version}"
    wheel.add_folder(arguments.parts / "share", f"{stem}.data/data/share")
    info = f"{stem}.dist-info"
    licenses = wheel.add_folder(arguments.parts / "licenses", f"{info}/licenses")
    wheel.add(f"{info}/METADATA", metadata(arguments.version, licenses, requirements).encode())
    wheel.add(
        f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: unsloth-train\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nunsloth-train = unsloth_train.__main__:main\n")
    wheel.close(info)
    partial.rename(path)
    print(path)


if __name__ == "__main__":
    main()
