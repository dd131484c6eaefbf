#!/usr/bin/env python3
"""Makes tests/golden/rl/rewards.json: what TRL's reward functions say of made-up completions.

    make_reward_golden.py FOLDER

FOLDER holds the package trl of TRL 1.16.0 (`pip download --no-deps trl==1.16.0`, unpacked). Only its files of rewards
are loaded, which need nothing else. The cosine reward gets its verdicts from here, in math-verify's place.
"""

import importlib.util
import json
import random
import sys
import types
from pathlib import Path


def load(folder, name):
    spec = importlib.util.spec_from_file_location(f"trl.rewards.{name}", folder / "trl" / "rewards" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def id_lists(draw):
    lists = [[], [5], [5, 5], [1, 2, 3], [7] * 12, [1, 2, 3, 4] * 3]
    lists += [[draw.randrange(draw.choice([2, 4, 50])) for _ in range(draw.randrange(1, 40))] for _ in range(24)]
    return lists


TEXTS = [
    "<think>\nThis is my reasoning.\n</think>\nThis is my answer.",
    "<think>\nThis is my reasoning.\nThis is my answer.",
    "<think></think>",
    "<think>a</think>b</think>",
    "<think>a<think>b</think>c",
    "<think>a</think>b<think>c</think>",
    " <think>a</think>b",
    "\n<think>a</think>b",
    "a\n<think>b</think>",
    "</think><think>",
    "<think>",
    "<think",
    "",
    "<THINK>a</THINK>",
    "<think>日本</think>é",
    "<think>a</think>\n\n\n",
]


def main(folder):
    for name in ("trl", "trl.rewards"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["trl.import_utils"] = types.SimpleNamespace(is_math_verify_available=lambda: False)
    accuracy, formats, others = (load(folder, name) for name in ("accuracy_rewards", "format_rewards", "other_rewards"))
    draw = random.Random(7)
    ids = id_lists(draw)
    cases = []

    def add(entry, ids=ids, texts=None, answers=None, expected=None):
        rows = {"ids": ids} if texts is None else {"texts": texts}
        cases.append({"entry": entry, **rows, **({"answers": answers} if answers else {}), "expected": expected})

    add("think_format", texts=TEXTS, expected=formats.think_format_reward([[{"content": text}] for text in TEXTS]))
    for size, penalty in ((3, -1.0), (2, -0.5), (1, -2.0), (5, 0.0)):
        reward = others.get_repetition_penalty_reward(ngram_size=size, max_penalty=penalty)
        add({"repetition": {"ngram_size": size, "max_penalty": penalty}}, expected=reward(ids))
    for longest, cache in ((20, 8), (30, 30), (12, 1), (12, 0)):
        reward = others.get_soft_overlong_punishment(longest, cache)
        add({"overlong": {"max_length": longest, "cache": cache}}, expected=reward(ids))
    verdicts = [draw.choice([1.0, 0.0, None]) for _ in ids]
    accuracy.accuracy_reward = lambda completions, solution: verdicts
    for options in ({}, {"min_value_wrong": -2.0, "max_value_wrong": 0.0, "min_value_correct": 0.1}):
        reward = accuracy.get_cosine_scaled_reward(max_len=25, **options)
        answers = [None if verdict is None else "yes" if verdict else "no" for verdict in verdicts]
        entry = {"cosine": {"max_length": 25, "exact": {}, **options}}
        add(entry, answers=answers, expected=reward([], [], ids))
    text = json.dumps(cases, ensure_ascii=False).replace('{"entry"', '\n{"entry"')
    (Path(__file__).parent / "rl" / "rewards.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
