"""Makes the tokenizers of this folder that do not work on bytes, and their expectations (run by hand):

    pip install tokenizers==0.23.3 transformers==5.23.0 sentencepiece==0.2.3 protobuf && python make_sentencepiece.py TEXT_FILE

TEXT_FILE is any text in several languages, one sentence a line; the committed files came from 300 KB of it.
llama2_small      normalizer Prepend + Replace, as transformers 4 converted Llama 2
mistral_small     Metaspace "first" without normalizer, added tokens of every kind
metaspace_small   Metaspace "always" with splitting, no byte fallback but an unknown token
spm_small         tokenizer.model alone; expectations by transformers' LlamaTokenizer
spm_legacy_small  tokenizer.model with `legacy`, added tokens, EOS; expectations by LlamaTokenizer
NAME.jsonl and NAME.decode.jsonl are as make.py writes them.
"""

import json
import os
import sys

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import LlamaTokenizer
from transformers.convert_slow_tokenizer import SentencePieceExtractor

from make import HERE, PIECES, R, texts, write

MORE_PIECES = [
    "\u2581",
    " \u2581a",
    "<s>",
    "</s>",
    "<unk>",
    "<s> a",
    "a</s>b",
    "[INST] Hello [/INST] Hi</s>",
    " <x> y",
    "<0x41>",
    "word word",
    "sword",
    "caf\u00e9 \ufb01",
    "\u0130stanbul",
    "\U000f0000",
    "<tool>x",
    "<new>",
    "a <new> b",
    "   x",
    "x   ",
    "\n x",
]


def train(folder, lines, **options):
    folder.mkdir(exist_ok=True)
    settings = dict(
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        num_threads=1,
        minloglevel=2,
    )
    settings.update(options)
    os.chdir(folder)  # the model keeps the prefix that it was given
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix="tokenizer", **settings)
    (folder / "tokenizer.vocab").unlink()
    return folder / "tokenizer.model"


def bpe_of(path, **options):
    """The vocabulary and merges of a tokenizer.model, which goes away."""
    extracted = SentencePieceExtractor(str(path)).extract(models.BPE)
    path.unlink()
    return Tokenizer(
        models.BPE(vocab=extracted["vocab"], merges=extracted["merges"], unk_token="<unk>", fuse_unk=True, **options)
    )


def special(*names, normalized=False):
    return [AddedToken(name, special=True, normalized=normalized) for name in names]


def bos_template(t):
    return processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])


FALLBACK = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def llama2_small(folder, lines):
    t = bpe_of(train(folder, lines, vocab_size=600), byte_fallback=True)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence(FALLBACK)
    t.add_special_tokens(special("<unk>", "<s>", "</s>", normalized=True))
    t.post_processor = bos_template(t)
    return t, {"bos_token": "<s>", "eos_token": "</s>"}


def mistral_small(folder, lines):
    t = bpe_of(train(folder, lines, vocab_size=600), byte_fallback=True)
    t.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence(FALLBACK)
    t.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    t.add_tokens(
        [
            AddedToken("<x>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=True),
        ]
    )
    t.post_processor = bos_template(t)
    return t, {"bos_token": "<s>", "eos_token": "</s>"}


def metaspace_small(folder, lines):
    t = bpe_of(train(folder, lines, vocab_size=400, byte_fallback=False))
    t.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always", True)
    t.decoder = decoders.Metaspace("\u2581", "always", True)
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    t.add_tokens([AddedToken("\ufb01", normalized=True)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t, {"bos_token": "<s>", "eos_token": "</s>"}


def spm_small(folder, lines):
    train(folder, lines, vocab_size=600)
    return None, {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "legacy": False,
    }


def spm_legacy_small(folder, lines):
    train(folder, lines, vocab_size=600, user_defined_symbols=["<tool>"], control_symbols=["<extra>"])
    token = {
        "content": "<new>",
        "lstrip": True,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": False,
    }
    return None, {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": True,
        "legacy": True,
        "added_tokens_decoder": {"600": token},
    }


def main():
    lines = open(sys.argv[1]).read().split("\n")
    PIECES.extend(MORE_PIECES)
    for make in (llama2_small, mistral_small, metaspace_small, spm_small, spm_legacy_small):
        name = make.__name__
        folder = HERE / name
        t, config = make(folder, lines)
        (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
        if t is None:
            t = LlamaTokenizer.from_pretrained(str(folder)).backend_tokenizer
        else:
            (folder / "tokenizer.json").write_text(json.dumps(json.loads(t.to_str()), separators=(",", ":")) + "\n")
            t = Tokenizer.from_file(str(folder / "tokenizer.json"))
        rows = []
        for text in texts(135):
            plain, with_special = t.encode(text, add_special_tokens=False), t.encode(text)
            row = {
                "text": text,
                "ids": plain.ids,
                "ids_with_special": with_special.ids,
                "decoded": t.decode(plain.ids, skip_special_tokens=False),
                "decoded_skip_special": t.decode(with_special.ids, skip_special_tokens=True),
            }
            for key in ("decoded", "decoded_skip_special"):
                if row[key] == text:
                    del row[key]
            rows.append(row)
        write(name + ".jsonl", rows)
        rows = []
        for _ in range(50):
            ids = [
                R.randrange(t.get_vocab_size() + 2) if R.random() < 0.6 else R.randrange(260)
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


if __name__ == "__main__":
    main()
