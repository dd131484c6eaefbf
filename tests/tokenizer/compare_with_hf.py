#!/usr/bin/env python3
"""Compares `unsloth-train tokenize` with Hugging Face's `tokenizers` on generated texts. Run by hand; exits with 77
where the Python package is missing.

    pip install tokenizers==0.23.3
    python compare_with_hf.py --binary build/release/unsloth-train [--texts 100000] [--seed 1] [FOLDER ...]
    python compare_with_hf.py --binary ... --pipelines 200 [--texts 1000]

Each FOLDER (default: those of ../golden/tokenizer) holds a tokenizer.json, or a tokenizer.model, which transformers'
LlamaTokenizer reads then (pip install transformers==5.17.0 sentencepiece protobuf). Every text is encoded with and without
special tokens and its ids, mixed with random ones, are decoded with and without them.
--pipelines N makes N tokenizers at random instead: a model of ../golden/tokenizer with random normalizers,
pre-tokenizers, post-processors, decoders and added tokens.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: pip install tokenizers")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "tokenizer"
BLOCKS = [
    (0, 0x80),
    (0x20, 0x7F),
    (0x80, 0x250),
    (0x300, 0x370),
    (0x370, 0x600),
    (0x900, 0xE00),
    (0x1100, 0x1200),
    (0x1E00, 0x2100),
    (0x2000, 0x2070),
    (0x2580, 0x2590),
    (0x3000, 0x3100),
    (0x4E00, 0x5000),
    (0xAC00, 0xD7A4),
    (0xF900, 0x10000),
    (0x11300, 0x11400),
    (0x1F300, 0x1F700),
    (0x2F800, 0x2FA20),
    (0x31350, 0x323B0),
    (0, 0x110000),
]
PIECES = [
    "Hello",
    " world",
    "I'm",
    "we'LL",
    "it\u017f",
    "don't",
    "12345",
    "3.14",
    "\u0663\u0664",
    "\u00bd",
    "  ",
    "   x",
    "\n",
    "\r\n",
    "\n\n\n",
    "\t",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u0085",
    "\u180e",
    "\u200b",
    "\ufeff",
    "\x00",
    "\x1c",
    "caf\u00e9",
    "cafe\u0301",
    "e\u0323\u0301",
    "\u1100\u1161\u11a8",
    "\u0344",
    "\u0958",
    "\u212b",
    "\ufb01",
    "\ufdfa",
    "\u0130I\u0131",
    "\u03a3\u03c2",
    "STRASSE \u1e9e",
    "\u2460\u216b\u33a1",
    "\u65e5\u672c\u8a9e",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\u0639\u0631\u0628\u064a",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0e44\u0e17\u0e22",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "\u00ad",
    "!!!",
    " ...",
    "(){}[]",
    "<|",
    "|>",
    "</",
    "\ufffd",
    "\u2581",
    "\u2581\u2581",
    " \u2581",
    "\u2581a",
    "<0x41>",
    "<0x0A>",
    "<s>",
    "</s>",
    "<unk>",
    "[INST]",
    "[/INST]",
    "<s",
    "\u0120",
    "\u0120the",
    "def f(x):\n    return x\n",
    "https://a.b/c?d=e&f",
    "a" * 40,
    "ab" * 20,
    "the " * 6,
    " " * 17,
    "\n" * 5,
    "\u00e9" * 9,
    "What is",
    " the",
    " number",
    " of",
    " = ",
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n",
    "#### 72",
]


class Texts:
    def __init__(self, seed, added):
        self.random = random.Random(seed)
        self.added = added

    def code_point(self):
        low, high = self.random.choice(BLOCKS)
        while True:
            c = self.random.randrange(low, high)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def piece(self):
        r = self.random.random()
        if r < 0.5:
            return self.random.choice(PIECES)
        if r < 0.65 and self.added:
            token = self.random.choice(self.added)
            return token if self.random.random() < 0.8 else token[: self.random.randrange(len(token)) + 1]
        if r < 0.72:
            return self.random.choice([" ", "  ", "\n", "\t", "\r\n", "\u3000", "\u2581"]) * self.random.randrange(1, 4)
        return "".join(self.code_point() for _ in range(self.random.randrange(1, 6)))

    def text(self):
        return "".join(self.piece() for _ in range(self.random.choice([0, 1, 1, 2, 3, 4, 6, 9])))

    def ids(self, ids, size):
        ids = list(ids)
        for _ in range(self.random.randrange(3)):
            ids.insert(self.random.randrange(len(ids) + 1), self.random.randrange(size + 2))
        return ids


def run(binary, folder, rows, *options):
    """What the program makes of rows, one object each; None and a message when it refuses."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    result = subprocess.run(
        [binary, "tokenize", "--tokenizer", str(folder), *options], input=lines.encode(), capture_output=True
    )
    if result.returncode:
        return None, f"exit {result.returncode}: {result.stderr.decode(errors='replace').strip()[-400:]}"
    return [json.loads(line) for line in result.stdout.decode().split("\n")[:-1]], ""


