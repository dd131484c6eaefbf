#!/usr/bin/env python3
"""Writes train.jsonl and heldout.jsonl, the instruction rows of the legal example.

    python3 examples/legal/make_rows.py [--out FOLDER]

Standard library only; the same bytes on every run. Rows are composed from library/*.txt: passages, explanations,
questions and answers are written by hand there, and this script draws parties and values, words the instruction and
picks a system prompt. Whole clauses are set aside for the held-out file before any row is made, so that neither their
wording nor their answers occur in train.jsonl.
"""

import argparse
import datetime
import json
from pathlib import Path

from library import (
    COUNTED,
    WORDS,
    Filling,
    Picker,
    capital,
    format_date,
    held_out_clauses,
    jaccard,
    load_families,
    random_date,
    read_pairs,
    words_of,
)

TASKS_PER_CLAUSE = 4  # besides naming the type, which every clause gets
NEAR_DUPLICATE = 0.75  # Jaccard of normalised tokens above which a row is dropped
WORD_LIMITS = (40, 160)  # whole row: system, instruction, input and output

SYSTEMS = [
    "You are a careful contract analyst. Use only what the clause says, and answer in short and complete sentences.",
    "You help people read contracts. Be exact, be brief, and do not add anything that the text does not contain.",
    "You are a legal assistant for a small business. Answer in plain words and never guess about missing facts.",
    "You review contracts for a purchasing team. Name parties as the clause does and keep every number unchanged.",
    "You are a patient teacher of contract law. Give the answer first and then, if needed, one short reason.",
    "You work in a contracts office. Reply in the form that the question asks for, without greetings or advice.",
    "",
]

ASK = {
    "classify": [
        "Name the type of this clause.",
        "What kind of clause is this?",
        "Name the clause type and say what it does.",
        "Which type of contract clause do you see here?",
        "Identify the clause type of the passage.",
        "Say what type of clause the following passage is.",
    ],
    "explain": [
        "Explain this clause in plain English.",
        "Put this clause into simple words.",
        "What does this clause mean for someone who is not a lawyer?",
        "Restate the passage in everyday language.",
        "Explain to a new colleague what this clause says.",
    ],
    "extract": [
        "Extract the following details from the clause: {}.",
        "List these points of the clause: {}.",
        "Read the clause and fill in: {}.",
        "Give me a short list with: {}.",
    ],
    "yes_no": [
        "{} Answer yes or no and give the reason.",
        "Answer with yes or no, then explain: {}",
        "Read the clause. {}",
        "{} Say yes or no and point to the clause.",
    ],
    "shorten": [
        "Shorten this clause to one sentence.",
        "Make this clause as short as possible without losing its point.",
        "Rewrite the clause in a single sentence.",
        "Give a one-sentence version of this clause.",
    ],
    "draft": [
        "Draft a one-sentence clause from these notes.",
        "Turn the notes into one sentence of contract language.",
        "Write a clause of one sentence that covers the notes.",
    ],
    "gap": [
        "What important point is missing from this clause?",
        "Spot what this clause leaves open.",
        "Name one question that the clause does not answer.",
        "Which point should this clause settle but does not?",
    ],
    "favour": [
        "Rewrite this clause so that it favours {}.",
        "Change the clause to the advantage of {}.",
        "Redraft the passage in favour of {}.",
    ],
    "duties": [
        "List what {} must do under this clause.",
        "Which duties does the clause put on {}?",
        "Write down the obligations of {}.",
    ],
    "heading": [
        "Suggest a short heading for this clause.",
        "Which title would you put above this clause?",
        "Give the clause a heading of a few words.",
    ],
    "situation": [
        "Which of the named clauses answers the question of this case?",
        "Say under which clause the situation falls.",
        "Pick the clause that deals with this situation.",
        "To which clause should the parties turn?",
    ],
    "compare": [
        "Compare the two clauses.",
        "What is the difference between these two clauses?",
        "Say in what way the two clauses differ.",
    ],
    "define": [
        "Define the term and give an example.",
        "What does this contract term mean? Add an example.",
        "Explain the term to a beginner and illustrate it.",
    ],
    "voice": [
        "Rewrite the sentence in the active voice.",
        "Change passive verbs to active ones.",
        "Say the same with the parties as the subjects of the verbs.",
    ],
    "mismatch": [
        "Check whether the number in words and the number in figures agree.",
        "Does the spelled-out number match the figure in brackets?",
        "Look for a conflict between words and figures.",
    ],
}


