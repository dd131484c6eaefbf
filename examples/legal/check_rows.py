#!/usr/bin/env python3
"""Checks the legal example's data; exits with 1 and names what is wrong.

    python3 examples/legal/check_rows.py

Standard library only. Checks counts and fields, that the generator reproduces the files byte for byte, exact and near
duplicates, that nothing of a held-out passage is in train.jsonl or the corpus, that numbers and parties of an answer
stand in its passage, and that every row fits max_seq_length of quickstart.json. Prints token-length statistics.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import make_corpus
import make_rows
from library import alpaca_prompt, jaccard, words_of

HERE = Path(__file__).resolve().parent
FIELDS = ("instruction", "input", "output", "system")
LEAST_TRAIN, LEAST_HELD_OUT = 500, 60
PASSAGE_SHINGLE = 8  # a held-out passage may share no run of so many words with train or corpus
ANSWER_SHINGLE = 12  # the same for answers, which share set phrases such as 'It does not say who …'
LEAST_ANSWER = 6  # answers shorter than this (headings) are not searched for
HELD_OUT_ROW_JACCARD = 0.6  # a held-out row this close to a training row is a leak
CORPUS_BYTES = (600_000, 1_300_000)
# Tasks whose answers may contain numbers that are not in the passage: worked-out sums and changed terms.
FREE_NUMBERS = {"favour", "reckon"}

failures = []


def expect(condition, message):
    if not condition:
        failures.append(message)


def read_jsonl(name):
    rows = []
    for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        expect(tuple(row) == FIELDS, f"{name}:{number}: fields are {tuple(row)}")
        expect(all(isinstance(value, str) for value in row.values()), f"{name}:{number}: a field is no string")
        expect(row["instruction"] and row["input"] and row["output"], f"{name}:{number}: an empty field")
        expect(line.isascii(), f"{name}:{number}: not plain ASCII")
        words = sum(len(value.split()) for value in row.values())
        low, high = make_rows.WORD_LIMITS
        expect(low <= words <= high, f"{name}:{number}: {words} words")
        rows.append(row)
    return rows


def check_generated():
    """The files are what the scripts write."""
    train, held = make_rows.make_rows()
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train.jsonl", train), ("heldout.jsonl", held)):
            path = Path(folder) / name
            make_rows.write_jsonl(path, rows, FIELDS)
            expect(path.read_bytes() == (HERE / name).read_bytes(), f"{name} differs from what make_rows.py writes")
    return train, held


def row_words(row):
    return set(words_of(" ".join((row["instruction"], row["input"], row["output"]))))


def check_duplicates(rows):
    bags = [row_words(row) for row in rows]
    closest = 0.0
    for i, first in enumerate(bags):
        for j in range(i):
            closeness = jaccard(first, bags[j])
            closest = max(closest, closeness)
            expect(closeness < make_rows.NEAR_DUPLICATE, f"rows {j} and {i} are near duplicates ({closeness:.2f})")
    exact = {(row["instruction"], row["input"], row["output"]) for row in rows}
    expect(len(exact) == len(rows), f"{len(rows) - len(exact)} exact duplicates")
    print(f"closest pair of rows: Jaccard {closest:.2f}")


def shingles(text, size):
    words = words_of(text)
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def check_leakage(train, held, corpus):
    bags = [row_words(row) for row in train]
    closest = max(jaccard(row_words(row), bag) for row in held for bag in bags)
    expect(closest < HELD_OUT_ROW_JACCARD, f"a held-out row is too close to a training row ({closest:.2f})")
    seen_texts = [text for row in train for text in (row["input"], row["output"])] + corpus
    sizes = {PASSAGE_SHINGLE} | {min(ANSWER_SHINGLE, len(words_of(row["output"]))) for row in held}
    seen = {size: set().union(*(shingles(text, size) for text in seen_texts)) for size in sizes if size >= LEAST_ANSWER}

    def expect_new(number, what, text, size):
        copied = shingles(text, size) & seen[size]
        expect(not copied, f"heldout row {number}: {what} '{' '.join(min(copied, default=()))}' is in train or corpus")

    for number, row in enumerate(held):
        expect_new(number, "passage", row["input"], PASSAGE_SHINGLE)
        size = min(ANSWER_SHINGLE, len(words_of(row["output"])))
        # The name and purpose of a clause type are the label itself; every other answer must be new too.
        if row["task"] not in ("classify", "mismatch") and size >= LEAST_ANSWER:
            expect_new(number, "answer", row["output"], size)
    print(f"closest held-out row to a training row: Jaccard {closest:.2f}")


def check_answers(rows):
    """Numbers and party names of an answer come from the question."""
    for row in rows:
        asked = row["instruction"] + "\n" + row["input"]
        expect("{" not in asked + row["output"], f"{row['key']} {row['task']}: an unfilled slot")
        if row["task"] not in FREE_NUMBERS and row["task"] != "define":
            for number in re.findall(r"\d[\d.,]*\d|\d", row["output"]):
                expect(
                    re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", asked)
                    or row["task"] == "compare"
                    and number in "12",
                    f"{row['key']} {row['task']}: {number} is not in the passage",
                )
        if row["task"] == "heading":
            continue  # in title case, any noun looks like a party
        for party in re.findall(r"\b[Tt]he ((?:[A-Z][\w-]+ ?)+)", row["output"]):
            expect(party.strip() in asked, f"{row['key']} {row['task']}: '{party.strip()}' is not in the passage")


class Tokenizer:
    """Counts tokens as base/tokenizer.json does, for ASCII text."""

    # The file's own split pattern with the ASCII meaning of \p{L} and \p{N}.
    SPLIT = re.compile(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def __init__(self, path):
        data = json.loads(path.read_text(encoding="utf-8"))
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(data["model"]["merges"])}
        self.vocab = data["model"]["vocab"]
        self.added = {token["content"] for token in data["added_tokens"]}
        self.cache = {}

    def _pieces(self, word):
        # Byte-level alphabet: space and newline are the only ASCII characters here that are written as others.
        parts = list(word.replace(" ", "\u0120").replace("\n", "\u010a"))
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(self.ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts

    def count(self, text):
        total = 0
        for word in self.SPLIT.findall(text):
            if word not in self.cache:
                parts = self._pieces(word)
                assert all(part in self.vocab for part in parts), word
                self.cache[word] = len(parts)
            total += self.cache[word]
        return total


def statistics(name, lengths):
    ordered = sorted(lengths)
    print(
        f"{name}: {len(ordered)} rows, {sum(ordered):,} tokens, each {ordered[0]} to {ordered[-1]}, "
        f"median {ordered[len(ordered) // 2]}"
    )


def check_lengths(train, held, corpus):
    tokenizer = Tokenizer(HERE / "base" / "tokenizer.json")
    expect(tokenizer.added == {"<|begin|>", "<|end|>"}, f"special tokens are {tokenizer.added}")
    config = json.loads((HERE / "base" / "config.json").read_text(encoding="utf-8"))
    expect(config["vocab_size"] == len(tokenizer.vocab), "config.json and tokenizer.json differ in vocabulary size")
    special = 2  # begin and end
    for name, rows in (("train.jsonl", train), ("heldout.jsonl", held)):
        lengths = []
        for row in rows:
            lengths.append(special + tokenizer.count(alpaca_prompt(row) + row["output"]))
        statistics(name, lengths)
        limit = json.loads((HERE / "quickstart.json").read_text(encoding="utf-8"))["model"]["max_seq_length"]
        expect(max(lengths) <= limit, f"{name}: a row has {max(lengths)} tokens, above max_seq_length {limit}")
    lengths = [special + tokenizer.count(text) for text in corpus]
    statistics("corpus", lengths)
    limit = json.loads((HERE / "base_full.json").read_text(encoding="utf-8"))["model"]["max_seq_length"]
    expect(max(lengths) <= limit, f"corpus: a text has {max(lengths)} tokens, above max_seq_length {limit}")


def main():
    written_train, written_held = read_jsonl("train.jsonl"), read_jsonl("heldout.jsonl")
    expect(len(written_train) >= LEAST_TRAIN, f"only {len(written_train)} training rows")
    expect(len(written_held) >= LEAST_HELD_OUT, f"only {len(written_held)} held-out rows")
    train, held = check_generated()
    corpus = make_corpus.make_corpus()
    size = sum(len(text.encode()) for text in corpus)
    expect(CORPUS_BYTES[0] <= size <= CORPUS_BYTES[1], f"the corpus has {size} bytes")
    check_duplicates(train + held)
    check_leakage(train, held, corpus)
    check_answers(train + held)
    check_lengths(train, held, corpus)
    families = {row["key"].split("/")[0] for row in train if row["task"] == "classify"}
    expect(len(families) >= 25, f"only {len(families)} clause families")
    print(f"{len(families)} clause families, {len({row['task'] for row in train})} tasks, corpus {size:,} bytes")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
