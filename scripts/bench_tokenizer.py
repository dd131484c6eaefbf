#!/usr/bin/env python3
"""Encoding speed of unsloth-train beside Hugging Face's `tokenizers` (Rust), one thread each, in one run:

    pip install tokenizers==0.23.3
    scripts/bench_tokenizer.py --binary build/release/unsloth-train --tokenizer FOLDER TEXTS.jsonl [--rounds 5]

TEXTS.jsonl holds rows of {"text"} or {"question", "answer"} (joined by a line feed). Both programs time the encoding alone, within
their own process, in turns; the figure is the best round of each. Then words without a place to cut, of n and 4 n bytes: a ratio of
times near 4 is linear. --pathological-hf times the reference on them too.
"""

import argparse
import json
import os
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402  the variables must be set before


def ours(arguments, texts):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    command = [
        arguments.binary,
        "tokenize",
        "--tokenizer",
        arguments.tokenizer,
        "--no_special",
        "--measure",
        "1",
        "--log_level",
        "error",
    ]
    result = json.loads(subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout)
    return result["seconds"][0], result["tokens"]


def theirs(reference, texts):
    start = time.perf_counter()
    encodings = reference.encode_batch_fast(texts, add_special_tokens=False)
    seconds = time.perf_counter() - start
    return seconds, sum(len(encoding.ids) for encoding in encodings)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts")
    parser.add_argument("--binary", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pathological-hf", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in open(arguments.texts)]
    texts = [row["text"] if "text" in row else row["question"] + "\n" + row["answer"] for row in rows]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    reference = Tokenizer.from_file(arguments.tokenizer + "/tokenizer.json")
    rounds = [(ours(arguments, texts), theirs(reference, texts)) for _ in range(arguments.rounds)]
    (a, tokens), (b, expected) = min(r[0] for r in rounds), min(r[1] for r in rounds)
    assert tokens == expected, (tokens, expected)
    print(f"{len(texts)} texts, {megabytes:.2f} MB, {tokens} tokens")
    print(
        f"unsloth-train {a:.3f} s ({megabytes / a:.1f} MB/s, {tokens / a / 1e6:.2f} M tokens/s), tokenizers {b:.3f} s ({megabytes / b:.1f} MB/s): {b / a:.1f} times"
    )
    for name, unit in (("a", "a"), ("spaces", " "), ("CJK", "\u4e2d\u6587"), ("line feeds", "\n"), ("!", "!")):
        times = []
        for size in (250_000, 1_000_000):
            text = unit * (size // len(unit.encode()))
            times.append(min(ours(arguments, [text])[0] for _ in range(3)))
        line = f"{name}: 0.25 MB {times[0] * 1e3:.1f} ms, 1 MB {times[1] * 1e3:.1f} ms, ratio {times[1] / times[0]:.1f}"
        if arguments.pathological_hf:
            line += f"; tokenizers 1 MB {theirs(reference, [text])[0] * 1e3:.1f} ms"
        print(line)


main()