def row(key, task, instruction, text, output, passage=""):
    """One instruction row; 'key' and 'passage' serve the split and the checks and are not written."""
    return {"key": key, "task": task, "instruction": instruction, "input": text, "output": output, "passage": passage}


def bullets(items):
    return "\n".join(f"- {capital(item)}" for item in items)


def fact_lines(clause, fill, mark):
    return "\n".join(f"{mark}{fill.sentence(label)}: {fill.render(value)}" for label, value in clause.facts)


def clause_row(family, clause, task, names):
    """The row of one task about one clause, with its own draw of parties and values."""
    pick = Picker(clause.key, task)
    fill = Filling(clause.slots, pick.choice(clause.parties), pick)
    item = task_row(family, clause, task, names, pick, fill)
    # Some clauses say 'either party': where question or answer names one that the text does not, introduce both.
    parties = [f"the {fill.a}", f"the {fill.b}"]
    spoken = (item["instruction"] + " " + item["output"]).lower()
    if task not in ("situation", "heading") and any(
        party.lower() in spoken and party.lower() not in item["input"].lower() for party in parties
    ):
        item["input"] = f"Parties: {parties[0]} and {parties[1]}.\n{item['input']}"
    return item


def task_row(family, clause, task, names, pick, fill):
    show = fill.sentence
    text = show(clause.text)
    ask = pick.choice(ASK["yes_no" if task in ("yes", "no") else task])
    if task == "classify":
        return row(clause.key, task, ask, text, f"This is {family.named}. {family.purpose}", text)
    if task in ("yes", "no"):
        question, reason = getattr(clause, task)
        return row(clause.key, task, ask.format(show(question)), text, f"{capital(task)}. {show(reason)}", text)
    if task == "extract":
        labels = ", ".join(fill.render(label[0].lower() + label[1:]) for label, _ in clause.facts)
        return row(clause.key, task, ask.format(labels), text, fact_lines(clause, fill, ""), text)
    if task == "draft":
        notes = f"Kind of clause: {family.name}\nParties: {fill.render('{A}')} and {fill.render('{B}')}\n" + fact_lines(
            clause, fill, "- "
        )
        return row(clause.key, task, ask, notes, show(clause.short), notes)
    if task == "situation":
        others = pick.sample([name for name in names if name != family.name], 2)
        options = ", ".join(pick.shuffled([family.name, *others]))
        situation, because = clause.situation
        return row(
            clause.key,
            task,
            ask,
            f"{situation}.\nClauses to choose from: {options}.",
            f"The {family.name} clause. {because}",
            situation,
        )
    if task in ("favour", "duties"):
        letter = clause.favour[0] if task == "favour" else pick.choice(sorted(clause.duties))
        party = "the " + (fill.a if letter == "A" else fill.b)
        output = show(clause.favour[1]) if task == "favour" else bullets(show(d) for d in clause.duties[letter])
        return row(clause.key, task, ask.format(party), text, output, text)
    answer = {"explain": clause.plain, "shorten": clause.short, "gap": clause.gap, "heading": clause.head}[task]
    return row(clause.key, task, ask, text, show(answer), text)


