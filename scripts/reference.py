#!/usr/bin/env python3
"""Writes the generated pages of docs/reference: a page for each section of options, a page for each command, error ids.

scripts/reference.py [PROGRAM]            writes the pages (PROGRAM: build/release/unsloth-train)
scripts/reference.py PROGRAM --check      exits with 1 if a page differs from what the program prints
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
FOLDERS = ("options", "commands")  # of generated pages only
MARK = "<!-- from unsloth-train config --markdown; scripts/reference.py writes this page -->\n\n"
BEGIN, END = "<!-- error ids, from unsloth-train explain --markdown -->\n\n", "\n<!-- end of the error ids -->"
NAMES = {"Resuming": "resuming", "Fields of transformers, TRL and PEFT": "peers"}


def printed(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def parts_of(text):
    """The text before the first heading of the second level, and {heading: text under it}."""
    head, *rest = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return head, dict(zip(rest[::2], rest[1::2]))


def list_of(entries):
    return "".join(f"- [{title}]({name}.md): {about}\n" for name, title, about in entries)


def first_sentence(body):
    lines = [line for line in body.split("\n") if line and not line.startswith("<")]
    return re.match(r".*?[.;:](?=\s|$)|.*", lines[0])[0].rstrip(".;:") + "."


def option_pages(text):
    head, sections = parts_of(text)
    pages, entries = {}, []
    for heading, body in sections.items():
        name = NAMES.get(heading) or re.search(r"`(\w+)`", heading)[1]
        pages[f"options/{name}.md"] = f"{MARK}# {heading}\n\n{body.strip()}\n"
        entries.append((name, heading, first_sentence(body)))
    pages["options/README.md"] = f"{MARK}{head.strip()}\n\n{list_of(entries)}"
    return pages


def command_pages(text):
    head, commands = parts_of(text)
    pages, entries = {}, []
    for usage, body in commands.items():
        usage = usage.strip("`")
        words = re.match(r"unsloth-train ([a-z-]+(?: (?:augment|grpo|gguf)\b)?)", usage)[1]
        name = words.replace(" ", "-")
        pages[f"commands/{name}.md"] = f"{MARK}# `{words}`\n\n```text\n{usage}\n```\n\n{body.strip()}\n"
        entries.append((name, f"`{words}`", first_sentence(body)))
    pages["commands/README.md"] = f"{MARK}{head.strip()}\n\n{list_of(entries)}"
    return pages


def errors_page(table):
    page = (REFERENCE / "errors.md").read_text()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + table + page[end:]


def main(arguments):
    program = pathlib.Path(arguments[0] if arguments else ROOT / "build" / "release" / "unsloth-train").resolve()
    options, commands = printed(program, "config", "--markdown").split("\n# Commands\n")
    pages = option_pages(options) | command_pages("# Commands\n" + commands)
    pages["errors.md"] = errors_page(printed(program, "explain", "--markdown"))
    old = {f"{folder}/{page.name}" for folder in FOLDERS for page in (REFERENCE / folder).glob("*.md")}
    changed = sorted(old - pages.keys())
    for name, text in pages.items():
        page = REFERENCE / name
        if not page.exists() or page.read_text() != text:
            changed.append(name)
    if "--check" in arguments:
        if changed:
            sys.exit(f"docs/reference: {', '.join(changed)}: not what the program prints. Run: scripts/reference.py")
        return
    for name in old - pages.keys():
        (REFERENCE / name).unlink()
    for name in set(changed) & pages.keys():
        (REFERENCE / name).parent.mkdir(exist_ok=True)
        (REFERENCE / name).write_text(pages[name])


if __name__ == "__main__":
    main(sys.argv[1:])