def load_reference(folder):
    if (folder / "tokenizer.json").exists():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    try:
        from transformers import LlamaTokenizer
        import sentencepiece
    except ImportError:
        return None
    return LlamaTokenizer.from_pretrained(str(folder)).backend_tokenizer


def encoded(reference, text, special):
    try:
        return reference.encode(text, add_special_tokens=special).ids
    except BaseException:  # its bookkeeping of offsets panics on some texts that a normalizer empties
        return None


def compare(binary, folder, reference, texts, count, chunk=20000):
    """Number of comparisons and a list of differences (at most five)."""
    done, wrong = 0, []
    size = reference.get_vocab_size()
    for begin in range(0, count, chunk):
        batch = [texts.text() for _ in range(min(chunk, count - begin))]
        for special in (False, True):
            pairs = [(text, ids) for text in batch if (ids := encoded(reference, text, special)) is not None]
            batch, expected = [text for text, _ in pairs], [ids for _, ids in pairs]
            got, message = run(binary, folder, [{"text": t} for t in batch], *([] if special else ["--no_special"]))
            if got is None:
                return done, wrong + [message]
            for text, ids, row in zip(batch, expected, got):
                done += 1
                if ids != row["ids"] and len(wrong) < 5:
                    wrong.append(f"encode(special={special}) {text!r}:\n    expected {ids}\n    got      {row['ids']}")
            id_rows = [texts.ids(ids[:200], size) for ids in expected]
            for skip in (False, True):
                got, message = run(
                    binary, folder, [{"ids": ids} for ids in id_rows], "--decode", *(["--no_special"] if skip else [])
                )
                if got is None:
                    return done, wrong + [message]
                for ids, row in zip(id_rows, got):
                    done += 1
                    try:
                        text = reference.decode(ids, skip_special_tokens=skip)
                    except BaseException:
                        continue
                    if text != row["text"] and len(wrong) < 5:
                        wrong.append(f"decode(skip={skip}) {ids}:\n    expected {text!r}\n    got      {row['text']!r}")
    return done, wrong