def clause_tasks(clause, turn):
    """Naming the type, and a rotating choice of the other tasks, so that all tasks are equally frequent."""
    others = ["explain", "yes", "extract", "shorten", "no", "gap", "situation", "favour", "draft", "duties", "heading"]
    if not clause.duties:
        others.remove("duties")
    start = turn * TASKS_PER_CLAUSE
    chosen = [others[(start + i) % len(others)] for i in range(TASKS_PER_CLAUSE)]
    return ["classify", *chosen]


def clause_rows(families, held_out):
    names = [family.name for family in families]
    clauses = [(family, clause) for family in families for clause in family.clauses]
    turns = {True: 0, False: 0}
    for family, clause in clauses:
        out = clause.key in held_out
        for task in clause_tasks(clause, turns[out]):
            yield out, clause_row(family, clause, task, names)
        turns[out] += 1


def compare_rows(families, held_out, count_train, count_held_out):
    """Pairs of clauses, both from the same side of the split; half of the training pairs are of one family."""
    sides = {out: [(f, c) for f in families for c in f.clauses if (c.key in held_out) == out] for out in (False, True)}
    for out, count in ((False, count_train), (True, count_held_out)):
        pick = Picker("compare", out)
        for number in range(count):
            (f1, c1) = pick.choice(sides[out])
            same = [fc for fc in sides[out] if fc[0] is f1 and fc[1] is not c1]
            other = [fc for fc in sides[out] if fc[0] is not f1]
            (f2, c2) = pick.choice(same if same and number % 2 else other)
            fills = [Filling(c.slots, pick.choice(c.parties), pick) for c in (c1, c2)]
            texts = [fill.sentence(c.text) for fill, c in zip(fills, (c1, c2))]
            gists = [fill.render(c.gist) for fill, c in zip(fills, (c1, c2))]
            if f1 is f2:
                answer = f"Both are {f1.name} clauses. Clause 1 {gists[0]}. Clause 2 {gists[1]}."
            else:
                answer = f"Clause 1 is {f1.named} and {gists[0]}. Clause 2 is {f2.named} and {gists[1]}."
            key = f"compare/{c1.key}/{c2.key}"
            yield (
                out,
                row(
                    key,
                    "compare",
                    pick.choice(ASK["compare"]),
                    f"Clause 1: {texts[0]}\nClause 2: {texts[1]}",
                    answer,
                    texts[0],
                ),
            )


def mismatch_rows(families, held_out):
    """Passages whose number in words does, or does not, agree with the figure."""
    for family in families:
        for clause in family.clauses:
            counted = [slot for slot, table in clause.slots.items() if table in COUNTED]
            pick = Picker(clause.key, "mismatch")
            if not counted or "~" in clause.text or pick.below(4):
                continue
            slot = pick.choice(counted)
            fill = Filling(clause.slots, pick.choice(clause.parties), pick)
            figure = fill.values[slot]
            spelled = figure if pick.below(3) == 0 else pick.choice([n for n in sorted(WORDS) if n != figure])
            marked = clause.text.replace("{" + slot + "}", f"{WORDS[spelled]} ({figure})", 1)
            if marked == clause.text:
                continue
            text = fill.sentence(marked)
            if spelled == figure:
                answer = f'They agree: the words say "{WORDS[spelled]}" and the figure in brackets is {figure}.'
            else:
                answer = (
                    f'They do not agree: the words say "{WORDS[spelled]}", but the figure in brackets is '
                    f"{figure}. One of them must be corrected."
                )
            yield (
                clause.key in held_out,
                row(clause.key + "/mismatch", "mismatch", pick.choice(ASK["mismatch"]), text, answer, text),
            )


