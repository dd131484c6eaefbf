#!/usr/bin/env python3
"""Writes corpus.jsonl, the text on which the tiny base model of the legal example is trained from scratch.

    python3 examples/legal/make_corpus.py [--out FILE]

Standard library only; the same bytes on every run. The text teaches a small model English and the language of
contracts: clauses with other parties and values than the instruction rows, remarks about them, questions with answers,
short agreements, definitions, and ordinary sentences. It is composed from the clauses that are not held out, in other
layouts than the rows, so nothing of heldout.jsonl is in it.
"""

import argparse
import json
import re
from pathlib import Path

from library import (
    LIBRARY,
    Filling,
    Picker,
    article,
    capital,
    format_date,
    held_out_clauses,
    load_families,
    random_date,
    read_pairs,
)
from make_rows import DATE_PARTIES, HELD_OUT_WORDS

ROUNDS = 3  # how often each clause appears in remarks, every time with other values
EXERCISE_ROUNDS = 3  # and in exercises
AGREEMENTS = 140
ORDINARY_TEXTS = 420

KIND_REMARKS = [
    "Lawyers call this {a} clause.",
    "A passage like this is {a} clause.",
    "The type of this clause is: {name}.",
    "This is a typical {name} clause.",
    "In a contract one finds it under the title of {name}.",
    "Such a rule belongs to the clauses on {name}.",
    "Anyone who reads it will see that it is {a} clause.",
    "What kind of clause is it? It is {a} clause.",
]
PLAIN_REMARKS = [
    "In plain words:",
    "Put simply:",
    "That means the following.",
    "A friend would say it like this:",
    "Said without legal language:",
    "In everyday English:",
]
SHORT_REMARKS = ["In one sentence:", "A shorter form would be:", "The same rule in brief:", "Its core is this:"]
GAP_REMARKS = ["One thing is left open.", "A careful reader notes a gap.", "Something is missing here."]
CASE_REMARKS = ["A case from practice:", "Here is an example.", "Think of this case.", "When does it matter?"]
RIVAL_REMARKS = [
    "{B!} may ask for another wording:",
    "A version that is kinder to {B} would read:",
    "If {B} had drafted it, the text might be:",
]
RECITALS = [
    "{A!} and {B} wish to work together and have talked about the terms for some weeks.",
    "{B!} needs the help of {A}, which has long experience in its trade.",
    "{A!} has its seat in {c}, and {B} has an office in {c2}.",
    "This agreement is made on {d} between {A} and {B}.",
    "The parties have met in {c} and agreed on what follows.",
    "{B!} has seen the offer of {A} and accepts it with the changes named below.",
]
# {q} a question, {p} a passage, {a} its answer. The base learns here that an answer follows a question about a passage;
# the alpaca prompt and the wording of its instructions stay new to it.
LAYOUTS = [
    "Question: {q}\nPassage: {p}\nAnswer: {a}",
    "Passage: {p}\nQuestion: {q}\nAnswer: {a}",
    "Task.\n{q}\n\nText.\n{p}\n\nResult.\n{a}",
    "A teacher shows her class this text.\n{p}\n{q} {a}",
    "{q}\n\n{p}\n\n{a}",
    "Exercise: {q}\n{p}\nSolution: {a}",
]
KIND_QUESTIONS = [
    "What is the subject of this text?",
    "To which kind of clause does it belong?",
    "What is it about?",
    "Under which title would you file it?",
]
KIND_ANSWERS = [
    "It is {a} clause.",
    "This belongs to {a} clause.",
    "The subject is {name}.",
    "Here we have {a} clause.",
]
PLAIN_QUESTIONS = ["Say it in easy words.", "How would you tell this to a child?", "Make this easy to understand."]
POINT_QUESTIONS = ["Note down the main points.", "Write out the figures and facts.", "Fill in the form."]
SHORT_QUESTIONS = ["Cut this down.", "Give the core of it.", "Sum it up."]
GAP_QUESTIONS = ["What would you still ask?", "What has been forgotten here?", "Where is the hole in this text?"]
CLOSINGS = [
    "Signed in {c} on {d} by {A} and {B}.",
    "Both parties have read every section and sign of their own free will.",
    "Each party receives one original of this agreement.",
    "The schedules were checked by both parties on {d}.",
]
PARTY_FRAMES = [
    "In this contract {A} is one party and {B} is the other.",
    "The parties are called {A} and {B}.",
    "The contract binds two sides, {A} and {B}.",
    "{A!} has certain duties, and so has {B}.",
]


