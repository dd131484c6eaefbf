#!/usr/bin/env python3
"""Checks the prose of documentation: words that readers of the field stumble over, sentences of more than 25 words, and
sentences that begin with a bare "Of" or "By".

    scripts/prose.py [FILE...]     checks these Markdown files, or PASSING; exit code 1 if it finds something
    scripts/prose.py --self-test

Code blocks, inline code, HTML comments and link targets are not prose. Each table cell is checked on its own.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 25

# Pages that pass. docs/log.md stays out: it is dated history, and docs/options.md is generated.
PASSING = [
    "README.md",
    "docs/README.md",
    "docs/architecture.md",
    "docs/benchmarks.md",
    "docs/configurations.md",
    "docs/development.md",
    "docs/first-day.md",
    "docs/hyperparameters.md",
    "docs/memory.md",
    "docs/moving.md",
    "docs/parallel.md",
    "docs/reliability.md",
    "docs/security.md",
    "docs/troubleshooting.md",
]

# What is found, and what to write instead.
WORDS = [
    (r"\bbeside\b", "next to, with, in addition to, compared with"),
    (r"\bbehind\b", "after, following"),
    (r"\b(?:goes|go|going|went) on\b", "continue, resume"),
    (r"\bso many\b", "that many, N"),
    (r"\bnobody\b", "no one; name the actor"),
    (r"\bwhoever\b", "anyone who, the user who"),
    (r"\b(?:is|are|was|were) told\b", "name who tells; 'given', 'set'"),
    (r"\blies?\b|\blay in\b", "is, is in, is stored in"),
    (r"\bstands\b", "is, is written"),
    (r"\bserves\b", "is used for, applies to, handles"),
    (r"\bwhat is trained\b", "labels, loss tokens, trained parameters"),
    (r"\bpage-locked\b", "pinned"),
    (r"\bpassed over\b", "skipped, ignored"),
    (r"\bmade again\b", "recomputed"),
    (r"\blikeliest\b", "most likely, greedy"),
    (r"\bsigns? of life\b", "heartbeat"),
    (r"\brecorded pass(?:es)?\b", "CUDA graph"),
    (r"\bunder way\b", "in flight, running"),
    (r"\bwhole checkpoints?\b", "complete checkpoint"),
    (r"\bthin products?\b", "LoRA GEMMs"),
    (r"\bholds? of\b", "applies to"),
]
BARE_START = re.compile(r"(?:Of|By)\b(?! default\b| hand\b)")


def prose_of(text):
    """(line, paragraph) of each heading, paragraph, list item and table cell; X stands for inline code."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    paragraphs, current, start, fenced = [], [], 0, False

    def close():
        if current:
            paragraphs.append((start, " ".join(current)))
            current.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
            close()
            continue
        if fenced:
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or re.match(r"([-*+]|\d+\.)\s", stripped):
            close()
        if stripped.startswith("|"):
            close()
            paragraphs.extend((number, cell) for cell in re.split(r"(?<!\\)\|", stripped) if cell.strip(" -:"))
            continue
        if stripped:
            if not current:
                start = number
            current.append(re.sub(r"^([-*+]|\d+\.|#+)\s+", "", stripped))
        if stripped.startswith("#"):
            close()
    close()
    for number, paragraph in paragraphs:
        paragraph = re.sub(r"`[^`]*`", "X", paragraph)
        paragraph = re.sub(r"\]\([^)]*\)", "]", paragraph)
        yield number, paragraph


def sentences_of(paragraph):
    """Also the parts of a sentence between semicolons, and after a colon before a capital letter or code."""
    paragraph = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", paragraph)
    return re.split(r"(?<=[.!?])[\"')\]*_]*\s+|:[*_]*\s+(?=[A-Z\"'(\[*]|X\b)|;\s+", paragraph)


def findings(name, text):
    for number, paragraph in prose_of(text):
        for pattern, instead in WORDS:
            for match in re.finditer(pattern, paragraph, flags=re.I):
                yield f"{name}:{number}: '{match.group()}': {instead}"
        for sentence in sentences_of(paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST:
                yield f"{name}:{number}: {len(words)} words in a sentence: {' '.join(words[:8])} ..."
            if BARE_START.match(sentence):
                yield f"{name}:{number}: a sentence begins with a bare '{words[0]}': begin with its subject"


def self_test():
    word, long = "word " * 13, "word " * 26
    found = {
        "It goes on beside it.": 2,
        long + "end.": 1,
        "- " + long: 1,
        "| nobody | fine | X lies |": 2,
        "Of these, one. By rank, two.": 2,
        "a\nbehind\n\n    goes\n    on": 2,
    }
    fine = [
        "`beside` is code, [so is this](beside.md).",
        "```\nbeside\n```\n<!--\nbeside\n-->",
        word + ". " + word,
        word + "; " + word,
        "**" + word + ".** " + word,
        word + ". lm_head " + word,
        "e.g. " + word + ": `code` " + word,
        "By default it is, and a pass over the layers is.",
        "| " + word + " | " + word + " |",
        "- " + word + "\n- " + word,
    ]
    for text, count in found.items():
        assert len(list(findings("self-test", text))) == count, (text, list(findings("self-test", text)))
    for text in fine:
        assert not list(findings("self-test", text)), (text, list(findings("self-test", text)))


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    files = [pathlib.Path(f) for f in arguments] or [ROOT / page for page in PASSING]
    found = [line for file in files for line in findings(file, file.read_text())]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
