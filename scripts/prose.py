#!/usr/bin/env python3
"""Checks the prose of documentation: words that readers of the field stumble over, sentences of more than 25 words, and
sentences that begin with a bare "Of" or "By", or with a verb. Also finds links to pages and headings that do not exist.

    scripts/prose.py [FILE...]     checks these Markdown files, or all PAGES; exit code 1 if it finds something
    scripts/prose.py --program FILE    checks what `FILE help COMMAND` prints, for every command
    scripts/prose.py --self-test

Code blocks, inline code, HTML comments and link targets are not prose. Each table cell is checked on its own. A list of
inline code counts as one word.
"""

import contextlib
import io
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 25
HELP_COLUMN = 36  # as in src/config/render_text.cpp

PAGES = ("README.md", "docs/*.md", "examples/*/README.md", "tests/golden/*/README.md")
UNCHECKED: set[str] = set()  # pages that do not pass yet: take each out as soon as it does
HISTORY = {"docs/log.md"}  # dated entries, which are not rewritten: only their headings are checked

# What is found, and what to write instead.
WORDS = [
    (r"\bbeside\b", "next to, with, in addition to, compared with"),
    (r"\bbehind\b", "after, following"),
    (r"\b(?:goes|go|going|went) on\b", "continue, resume"),
    (r"\bso many\b", "that many, N"),
    (r"\bnobody\b", "no one; name the actor"),
    (r"\bwhoever\b", "anyone who, the user who"),
    (r"\btold\b", "name who tells; 'given', 'set'"),
    (r"\blies?\b|\blay in\b", "is, is in, is stored in"),
    (r"\bstands\b", "is, is written"),
    (r"\bserves\b", "is used for, applies to, handles"),
    (r"\bwhat is trained\b", "labels, loss tokens, trained parameters"),
    (r"\bpage-locked\b", "pinned"),
    (r"\bpassed over\b", "skipped, ignored"),
    (r"\b(?:made|makes|making) again\b", "recomputed"),
    (r"\blikeliest\b", "most likely, greedy"),
    (r"\bsigns? of life\b", "heartbeat"),
    (r"\brecorded pass(?:es)?\b", "CUDA graph"),
    (r"\bunder way\b", "in flight, running"),
    (r"\bwhole checkpoints?\b", "complete checkpoint"),
    (r"\bthin products?\b", "LoRA GEMMs"),
    (r"\bholds? of\b", "applies to"),
    (r"\brooms\b", "modules"),
    (r"\bthe door\b", "entry point"),
    (r"\bexpanded\b", "dequantized"),
    (r"\blearnt\b", "learned"),
    (r"(?<!\bby )\bmistakes?\b", "error, bug"),
    (r"\bstrangers?\b", "unauthenticated peers"),
    (r"\bsharers?\b", "data-parallel group"),
    (r"\bthrift\w*\b", "full recompute"),
    (r"\bsingly\b", "as decode rows"),
    (r"\bitinerar\w+\b", "schedule"),
    (r"\bheld up\b", "delayed"),
    (r"\bput off\b", "preempted, delayed"),
    (r"\bin turns\b", "alternately"),
    (r"\bin common\b", "shared"),
    (r"\bfor want of\b", "without, out of"),
    (r"\b(?:left|leaves?|leaving) out\b", "omitted, dropped"),
    (r"\bgo(?:es)? with\b", "works with"),
    (r"\banew\b", "again"),
]
INVERTED = re.compile(r"(?:Also \w+|[A-Z]\w+ed)(?:, too,)? (?:is|are|was|were)\b")
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
            if INVERTED.match(sentence):
                yield f"{name}:{number}: '{' '.join(words[:3])}' precedes its subject: begin with the subject"


def anchors_of(text):
    """Of a page's headings, as GitHub names them, and those that it sets itself."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    named = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([^"]+)">', text))


def broken_links(file, text):
    for match in re.finditer(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)", text):
        page = file.parent / match[1] if match[1] else file
        if not page.exists() or (match[2] and match[2] not in anchors_of(page.read_text())):
            yield f"{file}:{text.count(chr(10), 0, match.start()) + 1}: no such page or heading: {match[0][2:-1]}"


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

    overview = help_on("--help-all")
    commands = re.findall(
        r"^  ([a-z][a-z-]*(?: [a-z]+)?)  +\S", overview.split("\nCommands\n")[1].split("\n\n")[0], re.M
    )
    assert len(commands) > 20, commands
    found = list(findings("help", paragraphs_of_help(overview)))
    found += findings("--help", paragraphs_of_help(help_on()))
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
        "A row that is left out was told so by mistake in the rooms.": 3,
        "Refused, too, is a run that was changed. Also read are lists.": 2,
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
        "A named type is refused. Weighted sums are fine.",
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
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.md"
        for text, code in {
            '# A `b`: c, d\n\n[A](#a-b-c-d), [B](page.md#b), [C](http://c.d#e) <a id="b"></a>': 0,
            "It lies there.": 1,
            long: 1,
            "[A](#a)": 1,
            "# A\n\n[B](page.md#b)": 1,
            "[C](other.md)": 1,
        }.items():
            page.write_text(text)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                assert main([str(page)]) == code, (text, printed.getvalue())


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    if arguments[:1] == ["--program"]:
        found = findings_of_program(arguments[1])
        print("\n".join(found))
        return 1 if found else 0
    found = []
    for file in map(pathlib.Path, arguments or sorted(page for pages in PAGES for page in ROOT.glob(pages))):
        page, text = "" if arguments else file.relative_to(ROOT).as_posix(), file.read_text()
        if page in HISTORY:
            text = re.sub(r"^(?!#).*$", "", text, flags=re.M)
        in_page = list(findings(file, text)) + list(broken_links(file, text))
        if page in UNCHECKED:
            in_page = [] if in_page else [f"{file} passes: take it out of UNCHECKED in {__file__}"]
        found += in_page
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
