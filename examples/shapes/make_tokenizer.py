#!/usr/bin/env python3
"""Writes base/tokenizer.json of the shapes example: byte-level BPE in which each of the example's words is a token.

    python3 examples/shapes/make_tokenizer.py [--out FOLDER]

Standard library only; the same bytes on every run. Only needed when the texts change: the result is in the repository.
"""

import argparse
import collections
import json
import re
from pathlib import Path

from make_rows import COLOURS, NUMBERS, QUESTIONS, SHAPES

HERE = Path(__file__).resolve().parent
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")  # fmt: skip
# Qwen's pre-tokenizer; in these texts, a word has the space before it.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_letters():
    """The letter that byte-level BPE writes for each byte (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def words():
    texts = [*QUESTIONS.values(), *COLOURS, *SHAPES, *NUMBERS, "user", "assistant"]
    found = {word for text in texts for word in re.findall(r" ?[A-Za-z]+", text)}
    return sorted(word.replace(" ", byte_letters()[32]) for word in found)


def train(words):
    """Merges of BPE (Sennrich et al., 2016), until each word is one token."""
    split = [list(word) for word in words]
    merges = []
    while any(len(parts) > 1 for parts in split):
        pairs = collections.Counter(pair for parts in split for pair in zip(parts, parts[1:]))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(list(best))
        for parts in split:
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def tokenizer():
    merges = train(words())
    entries = [*SPECIAL, *sorted(byte_letters()), *dict.fromkeys("".join(pair) for pair in merges)]
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text} | flags for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(entries)},
            "merges": merges,
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "base", help="folder to write into")
    folder = parser.parse_args().out
    made = tokenizer()
    (folder / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{folder / 'tokenizer.json'}: {len(made['model']['vocab'])} tokens")


if __name__ == "__main__":
    main()
