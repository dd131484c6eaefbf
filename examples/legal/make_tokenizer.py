#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer of the legal example on corpus.jsonl and train.jsonl.

    pip install tokenizers==0.23.3
    python3 examples/legal/make_tokenizer.py

Writes base/tokenizer.json and base/tokenizer_config.json. The pre-tokenizer splits as Llama 3's does, so the same
code path reads this file and the big ones. Only needed when the texts change: the result is in the repository.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, __version__, decoders, models, pre_tokenizers, processors, trainers

from library import alpaca_prompt

HERE = Path(__file__).resolve().parent
PINNED = "0.23.3"
BEGIN, END = "<|begin|>", "<|end|>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts():
    for line in (HERE / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["text"]
    for line in (HERE / "train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield alpaca_prompt(row) + row["output"]


def build(vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # All 256 bytes are in the alphabet, so every text can be written, also one in another script.
    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[BEGIN, END],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN}:1 $B:1", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=HERE / "base", help="folder to write into")
    options = parser.parse_args()
    if __version__ != PINNED:
        parser.error(f"tokenizers {PINNED} is needed for the same result; found {__version__}")
    tokenizer = build(options.vocab_size)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    settings = {
        "bos_token": BEGIN,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1024,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (options.out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    print(f"{options.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
