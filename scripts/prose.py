#!/usr/bin/env python3
"""Checks the prose of documentation: words that readers of the field stumble over, sentences of more than 25 words, and
sentences that begin with a bare "Of" or "By".

    scripts/prose.py [FILE...]     checks these Markdown files, or PASSING; exit code 1 if it finds something
    scripts/prose.py --program FILE    checks what `FILE help COMMAND` prints, for every command
    scripts/prose.py --self-test

Code blocks, inline code, HTML comments and link targets are not prose. Each table cell is checked on its own. A list of
inline code counts as one word.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 25
HELP_COLUMN = 36  # as in src/config/render_text.cpp

# Pages that pass. docs/log.md is dated history.
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
    "docs/options.md",
    "docs/parallel.md",
    "docs/rewards.md",
    "docs/serving.md",
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
        paragraph = re.sub(r"X(?:, X)+", "X", paragraph)
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


def paragraphs_of_help(text):
    """The texts of the options, without names and line breaks, and all other lines, as paragraphs of Markdown."""
    paragraphs = []
    for line in text.split("\n"):
        entry = re.match(r"  (?:--\S+|[A-Z][A-Z|…]*)(?: \S+)?(?:  +(.*))?$", line)
        if line.startswith(" " * HELP_COLUMN) and paragraphs:
            paragraphs[-1] += " " + line.strip()
        elif entry:
            paragraphs.append(entry[1] or "")
        else:
            paragraphs.append(line.strip())
    return "\n\n".join(re.sub(r"[<>|`]|\(default: [^)]*\)", " ", paragraph) for paragraph in paragraphs)


def findings_of_program(program):
    def help_on(*topic):
        return subprocess.run([program, "help", *topic], check=True, capture_output=True, text=True).stdout

    overview = help_on()
    commands = re.findall(
        r"^  ([a-z][a-z-]*(?: [a-z]+)?)  +\S", overview.split("\nCommands\n")[1].split("\n\n")[0], re.M
    )
    assert len(commands) > 20, commands
    found = list(findings("help", paragraphs_of_help(overview)))
    for command in commands:
        if command != "help":
            found += findings(f"help {command}", paragraphs_of_help(help_on(*command.split(" "))))
    return found


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
        "`a`, `b`, " * 30 + "`c`.",
    ]
    help_text = (
        "Usage: it lies\n  --a.b N       "
        + " " * 20
        + "Stands\n"
        + " " * HELP_COLUMN
        + "behind it.\n  --behind    "
        + word
    )
    assert len(list(findings("self-test", paragraphs_of_help(help_text)))) == 3
    for text, count in found.items():
        assert len(list(findings("self-test", text))) == count, (text, list(findings("self-test", text)))
    for text in fine:
        assert not list(findings("self-test", text)), (text, list(findings("self-test", text)))


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if arguments[:1] == ["--program"]:
        found = findings_of_program(arguments[1])
        print("\n".join(found))
        return 1 if found else 0
    files = [pathlib.Path(f) for f in arguments] or [ROOT / page for page in PASSING]
    found = [line for file in files for line in findings(file, file.read_text())]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
