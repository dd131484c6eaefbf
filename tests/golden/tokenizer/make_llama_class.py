"""Makes llama_class.jsonl: what transformers makes of a Llama 2 style tokenizer.json whose folder names the class
LlamaTokenizer (run by hand):

    pip install transformers==5.23.0 && python make_llama_class.py

A line is {"base": folder of the tokenizer.json, "config": its tokenizer_config.json, "model_type"?: of config.json,
"rows": as in NAME.jsonl}. transformers 5 takes no notice of add_bos_token and add_eos_token in the file where there is
a tokenizer.json; as arguments they count, and so they are given here.
"""

import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA = NAMED | {"tokenizer_class": "LlamaTokenizer"}
TEXTS = [
    "Hello world",
    " Hello",
    "  two",
    "",
    " ",
    "\u2581",
    "a</s>b",
    "a </s> b",
    "<s>a",
    "<s> a",
    "</s>\n\nx",
    "[INST] Hello [/INST] Hi</s>",
    "a <new> b",
    "a<new>b",
    "word<x>  word sword",
    "caf\u00e9 \U0001f600 \u4e2d\u6587",
    "x\ty\n  z",
    "<unk>",
    "12 345",
    "line one\nline two ",
]


def token(content, **flags):
    return dict(content=content, lstrip=False, rstrip=False, normalized=False, single_word=False, special=False) | flags


NEW = {"added_tokens_decoder": {"600": token("<new>", lstrip=True), "0": token("<unk>", special=True)}}
CASES = [
    ("llama2_small", LLAMA, None),
    ("llama2_small", LLAMA | {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, "llama"),
    ("llama2_small", LLAMA | {"legacy": True}, "llama"),
    ("llama2_small", LLAMA | {"add_prefix_space": False}, None),
    ("llama2_small", LLAMA | {"add_prefix_space": True, "legacy": True}, None),
    ("llama2_small", LLAMA | {"add_bos_token": False, "add_eos_token": False}, None),
    ("llama2_small", LLAMA | {"add_bos_token": True, "add_eos_token": True}, "llama"),
    ("llama2_small", LLAMA | NEW, None),
    ("llama2_small", LLAMA | NEW | {"legacy": True, "additional_special_tokens": ["[INST]"]}, None),
    ("mistral_small", LLAMA, "llama"),
    ("mistral_small", LLAMA | {"legacy": True}, None),
    ("llama2_small", LLAMA, "mistral"),
    ("llama2_small", NAMED | {"tokenizer_class": "PreTrainedTokenizerFast"}, "llama"),
    ("llama2_small", NAMED, None),
]


def main():
    lines = []
    for base, config, model_type in CASES:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(HERE / base / "tokenizer.json", folder)
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            if model_type:
                (pathlib.Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type}))
            around = {key: config[key] for key in ("add_bos_token", "add_eos_token") if key in config}
            tokenizer = AutoTokenizer.from_pretrained(folder, **around).backend_tokenizer
        case = {"base": base, "config": config} | ({"model_type": model_type} if model_type else {})
        case["rows"] = []
        for text in TEXTS:
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            special = tokenizer.encode(text).ids
            row = {"text": text, "ids": plain, "ids_with_special": special}
            row["decoded"] = tokenizer.decode(plain, skip_special_tokens=False)
            row["decoded_skip_special"] = tokenizer.decode(special, skip_special_tokens=True)
            case["rows"].append(row)
        lines.append(json.dumps(case, ensure_ascii=False) + "\n")
    (HERE / "llama_class.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
