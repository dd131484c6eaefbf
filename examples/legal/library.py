"""The hand-written clause library behind the legal example: reading library/*.txt and filling in the slots.

Shared by make_rows.py (instruction rows) and make_corpus.py (base text). Standard library only. A clause is written
once with slots such as {A} (a party), {n} (a number) or {m} (a sum of money); its explanation, questions and answers
use the same slots, so a value that stands in the passage also stands in the answer.
"""

import datetime
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "library"
CLAUSE_FILES = sorted(LIBRARY.glob("[0-9]_*.txt"))

# One clause per held-out family; chosen by hash in held_out_clauses(). None of their text reaches train or corpus.
HELD_OUT_FAMILIES = 14
SEED = "legal-1"


class Picker:
    """A named stream of reproducible choices.

    random.Random keeps its generator but may change how choices are drawn between Python versions; hashing a name and
    a counter gives the same bytes everywhere.
    """

    def __init__(self, *name):
        self._name = "/".join([SEED, *map(str, name)])
        self._count = 0

    def below(self, n):
        self._count += 1
        digest = hashlib.sha256(f"{self._name}#{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % n

    def choice(self, items):
        return items[self.below(len(items))]

    def sample(self, items, k):
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(k)]

    def shuffled(self, items):
        return self.sample(items, len(items))


CITIES = [
    "Bergen",
    "Porto",
    "Leeds",
    "Ghent",
    "Turin",
    "Tampere",
    "Halifax",
    "Adelaide",
    "Durban",
    "Nagoya",
    "Galway",
    "Krakow",
    "Linz",
    "Aarhus",
    "Bristol",
    "Valencia",
]
TABLES = {
    "days": [20, 30, 45, 60, 90],
    "fewdays": [3, 5, 7, 10, 14],
    "hours": [4, 6, 8, 12, 24],
    "hours2": [36, 48, 60, 72],
    "months": [6, 9, 12, 18, 24],
    "years": [2, 3, 4, 5, 6],
    "count": [2, 3, 4, 5, 6],
    "percent": [1, 1.5, 2, 2.5],
    "percent5": [2, 3, 4, 5, 6, 8],
    "bigpercent": [10, 12, 15, 20, 25],
    "halfpercent": [20, 30, 40, 50, 60],
    "overpercent": [100, 105, 110, 120],
    "voteshare": [60, 67, 75, 80],
    "uptime": [98.5, 99, 99.5, 99.8, 99.9],
    "distance": [5, 10, 25, 40],
    "quantity": [200, 350, 600, 900, 1200],
    "money_tiny": [15, 25, 40, 60, 75],
    "money_small": [300, 450, 800, 1200, 1500, 2400],
    "money": [5000, 8000, 12000, 20000, 35000],
    "money_big": [150000, 250000, 400000, 750000, 1000000, 2000000],
    "material": ["steel", "timber", "zinc", "copper", "diesel", "glass"],
    "city": CITIES,
    "law": [
        "England and Wales",
        "Scotland",
        "Ireland",
        "Ontario",
        "New York",
        "Norway",
        "Singapore",
        "Portugal",
        "New South Wales",
        "Austria",
        "Kenya",
        "Denmark",
    ],
    "territory": ["Finland", "Canada", "Ireland", "Spain", "Poland", "Japan", "New Zealand", "Austria", "Kenya"],
    "date": None,  # drawn by random_date
}
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
CURRENCIES = ["USD", "EUR", "GBP", "CAD", "AUD", "CHF", "NOK"]
WORDS = {
    2: "two",
    3: "three",
    4: "four",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    9: "nine",
    10: "ten",
    12: "twelve",
    14: "fourteen",
    18: "eighteen",
    20: "twenty",
    24: "twenty-four",
    30: "thirty",
    36: "thirty-six",
    45: "forty-five",
    48: "forty-eight",
    60: "sixty",
    72: "seventy-two",
    90: "ninety",
}
COUNTED = ("days", "fewdays", "hours", "hours2", "months", "years", "count")  # tables whose numbers have words


@dataclass
class Clause:
    family: str
    name: str
    parties: list = field(default_factory=list)
    slots: dict = field(default_factory=dict)
    text: str = ""
    gist: str = ""
    plain: str = ""
    short: str = ""
    head: str = ""
    facts: list = field(default_factory=list)  # (label, value)
    duties: dict = field(default_factory=dict)  # party letter -> list of verb phrases
    yes: tuple = ()  # (question, reason)
    no: tuple = ()
    gap: str = ""
    favour: tuple = ()  # (party letter, rewritten text)
    situation: tuple = ()  # (situation, because)

    @property
    def key(self):
        return f"{self.family}/{self.name}"


@dataclass
class Family:
    key: str
    name: str = ""
    purpose: str = ""
    about: str = ""
    clauses: list = field(default_factory=list)

    @property
    def named(self):
        """The name with its article: 'an audit clause'."""
        return f"{article(self.name)} {self.name} clause"


def article(word):
    return "an" if word[0] in "aeiou" else "a"


def capital(text):
    return text[:1].upper() + text[1:]


def format_date(day):
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def random_date(pick, first_year=2026, years=4):
    return datetime.date(first_year + pick.below(years), 1 + pick.below(12), 1 + pick.below(28))


