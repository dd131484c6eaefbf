#!/usr/bin/env python3
"""Writes greedy.json: what transformers answers to pieces of the golden rows, each prompt alone.

    .deps/peers/bin/python tests/golden/forward/make_greedy.py    (scripts/setup.sh --python-peers makes it)

{model: [[first, length, [ids of the answer]], …]}: a prompt is `length` ids of NAME.json's second row from `first` on.
Greedy answers in fp32, eager attention, no token ends them. Prompts whose answer hangs on a difference of logits that
another order of summation may turn around are left out.
"""

import json
import lzma
import pathlib
import random
import shutil
import tempfile

import torch
import transformers

HERE = pathlib.Path(__file__).parent
MODELS = ("llama_tied", "llama_bias", "mistral_window", "qwen2", "qwen3")
PROMPTS, MOST, NEW = 64, 36, 10
CLOSEST = 1e-3  # between the two largest logits of a step


def opened(name, folder):
    for file in (HERE.parent / "models" / name).iterdir():
        if file.suffix == ".xz":
            (folder / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        else:
            shutil.copy(file, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    return model.eval()


def answer(model, prompt, new):
    """The ids, and the least difference between a step's two largest logits."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    gaps = [(top[0] - top[1]).item() for top in (step[0].topk(2).values for step in made.logits)]
    return made.sequences[0, len(prompt) :].tolist(), min(gaps)


def main():
    torch.set_num_threads(1)
    results = {}
    for name in MODELS:
        row = json.loads((HERE / f"{name}.json").read_text())["input_ids"][1]
        chosen, entries = random.Random(name), []
        with tempfile.TemporaryDirectory() as folder:
            model = opened(name, pathlib.Path(folder))
            while len(entries) < PROMPTS:
                first = chosen.randrange(len(row) - 1)
                length = chosen.randint(1, min(MOST, len(row) - first))
                ids, gap = answer(model, row[first : first + length], 1 + len(entries) % NEW)
                if gap > CLOSEST:
                    entries.append([first, length, ids])
        results[name] = entries
    models = (
        f'"{name}": [\n' + ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries) + "]"
        for name, entries in results.items()
    )
    (HERE / "greedy.json").write_text("{" + ",\n".join(models) + "}\n")


if __name__ == "__main__":
    main()
