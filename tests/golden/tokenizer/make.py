"""Makes the tokenizers and expectations of this folder with Hugging Face's `tokenizers` 0.23.3 (run by hand):

    pip install tokenizers==0.23.3 && python make.py TEXT_FILE

TEXT_FILE is any English text to train the merges on; the committed files came from 200 KB of it.
<name>/tokenizer.json          a byte-level BPE of a few hundred merges
<name>.jsonl                   text, ids, ids_with_special; decoded(_skip_special) where that is not the text;
                               llama3_small also offsets, in code points
<name>.decode.jsonl            arbitrary ids and what they decode to
<name>.chat.jsonl              ids and trained token ranges of the conversations in ../chat, spans by HF's offsets
splits.jsonl                   one pre_tokenizer each, and the ids that llama3_small gives with it
"""

import copy
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
R = random.Random(20240901)


def train(tokenizer, lines, merges, specials):
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens(specials)
    return tokenizer


def llama3_small(lines):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    train(t, lines, 400, [AddedToken(n, special=True, normalized=False) for n in names])
    bos = names[0]
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, t.token_to_id(bos))]),
        ]
    )
    return t, {"bos_token": bos, "eos_token": "<|eot_id|>"}


def qwen_small(lines):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    specials = [AddedToken(n, special=True, normalized=False) for n in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    plain = [
        AddedToken("<think>", normalized=False),
        AddedToken("</think>", normalized=False),
        AddedToken("<tool", normalized=False),
        AddedToken("<tool_call>", normalized=False),
        AddedToken("[L]", lstrip=True, normalized=False),
        AddedToken("[R]", rstrip=True, normalized=False),
        AddedToken("[LR]", lstrip=True, rstrip=True, normalized=True),
        AddedToken("word", single_word=True),
        AddedToken("\u00e9\u0323t\u00e9", normalized=True),
        AddedToken("\u00fc", normalized=False, special=True),
    ]
    train(t, lines, 350, specials + plain)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return t, {"bos_token": None, "eos_token": {"content": "<|im_end|>", "special": True}}


def gpt2_small(lines):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    t.decoder = decoders.ByteLevel()
    train(t, lines, 300, [AddedToken("<|endoftext|>", special=True, normalized=True)])
    eos = "<|endoftext|>"
    t.post_processor = processors.TemplateProcessing(
        single=f"{eos} $A {eos}", special_tokens=[(eos, t.token_to_id(eos))]
    )
    return t, {"bos_token": eos, "eos_token": eos}


def unknown_small(lines):
    """A vocabulary without most bytes, an unknown token that is fused, merges as strings."""
    t, config = gpt2_small(lines)
    model = json.loads(t.to_str())
    keep = {chr(c) for c in range(0x21, 0x7F)} | {"\u0120", "\u010a"}
    vocab = {"<unk>": 0}
    for token in model["model"]["vocab"]:
        if set(token) <= keep and token != "<|endoftext|>":
            vocab[token] = len(vocab)
    merges = [m for m in model["model"]["merges"] if set("".join(m)) <= keep]
    model["model"].update(vocab=vocab, merges=[" ".join(m) for m in merges], unk_token="<unk>", fuse_unk=True)
    model["post_processor"] = None
    model["added_tokens"] = [dict(model["added_tokens"][0], id=len(vocab))]
    return Tokenizer.from_str(json.dumps(model)), config


BLOCKS = [
    (0, 0x80),
    (0x80, 0x250),
    (0x300, 0x370),
    (0x370, 0x600),
    (0x900, 0xE00),
    (0x1100, 0x1200),
    (0x1E00, 0x2100),
    (0x2000, 0x2100),
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
    "it'\u017f",
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
    "\u00e9\u0323t\u00e9",
    "e\u0301\u0323te\u0301",
    "\u1100\u1161\u11a8",
    "\u0344",
    "\u0958",
    "\u212b",
    "\ufb01",
    "\u65e5\u672c\u8a9e",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\u0639\u0631\u0628\u064a",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0e44\u0e17\u0e22",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea",
    "\u00ad",
    "!!!",
    " ...",
    "(){}[]",
    "<|",
    "|>",
    "<|eot_id|>",
    "<|eot_id",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_",
    "<think>",
    "<tool",
    "<tool_call>",
    "<tool_cal",
    "[L]",
    " [L] ",
    "\u3000[R]\n ",
    " [LR] ",
    "[R] [L]",
    "word",
    "sword",
    "a word.",
    "word\u0301",
    "_word",
    "\u00fc",
    "u\u0308",
    "<|endoftext|>",
    "<|end",
    "def f(x):\n    return x\n",
    "https://a.b/c?d=e&f",
    "a" * 70,
    "ab" * 50,
    "the " * 6,
    " " * 40,
    "\n" * 20,
    "\u00e9" * 30,
]


def code_point():
    low, high = R.choice(BLOCKS)
    while True:
        c = R.randrange(low, high)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def texts(n):
    out = [""] + PIECES
    while len(out) < n:
        pieces = [
            R.choice(PIECES) if R.random() < 0.75 else "".join(code_point() for _ in range(R.randrange(1, 6)))
            for _ in range(R.randrange(2, 7))
        ]
        out.append("".join(pieces))
    return out


def write(name, rows):
    (HERE / name).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def chat_rows(t, source):
    for line in open(HERE.parent / "chat" / source):
        row = json.loads(line)
        if "error" in row:
            continue
        encoding = t.encode(row["text"], add_special_tokens=False)
        out = {"text": row["text"], "ids": encoding.ids}
        if "assistant_chars" in row:
            inside = lambda span: [i for i, o in enumerate(encoding.offsets) if o[0] >= span[0] and o[1] <= span[1]]
            out["trained"] = [[i[0], i[-1] + 1] for i in map(inside, row["assistant_chars"]) if i]
        yield out


def split_rows(base):
    document = json.loads(base.to_str())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
        for pattern in ({"String": " "}, {"Regex": r"\s*"}, {"Regex": r"\p{L}+|\p{N}"})
        for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        for invert in (False, True)
    ]
    splits += [{"type": "Digits", "individual_digits": b} for b in (False, True)]
    splits += [
        {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
        for r in (r"^a|b$", r"(?<=a)b", r"\p{Lu}\p{Ll}*|\p{Han}+|[\p{P}\p{S}]", r"x{2,3}", r"(?i:\u0074he)|.")
    ]
    more = [
        {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
        for r in (
            r" ?[^(\s|[.,!?\u3002\u060c])]+",
            r"'(?i:[sdmt])|\p{L}++|\p{N}{1,3}+|(?:\s\p{L}){2}?",
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r"\w+|[^\w\s]+|\s+",
            r"\p{Hiragana}+|\p{Katakana}|\p{Hangul}+|\W",
        )
    ]
    for split in splits + more:
        tail = dict(byte_level, add_prefix_space=split["type"] == "Digits")
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, tail]}
        t = Tokenizer.from_str(json.dumps(document))
        for text in (
            "",
            "  two  spaces ",
            "ab\nab\n",
            "The the x12  y3\u0664 \u4e2d\u6587A!?xxxxx",
            "12 34",
            " a b",
            "a\U00031350b\u180e\U00010d40 \u1c89\ua7cb\U0001b132\u0378!",
            *(
                (
                    "\u3001\u4e2d\u3002\u3042\u30a2\u30fc\uac00, (\u3006)\u00bd\u00b2 x\u00b2y",
                    "12345678 1234x 123456, can't 'S 12345 a b",
                )
                if split in more
                else ()
            ),
        ):
            yield {
                "pre_tokenizer": document["pre_tokenizer"],
                "text": text,
                "ids": t.encode(text, add_special_tokens=False).ids,
            }


