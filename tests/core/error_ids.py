#!/usr/bin/env python3
"""Finds error ids that no source gives to an error.

    error_ids.py ROOT          checks the tree; prints each such id, exit status 1 when there is one
    error_ids.py --self-test   checks that the rule is able to fail

An unknown id does not compile, and an id without a text neither (src/core/error_texts.cpp). What the compiler cannot
see is an id that is explained to users, and that nothing prints any more.
"""

import re
import sys
import tempfile
from pathlib import Path

IDS = Path("include/unsloth/core/error_id.h")
TEXTS = Path("src/core/error_texts.cpp")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
KNOWN = re.compile(r'^ *\{"([a-z-]+\.[a-z0-9-]+)", ErrorKind::\w+\},$', re.MULTILINE)


def unused_ids(root):
    """Those of the ids in IDS that are not quoted in src/, include/ or kernels/, but for the two tables."""
    left = dict.fromkeys(KNOWN.findall((root / IDS).read_text()))
    if not left:
        sys.exit(f"{IDS}: no ids were found")
    for folder in ("src", "include", "kernels"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or path.relative_to(root) in (IDS, TEXTS):
                continue
            for quoted in re.findall(r'"([a-z-]+\.[a-z0-9-]+)"', path.read_text()):
                left.pop(quoted, None)
    return list(left)


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in (
            (IDS, '    {"data.empty", ErrorKind::input},\n    {"data.lost", ErrorKind::input},\n'),
            (TEXTS, '    {"data.lost", {"It is lost.", "Find it."}},\n'),
            (Path("src/data/rows.cpp"), 'throw Error("data.empty", "no rows");\n'),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        assert unused_ids(root) == ["data.lost"], unused_ids(root)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    unused = unused_ids(Path(sys.argv[1]))
    for name in unused:
        print(f"{IDS}: no error has the id {name}")
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
