"""Makes preferences.json of qwen3_vl and mllama: the losses of eight steps of DPO on pairs of answers about images, by
autograd in fp32 on the CPU: LoRA on the tiny models here, and the images and processors of tests/golden/images.

A row is TRL's: images, prompt, chosen, rejected. The reference is the model without its adapter.

Run with transformers 5.23.0, PEFT 0.21 and Pillow: python3 make_seen_preferences.py
"""

import json
import math
import tempfile
from pathlib import Path

import torch
from make_seen_answers import HERE, IMAGE, assistant, inputs_of, text, tiled_inputs_of, unpacked, user
from peft import PeftModel
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

STEPS, BATCH, RATE, WARMUP, BETA = 8, 2, 1e-3, 2, 0.1
PAIRS = [
    ([user(IMAGE, text("far three red"))], "blue dots", "the fox sees it", ["h_rgba.png"]),
    ([user(IMAGE, IMAGE, text("blue ? three"))], "red", "left under it", ["d_grey.jpg", "g_rgb.png"]),
    ([user(text("fox what"), IMAGE, text("two the"))], "lies it", "dots", ["k_lossy.webp"]),
    ([user(text("red circle lies"))], "far", "three blue", []),
    (
        [user(IMAGE, text("the dots")), assistant("is one"), user(text("far"), IMAGE, text("square ?"))],
        "a white fox", "a red fox", ["a_420.jpg", "g_rgb.png"],
    ),
]  # fmt: skip


def row_of(pair):
    prompt, chosen, rejected, images = pair
    row = {"prompt": prompt, "chosen": [assistant(chosen)], "rejected": [assistant(rejected)]}
    return row | {"images": [f"images/{name}" for name in images]} if images else row


def answer_logprob(model, row, answer, tokenizer, processor, tiled):
    """Of the answer's tokens, with what ends its turn."""
    images = row.get("images", [])
    make = tiled_inputs_of if tiled else inputs_of
    prompt = make(row["prompt"], images, tokenizer, processor)["input_ids"].shape[1]
    inputs = make(row["prompt"] + row[answer], images, tokenizer, processor, add_generation_prompt=False)
    ids = inputs["input_ids"][0]
    logprobs = model(**inputs).logits[0, :-1].log_softmax(-1)
    # The turn's end, and not what a template writes behind it.
    ends = (ids[prompt:] == tokenizer.eos_token_id).nonzero()
    end = prompt + int(ends[0]) + 1 if len(ends) else len(ids)
    return logprobs[prompt - 1 : end - 1].gather(1, ids[prompt:end, None]).sum()


def run(family):
    tiled = family == "mllama"
    with tempfile.TemporaryDirectory() as name:
        folder = unpacked(family, Path(name))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        adapter = unpacked(family, Path(name) / "adapter", HERE / family / "lora" / "initial")
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    rows = [row_of(pair) for pair in PAIRS]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        share = step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * share
        loss = 0
        for i in range(BATCH):
            row = rows[(step * BATCH + i) % len(rows)]
            margins = []
            for answer in ("chosen", "rejected"):
                with torch.no_grad(), model.disable_adapter():
                    reference = answer_logprob(model, row, answer, tokenizer, processor, tiled)
                margins.append(answer_logprob(model, row, answer, tokenizer, processor, tiled) - reference)
            loss = loss - torch.nn.functional.logsigmoid(BETA * (margins[0] - margins[1])) / BATCH
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(family, losses)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    (HERE / family / "preferences.json").write_text(f'{{"rows": [\n  {lines}\n ],\n "losses": {json.dumps(losses)}}}\n')


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in ("qwen3_vl", "mllama"):
        run(family)