# Passage, question, answer; {first} and {last} are dates that lie {n} days apart.
DATE_CASES = [
    (
        "{B!} shall pay each invoice within {n} days after the day on which it receives the invoice.",
        "An invoice was received on {first}. What is the last day for payment?",
        "The last day for payment is {last}. It is {n} days after {first}.",
    ),
    (
        "The agreement renews unless a party gives notice of non-renewal at least {n} days before the term ends.",
        "The term ends on {last}. What is the last day for the notice?",
        "The last day for the notice is {first}. It is {n} days before {last}.",
    ),
    (
        "{A!} must hand back the deposit no later than {n} days after {B} has left the rooms and returned the keys.",
        "The keys were returned on {first}. By which day must the money be handed back?",
        "It must be handed back by {last}. That is {n} days after {first}.",
    ),
    (
        "Faults of the goods are to be reported to {A} in the {n} days that follow delivery; later complaints are void.",
        "Delivery took place on {first}. Until when can {B} complain?",
        "Complaints are possible until {last}. That is {n} days after {first}.",
    ),
    (
        "If {B} leaves a breach uncured for {n} days from a written warning, {A} is free to end the contract.",
        "The warning reached {B} on {first}. When does the time to cure run out?",
        "The time to cure runs out on {last}. That is {n} days from {first}.",
    ),
    (
        "The new price list binds {B} when {n} days have passed since {A} published it on its website.",
        "The list was published on {first}. From which date does it bind {B}?",
        "It binds {B} from {last}, when {n} days have passed since {first}.",
    ),
    (
        "An offer of {A} stays open for {n} days, counted from its date, and lapses if no answer arrives meanwhile.",
        "The offer is dated {first}. On which day does it lapse?",
        "The offer lapses on {last}. It stayed open for {n} days from {first}.",
    ),
    (
        "Bookings can be cancelled free of charge up to {n} days before arrival, afterwards half of the fee is kept.",
        "A guest will arrive on {last}. What is the latest date for a free cancellation?",
        "The latest date is {first}. Arrival is {n} days later, on {last}.",
    ),
]
DATE_PARTIES = [
    ("Supplier", "Customer"),
    ("Landlord", "Tenant"),
    ("Printer", "Publisher"),
    ("Gardener", "Hotel"),
    ("Carrier", "Shipper"),
    ("Tailor", "Opera"),
]
# {total} is {p} percent of {m}, taken {k} times.
INTEREST_CASES = [
    (
        "{B!} shall pay simple interest of {p} percent for each full month by which a payment to {A} is late.",
        "A payment of {m} was {k} full months late. How much interest is owed?",
        "{B!} owes interest of {total}. That is {p} percent of {m} for each of {k} months.",
    ),
    (
        "For every week of delay, {A} deducts {p} percent of the order value from the final bill of {B}.",
        "The order value is {m} and the work was {k} weeks late. Which sum is deducted?",
        "{A!} deducts {total}, which is {p} percent of {m} for each of the {k} weeks.",
    ),
    (
        "A commission of {p} percent on the value of each machine sold is due to {A} when the machine is paid for.",
        "{k} machines were sold and paid for at {m} each. What is the commission?",
        "The commission is {total}. It is {p} percent of {m} for each of {k} machines.",
    ),
]
HELD_OUT_DATE_CASE = 3
HELD_OUT_WORDS = 3  # definitions, and passive sentences, kept for the held-out file


def reckoning_rows():
    """Small sums about dates and money, worked out here rather than written by hand."""
    for number, (passage, question, answer) in enumerate(DATE_CASES):
        pick = Picker("dates", number)
        fill = Filling({"n": pick.choice(["days", "fewdays"])}, pick.choice(DATE_PARTIES), pick)
        first = random_date(pick)
        last = first + datetime.timedelta(days=fill.values["n"])
        fill.values.update(first=format_date(first), last=format_date(last))
        yield (
            number == HELD_OUT_DATE_CASE,
            row(
                f"dates/{number}",
                "reckon",
                fill.sentence(question),
                fill.sentence(passage),
                fill.sentence(answer),
                fill.sentence(passage),
            ),
        )
    for number, (passage, question, answer) in enumerate(INTEREST_CASES):
        pick = Picker("interest", number)
        fill = Filling({"p": "percent", "k": "count", "m": "money"}, pick.choice(DATE_PARTIES), pick)
        total = fill.values["m"] * fill.values["p"] * fill.values["k"] / 100
        assert total == int(total)
        fill.values["total"] = f"{fill.currency} {total:,.0f}"
        yield (
            False,
            row(
                f"interest/{number}",
                "reckon",
                fill.sentence(question),
                fill.sentence(passage),
                fill.sentence(answer),
                fill.sentence(passage),
            ),
        )


