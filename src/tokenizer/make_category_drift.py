"""Prints category_drift.h. Run by hand when the reference moves to another Unicode version:

    pip install unicodedata2==16.0.0 && python make_category_drift.py categories-14.txt categories-18.txt ...

Hugging Face tokenizers 0.23 (Oniguruma 6.9.10, the regex crate) know Unicode 16.0; PCRE2 and ICU of the systems that we
build on know 14.0 (Debian 12's PCRE2) to 18.0. The files are dumps of the general categories of those versions, made by
    python -c "import unicodedata2 as u; print(u.unidata_version, *(u.category(chr(c)) for c in range(0x110000)))"
"""

import pathlib
import sys

import unicodedata2 as ucd

assert ucd.unidata_version.startswith("16."), ucd.unidata_version
SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEADER = pathlib.Path(__file__).with_name("category_drift.h")


def drift(dumps):
    """Code points whose category differs between versions, with a stand-in that has the category of 16.0 in all."""
    versions = [open(name).read().split()[1:] for name in dumps] + [[ucd.category(chr(c)) for c in range(0x110000)]]
    stand_ins = {}
    for c in SCALARS:
        category, size = versions[-1][c], len(chr(c).encode())
        decomposes = ucd.normalize("NFKC", chr(c)) != chr(c) or chr(c).lower() != chr(c) or chr(c).upper() != chr(c)
        stable = len({v[c] for v in versions}) == 1
        if stable and (not decomposes or category in ("Lu", "Ll", "Lt")):
            stand_ins.setdefault((category, size), c)
    stand_ins[("Lo", 3)], stand_ins[("Lo", 4)] = 0x0E01, 0x10000
    changed = {}
    for c in SCALARS:  # what 16.0 does not assign is told by ICU's ages
        category = versions[-1][c]
        if category != "Cn" and len({v[c] for v in versions}) > 1:
            han = category == "Lo" and c >= 0x20000  # a script that patterns of tokenizers ask for
            changed[c] = 0x20000 if han else stand_ins[category, len(chr(c).encode())]
    changed[0x1B132], changed[0x1B155] = 0x1B150, 0x1B164  # Hiragana, Katakana
    changed[0x180E] = 0x200B  # a format character that PCRE2 counts as white space, Unicode does not
    return changed


def main():
    runs = []  # first, last, stand-in
    for c, stand_in in sorted(drift(sys.argv[1:]).items()):
        if runs and runs[-1][1:] == [c - 1, stand_in]:
            runs[-1][1] = c
        else:
            runs.append([c, c, stand_in])
    head, tail = HEADER.read_text().split("category_drift[] = {\n")
    lines = [""]
    for run in runs:
        cell = " {" + ", ".join(f"0x{x:X}" for x in run) + "},"
        if len(lines[-1]) + len(cell) > 117:
            lines.append("")
        lines[-1] += cell
    print(head + "category_drift[] = {\n" + "\n".join("   " + line for line in lines))
    print(tail[tail.index("};") :], end="")


main()