def main():
    text = open(sys.argv[1]).read()[:200_000].replace("\n", "\n\n")
    lines = [text[i : i + 1000] for i in range(0, len(text), 1000)]
    for make, count in ((llama3_small, 250), (qwen_small, 250), (gpt2_small, 160), (unknown_small, 100)):
        t, config = make(lines)
        name = make.__name__
        (HERE / name).mkdir(exist_ok=True)
        t_json = json.loads(t.to_str())
        (HERE / name / "tokenizer.json").write_text(json.dumps(t_json, separators=(",", ":")) + "\n")
        (HERE / name / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
        t = Tokenizer.from_file(str(HERE / name / "tokenizer.json"))
        rows = []
        for text in texts(count):
            plain, special = t.encode(text, add_special_tokens=False), t.encode(text)
            row = {"text": text, "ids": plain.ids, "ids_with_special": special.ids}
            if make is llama3_small:
                row["offsets"] = plain.offsets
            row["decoded"] = t.decode(plain.ids, skip_special_tokens=False)
            row["decoded_skip_special"] = t.decode(special.ids, skip_special_tokens=True)
            for key in ("decoded", "decoded_skip_special"):
                if row[key] == text:
                    del row[key]
            rows.append(row)
        write(name + ".jsonl", rows)
        rows = []
        for _ in range(60):
            ids = [
                R.randrange(t.get_vocab_size() + 2) if R.random() < 0.5 else R.randrange(256)
                for _ in range(R.randrange(1, 12))
            ]
            rows.append(
                {
                    "ids": ids,
                    "decoded": t.decode(ids, skip_special_tokens=False),
                    "decoded_skip_special": t.decode(ids, skip_special_tokens=True),
                }
            )
        write(name + ".decode.jsonl", rows)
    base = Tokenizer.from_file(str(HERE / "llama3_small" / "tokenizer.json"))
    write("splits.jsonl", split_rows(base))
    write("llama3_small.chat.jsonl", chat_rows(base, "llama3_1.jsonl"))
    write(
        "qwen_small.chat.jsonl",
        chat_rows(Tokenizer.from_file(str(HERE / "qwen_small" / "tokenizer.json")), "qwen3.jsonl"),
    )


if __name__ == "__main__":
    main()