NORMALIZERS = [
    lambda r: {"type": "Prepend", "prepend": r.choice(["\u2581", " ", "xy"])},
    lambda r: {
        "type": "Replace",
        "pattern": {"String": r.choice([" ", "a", "``"])},
        "content": r.choice(["\u2581", "", "bb"]),
    },
    lambda r: {
        "type": "Replace",
        "pattern": {"Regex": r.choice([r" {2,}", r"\s+", r"[\n\r]", r"\p{L}\p{M}*"])},
        "content": r.choice(["\u2581", " ", "", "_"]),
    },
    lambda r: {"type": "NFC"},
    lambda r: {"type": "NFC"},
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = [
    lambda r: {
        "type": "ByteLevel",
        "add_prefix_space": r.random() < 0.5,
        "trim_offsets": True,
        "use_regex": r.random() < 0.5,
    },
    lambda r: {
        "type": "Metaspace",
        "replacement": r.choice(["\u2581", "\u2581", "_"]),
        "prepend_scheme": r.choice(["always", "never", "first", "first"]),
        "split": r.random() < 0.5,
    },
    lambda r: {
        "type": "Split",
        "pattern": {"String": r.choice([" ", "a", "\u2581"])},
        "behavior": r.choice(BEHAVIORS),
        "invert": r.random() < 0.3,
    },
    lambda r: {
        "type": "Split",
        "pattern": {"Regex": r.choice([r"\s+", r"\p{L}+|\p{N}", r"\s*", r"(?i:'s|'t)| ?\p{L}+"])},
        "behavior": r.choice(BEHAVIORS),
        "invert": r.random() < 0.3,
    },
    lambda r: {"type": "Digits", "individual_digits": r.random() < 0.5},
    lambda r: {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)},
]
DECODERS = [
    lambda r: {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    lambda r: {"type": "ByteFallback"},
    lambda r: {"type": "Fuse"},
    lambda r: {"type": "Replace", "pattern": {"String": r.choice(["\u2581", "e"])}, "content": r.choice([" ", ""])},
    lambda r: {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    lambda r: {"type": "Strip", "content": r.choice([" ", "\u2581"]), "start": r.randrange(3), "stop": 0},
    lambda r: {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": r.choice(["always", "never", "first"]),
        "split": True,
    },
]


def some(r, makers, key, kind):
    n = r.choice([0, 1, 1, 2, 3])
    parts = [r.choice(makers)(r) for _ in range(n)]
    if not parts:
        return None
    return parts[0] if n == 1 and r.random() < 0.5 else {"type": "Sequence", key: parts}


def random_pipeline(r, documents):
    document = json.loads(r.choice(documents))
    document["normalizer"] = some(r, NORMALIZERS, "normalizers", "normalizer")
    document["pre_tokenizer"] = some(r, PRE_TOKENIZERS, "pretokenizers", "pre_tokenizer")
    steps = document["pre_tokenizer"] or {}
    for number, step in enumerate(
        steps.get("pretokenizers", [steps])
    ):  # "first" is known here for the first step alone
        if step.get("prepend_scheme") == "first" and (number or document["normalizer"]):
            step["prepend_scheme"] = "always"
    document["decoder"] = some(r, DECODERS, "decoders", "decoder")
    model = document["model"]
    for key in ("fuse_unk", "ignore_merges", "byte_fallback"):
        if r.random() < 0.3:
            model[key] = not model.get(key, False)
    if r.random() < 0.3:
        model["unk_token"] = None
    if r.random() < 0.3:
        document["post_processor"] = None
    contents = ["<s>", "[A]", "[INST]", "word", "caf\u00e9", "Hello", "\u2581x", " sp", "the", "\ufb01", "12"]
    for content in r.sample(contents, r.randrange(5)):
        if any(token["content"] == content for token in document["added_tokens"]):
            continue
        document["added_tokens"].append(
            {
                "id": 0,
                "content": content,
                "single_word": r.random() < 0.3,
                "lstrip": r.random() < 0.3,
                "rstrip": r.random() < 0.3,
                "normalized": r.random() < 0.5,
                "special": r.random() < 0.4,
            }
        )
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--texts", type=int, default=100000)
    parser.add_argument("--pipelines", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folders = arguments.folders or sorted({p.parent for p in GOLDEN.glob("*/tokenizer.*")})
    failed = False
    if not arguments.pipelines:
        for folder in folders:
            reference = load_reference(folder)
            if reference is None:
                print(f"{folder.name}: skipped, which needs transformers and sentencepiece")
                continue
            added = [token.content for token in reference.get_added_tokens_decoder().values()]
            done, wrong = compare(arguments.binary, folder, reference, Texts(arguments.seed, added), arguments.texts)
            failed = failed or bool(wrong)
            print(
                f"{folder.name}: {done} comparisons, {'DIFFERENT' if wrong else 'equal'}",
                *wrong,
                sep="\n  ",
                flush=True,
            )
        sys.exit(failed)
    documents = [(folder / "tokenizer.json").read_text() for folder in folders if (folder / "tokenizer.json").exists()]
    total = refused = bad = 0
    for number in range(arguments.pipelines):
        r = random.Random(arguments.seed * 1000003 + number)
        document = random_pipeline(r, documents)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tokenizer.json"
            path.write_text(json.dumps(document))
            try:
                reference = Tokenizer.from_file(str(path))
            except BaseException:
                refused += 1
                continue
            added = [token["content"] for token in document["added_tokens"]]
            done, wrong = compare(
                arguments.binary, folder, reference, Texts(arguments.seed + number, added), arguments.texts
            )
        total += done
        if wrong:
            bad += 1
            summary = {key: document[key] for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
            options = {key: value for key, value in document["model"].items() if key not in ("vocab", "merges")}
            print(f"pipeline {number}: {json.dumps(summary)} {json.dumps(options)}", *wrong, sep="\n  ", flush=True)
    print(
        f"{arguments.pipelines} pipelines ({refused} that the reference refuses), {total} comparisons, {bad} pipelines with differences"
    )
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