def _pair(text, where):
    parts = [part.strip() for part in text.split(" | ")]
    if len(parts) != 2:
        raise ValueError(f"{where}: expected 'left | right', found: {text}")
    return tuple(parts)


def _fill_clause(clause, key, value, where):
    word, _, letter = key.partition(" ")
    if word == "parties":
        clause.parties = [tuple(pair.strip().split("/")) for pair in value.split(",")]
    elif word == "slots":
        clause.slots = dict(item.split("=") for item in value.split())
        unknown = set(clause.slots.values()) - set(TABLES)
        if unknown:
            raise ValueError(f"{where}: unknown slot table {sorted(unknown)}")
    elif word == "facts":
        clause.facts = [tuple(part.strip() for part in fact.split(" = ", 1)) for fact in value.split(";")]
    elif word == "duty" and letter in ("A", "B"):
        clause.duties[letter] = [duty.strip() for duty in value.split(";")]
    elif word == "favour" and letter in ("A", "B"):
        clause.favour = (letter, value)
    elif word in ("yes", "no", "situation"):
        setattr(clause, word, _pair(value, where))
    elif word in ("text", "gist", "plain", "short", "head", "gap"):
        setattr(clause, word, value)
    else:
        raise ValueError(f"{where}: unknown key '{key}'")


def load_families():
    families = []
    for path in CLAUSE_FILES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.name}:{number}"
            if not line.strip():
                continue
            key, separator, value = line.partition(": ")
            if not separator:
                raise ValueError(f"{where}: expected 'key: value'")
            if key == "family":
                families.append(Family(value))
            elif key in ("name", "purpose", "about"):
                setattr(families[-1], key, value)
            elif key == "clause":
                families[-1].clauses.append(Clause(families[-1].key, value))
            else:
                _fill_clause(families[-1].clauses[-1], key, value, where)
    _check(families)
    return families


def _check(families):
    for family in families:
        assert family.name and family.purpose and family.about, family.key
        for clause in family.clauses:
            for name in (
                "parties",
                "text",
                "gist",
                "plain",
                "short",
                "head",
                "facts",
                "yes",
                "no",
                "gap",
                "favour",
                "situation",
            ):
                assert getattr(clause, name), f"{clause.key}: no {name}"
            used = set(re.findall(r"\{(\w+)", clause.text))
            assert set(clause.slots) <= used, f"{clause.key}: slots {set(clause.slots) - used} are not in the text"


def held_out_clauses(families):
    """Keys of whole clauses (wording and all that belongs to it) that only held-out rows may use."""
    pick = Picker("held-out")
    return {pick.choice(family.clauses).key for family in pick.sample(families, HELD_OUT_FAMILIES)}


def read_pairs(name, columns):
    """Rows of 'a | b | …' from a library file."""
    rows = []
    for number, line in enumerate((LIBRARY / name).read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            cells = tuple(cell.strip() for cell in line.split(" | "))
            if len(cells) != columns:
                raise ValueError(f"{name}:{number}: expected {columns} cells, found {len(cells)}")
            rows.append(cells)
    return rows


class Filling:
    """One draw of parties and values for a clause; render() puts them into any of the clause's texts."""

    def __init__(self, clause_slots, parties, pick):
        self.values = {}
        self.currency = pick.choice(CURRENCIES)
        self.a, self.b = parties
        self.tables = dict(clause_slots)
        taken = {}
        for slot, table in clause_slots.items():
            if table == "date":
                self.values[slot] = format_date(random_date(pick))
                continue
            free = [value for value in TABLES[table] if value not in taken.setdefault(table, [])]
            self.values[slot] = pick.choice(free)
            taken[table].append(self.values[slot])

    def _show(self, slot, factor):
        value = self.values[slot]
        if isinstance(value, str):
            return value
        value *= factor
        plain = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        return f"{self.currency} {plain}" if self.tables[slot].startswith("money") else plain

    def _slot(self, match):
        name, factor, mark = match.group(1), int(match.group(2) or 1), match.group(3)
        if name in ("A", "B"):
            party = "the " + (self.a if name == "A" else self.b)
            return capital(party) if mark == "!" else party
        if mark == "~":
            return f"{WORDS[self.values[name]]} ({self.values[name]})"
        return self._show(name, factor)

    def render(self, text):
        """The text with its slots filled, as it stands in the middle of a sentence."""
        return re.sub(r"\{(\w+?)(?:\*(\d))?([!~]?)\}", self._slot, text)

    def sentence(self, text):
        """The same with a capital first letter."""
        return capital(self.render(text))


def words_of(text):
    """Normalised tokens for near-duplicate checks: lower case, every number the same."""
    return re.findall(r"[a-z]+|0", re.sub(r"[\d][\d.,]*", "0", text.lower()))


def jaccard(a, b):
    return len(a & b) / len(a | b) if a or b else 1.0


def alpaca_prompt(row):
    """The prompt that the program writes before a row's output; a system text replaces its first sentences."""
    preamble = row["system"] or (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request."
    )
    return f"{preamble}\n\n### Instruction:\n{row['instruction']}\n\n### Input:\n{row['input']}\n\n### Response:\n"
