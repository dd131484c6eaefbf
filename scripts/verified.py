#!/usr/bin/env python3
"""Whether files are those for which a slow check has passed. tests/verified.txt notes a hash for each name.
    scripts/verified.py check NAME FILE...     exit code 0 if the files are those that were noted, else 1
    scripts/verified.py record NAME FILE...    notes them
    scripts/verified.py unless NAME FILE... -- COMMAND...
                                               exit code 77 if they are; else runs the command, and notes them if it passes
With UNSLOTH_VERIFY_ALL=1 nothing counts as noted.
"""

import hashlib
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "tests/verified.txt"


def digest(files):
    """A hash of names and contents; the order of the arguments does not matter."""
    total = hashlib.sha256()
    for file in sorted({pathlib.Path(f).resolve() for f in files}):
        total.update(f"{file.relative_to(ROOT)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def notes():
    return dict(line.split() for line in NOTES.read_text().splitlines()) if NOTES.exists() else {}


def check(name, files):
    return os.environ.get("UNSLOTH_VERIFY_ALL") != "1" and notes().get(name) == digest(files)


def record(name, files):
    lines = {**notes(), name: digest(files)}
    NOTES.write_text("".join(f"{key} {lines[key]}\n" for key in sorted(lines)))


def main(arguments):
    action, name, *files = arguments
    if action == "check":
        return 0 if check(name, files) else 1
    if action == "record":
        record(name, files)
        return 0
    split = files.index("--")
    files, command = files[:split], files[split + 1 :]
    if check(name, files):
        print(f"Skipped: unchanged since it passed (tests/verified.txt: {name}).")
        return 77
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        record(name, files)
    return code


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("check", "record", "unless"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
