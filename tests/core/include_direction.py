#!/usr/bin/env python3
"""Checks the #include lines of the project against the order of its modules.

    include_direction.py ROOT          checks the tree; prints each broken rule, exit status 1 when there is one
    include_direction.py --self-test   checks that every rule is able to fail

The rules:
  order    a module includes only modules that stand to its left: core | spec, hub, http, grammar, images | config, formats, tokenizer, grpc,
           ops | openai | import, engine_api, memory, comm, data, report, planner | weights, reward | model |
           objective, generate | placement | session | serve, rollouts | train | commands, bench | engine | app;
           kernels stand beside spec, and
           only ops includes them
  private  headers under src/MODULE/ are for that module alone (tests may use them)
  torch    LibTorch's headers stand only in ops, memory, comm, weights, model, objective, generate, placement,
           session, serve, rollouts, train, commands, bench and engine; never in
           kernels/
  json     no public header includes nlohmann/json.hpp (it costs a second a file; json_fwd.hpp will do), but for the
           option table's unsloth/config/json.h, which no other module's public header includes
  fmt      spdlog and fmt stand only in src/core/log.cpp, for LibTorch brings another fmt
"""

import re
import sys
import tempfile
from pathlib import Path

RANK = {
    "core": 0,
    "spec": 1,
    "kernels": 1.5,
    "config": 2,
    "hub": 1,
    "http": 1,
    "grpc": 2,
    "grammar": 1,
    "images": 1,
    "import": 3,
    "engine_api": 3,
    "formats": 2,
    "tokenizer": 2,
    "ops": 2,
    "memory": 3,
    "comm": 3,
    "data": 3,
    "report": 3,
    "planner": 3,
    "weights": 4,
    "reward": 4,
    "openai": 2.5,
    "model": 5,
    "objective": 6,
    "generate": 6,
    "placement": 6.5,
    "session": 7,
    "serve": 7.5,
    "rollouts": 7.5,
    "train": 8,
    "commands": 9,
    "bench": 9,
    "engine": 10,
    "app": 11,
}
WITH_TORCH = {
    "ops",
    "memory",
    "comm",
    "weights",
    "model",
    "objective",
    "generate",
    "placement",
    "session",
    "serve",
    "rollouts",
    "train",
    "commands",
    "bench",
    "engine",
}
OPTION_JSON = "include/unsloth/config/json.h"
KERNEL_USERS = {"kernels", "ops"}
TORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
FMT = re.compile(r"(spdlog|fmt)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cuh", ".cpp", ".cu"}


def module_of_file(path):
    """('ops', True) for include/unsloth/ops/gemm.h, ('ops', False) for src/ops/gemm.cpp; None outside the modules."""
    parts = path.parts
    if parts[0] == "kernels":
        return "kernels", False
    if parts[0] == "src" and len(parts) > 2:
        return parts[1], False
    if parts[:2] == ("include", "unsloth") and len(parts) > 3:
        return parts[2], True
    return None


def module_of_include(name):
    """The module that an include names and whether it is a private header of it; None for a foreign header."""
    parts = name.split("/")
    if parts[0] == "unsloth" and len(parts) > 2:
        return parts[1], False
    if parts[0] in RANK and len(parts) > 1:
        return parts[0], parts[0] != "kernels"
    return None


def broken_rule(path, name):
    module, public = module_of_file(path)
    if module not in RANK:
        return f"order: {module} is no module that tests/core/include_direction.py knows; give it a place in the order"
    if TORCH.match(name) and module not in WITH_TORCH:
        return f"torch: {module} is free of LibTorch"
    if FMT.match(name) and path.as_posix() != "src/core/log.cpp":
        return "fmt: only src/core/log.cpp may include spdlog or fmt"
    if public and name == "unsloth/config/json.h" and module != "config":
        return "json: only config's public headers include the option table's JSON"
    if public and name == "nlohmann/json.hpp" and path.as_posix() != OPTION_JSON:
        return "json: a public header includes nlohmann/json_fwd.hpp at most"
    target = module_of_include(name)
    if target is None:
        return None
    used, private = target
    if used not in RANK:
        return f"order: unknown module {used}"
    if used == module:
        return None
    if private:
        return f"private: src/{used}/ is {used}'s own"
    if used == "kernels" and module not in KERNEL_USERS:
        return "order: only ops includes kernels/"
    if RANK[used] >= RANK[module]:
        return f"order: {module} may not use {used}, which does not stand to its left"
    return None


