#!/usr/bin/env python3
"""Counts what docs/log.md has in its table of the house: lines by module, the longest files and functions, and the uses
of words that docs and help no longer have.

    scripts/house_counts.py [COMMIT...]     a column for each commit (HEAD unless named), as a table of Markdown
"""

import collections
import re
import subprocess
import sys

import prose

MODULES = "train placement session commands model weights objective generate data formats config core ops app".split()
SOURCE = re.compile(r"^(src|include|kernels)/.*\.(cpp|h|cu|cuh)$")
TEST = re.compile(r"^tests/.*\.(cpp|h|py)$")
# Text that is no code: raw strings, strings, characters, comments.
NO_CODE = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*(?:.|\n)*?\*/')
SCOPE = re.compile(r"\bnamespace\b[^;()]*$|\b(struct|class|union|enum)\b[^()=]*$")
FUNCTION = re.compile(r"\)\s*(const|noexcept|override|final|mutable|->.*|:.*|requires.*)*\s*$", re.S)


def files_of(commit):
    """{path: text} of the sources and tests of a commit."""
    paths = subprocess.run(["git", "ls-tree", "-r", "--name-only", commit], capture_output=True, text=True, check=True)
    paths = [path for path in paths.stdout.splitlines() if SOURCE.match(path) or TEST.match(path)]
    asked = "".join(f"{commit}:{path}\n" for path in paths)
    out = subprocess.run(["git", "cat-file", "--batch"], input=asked.encode(), capture_output=True, check=True).stdout
    files, at = {}, 0
    for path in paths:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        files[path] = out[end + 1 : end + 1 + size].decode()
        at = end + 2 + size
    return files


def lengths_of_functions(text):
    """Lines of each function that is defined at the level of a namespace or class."""
    text = NO_CODE.sub(lambda m: ("" if m.group().startswith("/") else '""') + "\n" * m.group().count("\n"), text)
    text = re.sub(r"(?m)^\s*#.*(?:\\\n.*)*$", lambda m: "\n" * m.group().count("\n"), text)
    scopes, head, begin, line = [], "", 1, 1
    for c in text:
        line += c == "\n"
        if c == "{":
            inside = any(function for function, _ in scopes)
            named = not inside and not SCOPE.search(head.strip()) and FUNCTION.search(head.strip())
            scopes.append((bool(named), begin))
        elif c == "}" and scopes:
            function, first = scopes.pop()
            if function:
                yield line - first + 1
        if c in "{};":
            head = ""
        else:
            if not head.strip() and not c.isspace():
                begin = line
            head += c


def rows_of(commit):
    files = files_of(commit)
    lines = {path: text.count("\n") for path, text in files.items()}
    by_module = collections.Counter()
    for path in filter(SOURCE.match, files):
        parts = path.split("/")
        by_module[parts[2] if parts[0] == "include" else parts[0] if parts[0] == "kernels" else parts[1]] += lines[path]
    product = {path: text for path, text in files.items() if SOURCE.match(path)}
    functions = [length for text in product.values() for length in lengths_of_functions(text)]
    words = "|".join(pattern for pattern, _ in prose.WORDS)
    yield "lines without tests", sum(lines[path] for path in product)
    yield "lines of tests", sum(lines[path] for path in files if TEST.match(path))
    for module in MODULES:
        yield f"lines of `{module}`", by_module[module]
    yield "longest function", max(functions)
    yield "functions of more than 80 lines", sum(length > 80 for length in functions)
    yield "longest file", max(lines[path] for path in product)
    yield "files of more than 400 lines", sum(lines[path] > 400 for path in product)
    yield "tests of more than 400 lines", sum(lines[path] > 400 for path in files if TEST.match(path))
    yield "uses of private words in code and comments", sum(len(re.findall(words, t, re.I)) for t in product.values())


def main(commits):
    columns = [list(rows_of(commit)) for commit in commits]
    print("| | " + " | ".join(commits) + " |\n| -- |" + " -- |" * len(commits))
    for row in zip(*columns, strict=True):
        print("| " + row[0][0] + " | " + " | ".join(f"{value:,}" for _, value in row) + " |")


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