def remark(pick, options, fill=None, **words):
    text = pick.choice(options).format(**words) if words else pick.choice(options)
    return fill.sentence(text) if fill else capital(text)


def clause_texts(family, clause, number):
    """Several texts about one clause, all with one draw of parties and values."""
    pick = Picker("corpus", clause.key, number)
    fill = Filling(clause.slots, pick.choice(clause.parties), pick)
    show = fill.sentence
    kind = remark(pick, KIND_REMARKS, a=f"{article(family.name)} {family.name}", name=family.name)
    passage = show(clause.text)
    yield f"{passage}\n{kind} It {fill.render(clause.gist)}."
    yield f"{show(clause.head)}\n{passage}\n{remark(pick, PLAIN_REMARKS)} {show(clause.plain)}"
    (ask_yes, why_yes), (ask_no, why_no) = clause.yes, clause.no
    answers = [f"{show(ask_yes)} Yes, it is so. {show(why_yes)}", f"{show(ask_no)} No, not at all. {show(why_no)}"]
    yield f"{passage}\n" + "\n".join(pick.shuffled(answers))
    points = "; ".join(
        f"{fill.render(label[0].lower() + label[1:])}: {fill.render(value)}" for label, value in clause.facts
    )
    yield f"{remark(pick, PARTY_FRAMES, fill)} {passage}\nTo note here are {points}.\n{kind}"
    brief = f"{remark(pick, SHORT_REMARKS)} {show(clause.short)}"
    yield f"{passage}\n{remark(pick, GAP_REMARKS)} {show(clause.gap)}\n{brief}"
    situation, because = clause.situation
    yield (
        f"{remark(pick, CASE_REMARKS)} {situation}. They should look for {family.named}. {because}\n"
        f"{show(clause.short)}"
    )
    letter, rival = clause.favour
    rival_remark = pick.choice(RIVAL_REMARKS).replace("{B", "{" + letter)
    yield f"{passage}\n{show(rival_remark)} {show(rival)}"
    duties = [(letter, duty) for letter, list_ in sorted(clause.duties.items()) for duty in list_]
    if duties:
        lines = [f"{show('{' + letter + '!}')} has to {fill.render(duty)}." for letter, duty in duties]
        yield f"{passage}\n" + " ".join(lines)


def exercise_texts(family, clause, number):
    """Questions about a clause with their answers, in changing layouts."""
    pick = Picker("exercise", clause.key, number)
    fill = Filling(clause.slots, pick.choice(clause.parties), pick)
    show = fill.sentence
    passage = show(clause.text)
    # What tells the kind of a clause is its subject and not one wording: every text about it serves as passage.
    for about in (clause.text, clause.short, clause.plain, clause.favour[1], clause.situation[0] + "."):
        kind = pick.choice(KIND_ANSWERS).format(a=f"{article(family.name)} {family.name}", name=family.name)
        yield pick.choice(KIND_QUESTIONS), show(about), kind
    yield pick.choice(PLAIN_QUESTIONS), passage, show(clause.plain)
    points = "\n".join(f"{fill.sentence(label)}: {fill.render(value)}" for label, value in clause.facts)
    yield pick.choice(POINT_QUESTIONS), passage, points
    yield pick.choice(SHORT_QUESTIONS), passage, show(clause.short)
    yield pick.choice(GAP_QUESTIONS), passage, show(clause.gap)
    for word, (question, reason) in (("Yes", clause.yes), ("No", clause.no)):
        yield show(question), passage, f"{word}. {show(reason)}"


def agreement_text(sides, number):
    """A short agreement of three clauses of different families between the same two parties."""
    pick = Picker("agreement", number)
    parties = pick.choice(pick.choice(sides)[1].parties)
    frame = Filling({"c": "city", "c2": "city", "d": "date"}, parties, pick)
    lines = [frame.sentence(pick.choice(RECITALS))]
    for place, (family, clause) in enumerate(pick.sample(sides, 2), 1):
        fill = Filling(clause.slots, parties, pick)
        fill.currency = frame.currency
        lines.append(f"{place}. {capital(family.name)}. {fill.sentence(clause.text)}")
    lines.append(frame.sentence(pick.choice(CLOSINGS)))
    return "\n".join(lines)