def word_rows():
    """Definitions and passive sentences; a few of each are held out."""
    pick = Picker("glossary")
    for number, (term, definition, example) in enumerate(pick.shuffled(read_pairs("glossary.txt", 3))):
        own = Picker("glossary", term)
        yield (
            number < HELD_OUT_WORDS,
            row(
                f"glossary/{term}",
                "define",
                own.choice(ASK["define"]),
                f"Term: {term}",
                f"{definition} Example: {example}",
                term,
            ),
        )
    pick = Picker("voice")
    slots = {
        "n": "fewdays",
        "y": "years",
        "m": "money_small",
        "h": "hours",
        "p": "percent5",
        "k": "count",
        "l": "territory",
        "c": "city",
        "d": "date",
    }
    for number, (passive, active) in enumerate(pick.shuffled(read_pairs("voice.txt", 2))):
        own = Picker("voice", passive)
        fill = Filling(slots, own.choice(DATE_PARTIES), own)
        text = fill.sentence(passive)
        yield (
            number < HELD_OUT_WORDS,
            row(f"voice/{number}", "voice", own.choice(ASK["voice"]), text, fill.sentence(active), text),
        )


def count_words(*texts):
    return sum(len(text.split()) for text in texts)


def add_systems(rows):
    """Gives every row a system prompt that keeps the row within the word limits; returns the rows that fit."""
    fitting = []
    for item in rows:
        options = Picker("system", item["key"], item["task"]).shuffled(SYSTEMS)
        body = count_words(item["instruction"], item["input"], item["output"])
        system = next((s for s in options if WORD_LIMITS[0] <= body + count_words(s) <= WORD_LIMITS[1]), None)
        if system is not None:
            fitting.append({**item, "system": system})
    return fitting


def drop_near_duplicates(rows):
    kept, seen = [], []
    for item in rows:
        words = set(words_of(" ".join((item["instruction"], item["input"], item["output"]))))
        if all(jaccard(words, other) < NEAR_DUPLICATE for other in seen):
            kept.append(item)
            seen.append(words)
    return kept


def make_rows():
    """(train rows, held-out rows), in file order."""
    families = load_families()
    held_out = held_out_clauses(families)
    sources = [
        clause_rows(families, held_out),
        compare_rows(families, held_out, 36, 6),
        mismatch_rows(families, held_out),
        reckoning_rows(),
        word_rows(),
    ]
    sides = {False: [], True: []}
    for source in sources:
        for out, item in source:
            sides[out].append(item)
    # Held-out rows come first: where two rows are alike, the training row is the one to go.
    kept = drop_near_duplicates(add_systems(sides[True]) + add_systems(sides[False]))
    marked = {(item["key"], item["task"]) for item in sides[True]}
    train = [item for item in kept if (item["key"], item["task"]) not in marked]
    held = [item for item in kept if (item["key"], item["task"]) in marked]
    return Picker("order", "train").shuffled(train), Picker("order", "held-out").shuffled(held)


def write_jsonl(path, rows, names):
    lines = [json.dumps({name: item[name] for name in names}, ensure_ascii=False) for item in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write into")
    out = parser.parse_args().out
    train, held = make_rows()
    for name, rows in (("train.jsonl", train), ("heldout.jsonl", held)):
        write_jsonl(out / name, rows, ("instruction", "input", "output", "system"))
        print(f"{out / name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