def check(root):
    """(lines about broken rules, number of files read)."""
    problems, files = [], 0
    for folder in ("include", "src", "kernels"):
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root)
            if file.suffix not in SUFFIXES or module_of_file(path) is None:
                continue
            files += 1
            text = file.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                problem = broken_rule(path, match[2])
                if problem:
                    line = text.count("\n", 0, match.start(2)) + 1
                    problems.append(f"{path}:{line}: includes {match[2]}: {problem}")
    return problems, files


def self_test():
    allowed = [
        ("src/ops/a.cpp", "kernels/a.h"),
        ("src/data/a.cpp", "unsloth/config/a.h"),
        ("src/ops/a.cpp", "ATen/ATen.h"),
        ("src/core/log.cpp", "spdlog/spdlog.h"),
        ("kernels/a.cu", "unsloth/spec/a.h"),
        ("src/train/a.cpp", "train/b.h"),
        ("include/unsloth/data/a.h", "nlohmann/json_fwd.hpp"),
        ("include/unsloth/config/json.h", "nlohmann/json.hpp"),
        ("include/unsloth/config/option.h", "unsloth/config/json.h"),
        ("src/import/a.cpp", "unsloth/config/json.h"),
        ("src/train/a.cpp", "unsloth/engine_api/a.h"),
        ("src/app/a.cpp", "nlohmann/json.hpp"),
    ]
    forbidden = [
        ("src/core/a.cpp", "unsloth/spec/a.h", "order"),
        ("src/formats/a.cpp", "unsloth/config/a.h", "order"),
        ("src/memory/a.cpp", "unsloth/data/a.h", "order"),
        ("src/model/a.cpp", "kernels/a.h", "order"),
        ("kernels/a.cu", "unsloth/ops/a.h", "order"),
        ("src/new/a.cpp", "unsloth/core/a.h", "order"),
        ("src/train/a.cpp", "unsloth/bench/a.h", "order"),
        ("src/train/a.cpp", "model/b.h", "private"),
        ("src/data/a.cpp", "c10/core/Device.h", "torch"),
        ("kernels/a.cuh", "ATen/ATen.h", "torch"),
        ("kernels/a.cpp", "torch/torch.h", "torch"),
        ("include/unsloth/app/a.h", "torch/all.h", "torch"),
        ("include/unsloth/data/a.h", "nlohmann/json.hpp", "json"),
        ("include/unsloth/config/option.h", "nlohmann/json.hpp", "json"),
        ("include/unsloth/import/a.h", "unsloth/config/json.h", "json"),
        ("src/config/a.cpp", "unsloth/import/a.h", "order"),
        ("src/config/a.cpp", "unsloth/engine_api/a.h", "order"),
        ("src/train/a.cpp", "fmt/format.h", "fmt"),
    ]
    failures = 0
    for path, name, rule in [(*case, None) for case in allowed] + forbidden:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(f"// first line\n #  include <{name}>\n", encoding="utf-8")
            problems, files = check(Path(folder))
        expected = [] if rule is None else [f"{path}:2: includes {name}: {rule}:"]
        if files != 1 or len(problems) != len(expected) or not all(p.startswith(e) for p, e in zip(problems, expected)):
            print(f"self-test: {path} with {name}: expected {rule or 'no problem'}, found {problems or 'no problem'}")
            failures += 1
    print(f"self-test: {len(allowed) + len(forbidden)} cases, {failures} failures")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    problems, files = check(Path(arguments[0]))
    print("\n".join([*problems, f"{files} files, {len(problems)} broken rules"]))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