def family_texts(family, families, number):
    """Prose about a kind of clause and its neighbours."""
    pick = Picker("family", family.key, number)
    other = pick.choice([f for f in families if f is not family])
    yield f"{capital(family.named)} is a part of many contracts. {family.about}"
    yield (
        f"{capital(family.name)} and {other.name} are two different things. {family.about.split('. ')[0]}. "
        f"{other.about.split('. ')[0]}."
    ).replace("..", ".")
    yield f"What is {family.named} for? {family.about}"


def read_patterns():
    """Sentence patterns and word lists of ordinary.txt."""
    lists, patterns = {}, []
    for line in (LIBRARY / "ordinary.txt").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(": ")
        if key.startswith("list "):
            lists[key.removeprefix("list ")] = [word.strip() for word in value.split(",")]
        elif key == "line":
            patterns.append(value)
    return lists, patterns


def ordinary_text(lists, patterns, number):
    """A few plain sentences; within a pattern no word of a list is used twice."""
    pick = Picker("ordinary", number)
    sentences = []
    for pattern in pick.sample(patterns, 4):
        decks = {name: pick.shuffled(words) for name, words in sorted(lists.items())}
        sentences.append(re.sub(r"\[(\w+)\]", lambda match, decks=decks: decks[match.group(1)].pop(), pattern))
    return " ".join(sentences)


def glossary_texts():
    shuffled = Picker("glossary").shuffled(read_pairs("glossary.txt", 3))
    for term, definition, example in shuffled[HELD_OUT_WORDS:]:
        yield f"The word {term} is often met in contracts. {definition} {example}"
        yield f"{example} This shows what {term} means. {definition}"
        yield f"What is meant by {term}? {definition}"


def voice_texts():
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
    shuffled = Picker("voice").shuffled(read_pairs("voice.txt", 2))
    for number in range(ROUNDS):
        for passive, active in shuffled[HELD_OUT_WORDS:]:
            pick = Picker("corpus voice", passive, number)
            fill = Filling(slots, pick.choice(DATE_PARTIES), pick)
            yield f"{fill.sentence(passive)} In other words, {fill.render(active)}"


def calendar_texts():
    """Dates in their usual form, so that the tokenizer and the model know them."""
    for number in range(40):
        pick = Picker("calendar", number)
        days = [format_date(random_date(pick)) for _ in range(3)]
        yield (
            f"The offer is of {days[0]}. It was accepted on {days[1]}, and the goods are due on {days[2]}. "
            f"A date has a day, a month and a year, such as {days[0]}."
        )


def make_corpus():
    families = load_families()
    held_out = held_out_clauses(families)
    sides = [(family, clause) for family in families for clause in family.clauses if clause.key not in held_out]
    lists, patterns = read_patterns()
    texts = []
    for number in range(ROUNDS):
        for family, clause in sides:
            # Two of the kinds of text each round, taken in turn, keep a round varied and the corpus small.
            kinds = list(clause_texts(family, clause, number))
            texts += [kinds[(2 * number + i) % len(kinds)] for i in range(2)] + [kinds[0]]
    for number in range(EXERCISE_ROUNDS):
        for family, clause in sides:
            pick = Picker("layout", clause.key, number)
            exercises = list(exercise_texts(family, clause, number))
            # Naming the kind is what needs most practice; of the other questions each round takes half.
            chosen = exercises[:5] + exercises[5 + number % 2 :: 2]
            texts += [pick.choice(LAYOUTS).format(q=q, p=p, a=a) for q, p, a in chosen]
    for number in range(2):
        for family in families:
            texts += family_texts(family, families, number)
    texts += [agreement_text(sides, number) for number in range(AGREEMENTS)]
    texts += [ordinary_text(lists, patterns, number) for number in range(ORDINARY_TEXTS)]
    texts += [*glossary_texts(), *voice_texts(), *calendar_texts()]
    unique = list(dict.fromkeys(texts))
    return Picker("order", "corpus").shuffled(unique)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "corpus.jsonl")
    out = parser.parse_args().out
    texts = make_corpus()
    out.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    print(f"{out}: {len(texts)} texts, {sum(len(text.encode()) for text in texts):,} bytes")


if __name__ == "__main__":
    main()
