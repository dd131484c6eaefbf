#!/usr/bin/env python3
"""Writes the table of docs/performance/gpus.md: what `unsloth-train plan` predicts for common models on common GPUs.

scripts/configurations_table.py PROGRAM            writes the table
scripts/configurations_table.py PROGRAM --check    exits with 1 if the page differs
"""

import collections
import json
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "performance" / "gpus.md"
BEGIN, END = "<!-- begin of the table: scripts/configurations_table.py -->\n", "<!-- end of the table -->\n"
MODELS = ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen3-14b", "llama-3.1-70b"]
# GPU memory, the GPU whose speed is predicted, host memory in GiB.
CARDS = [
    ("8 GiB", "RTX 4090", 32),
    ("24 GiB", "RTX 4090", 64),
    ("48 GiB", "L40S", 128),
    ("80 GiB", "H100", 256),
    ("141 GiB", "H200", 256),
]
GIB = 1 << 30


def plan(program, model, memory, card, host):
    command = [program, "plan", "--model.path", model, "--gpu", card, "--gpu_memory", memory.replace(" ", "")]
    command += ["--model.max_memory", json.dumps({"cpu": f"{host}GiB"}), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not done.stdout.strip():
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def counted(texts):
    """ "all layers X", or "20 X, 12 Y" by falling number."""
    counts = collections.Counter(texts)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {text}" for text, count in counts.most_common())


def weights_of(layer):
    return located("cached bf16" if layer.get("cached") else layer["form"], layer["weights_at"])


def saved_of(layer):
    return located(layer["keep"], layer["activations_at"])


def located(text, place):
    return text if place == "device" else f"{text} ({place})"


def row(program, model, memory, card, host):
    found = plan(program, model, memory, card, host)
    if not found["fits"]:
        return f"| {model} | {memory} ({card}) | does not fit | – | – | – | – |"
    layers = found["layers"]
    return (
        f"| {model} | {memory} ({card}) | {found['total_bytes'] / GIB:.1f} | {found['host_bytes'] / GIB:.1f} | "
        f"{found['predicted_tokens_per_second']:,.0f} | {counted(map(weights_of, layers))} | "
        f"{counted(map(saved_of, layers))} |"
    )


def main():
    program, check = sys.argv[1], sys.argv[2:] == ["--check"]
    lines = [
        "| model | GPU | GPU memory, GiB | host memory, GiB | predicted tokens/s | layer weights | saved activations |",
        "| -- | -- | -- | -- | -- | -- | -- |",
    ]
    lines += [row(program, model, *card) for model in MODELS for card in CARDS]
    table = "".join(line + "\n" for line in lines)
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    if not check:
        PAGE.write_text(head + BEGIN + "\n" + table + "\n" + END + tail)
    elif old.strip() != table.strip():
        sys.exit(f"{PAGE} differs from what plan says; run {sys.argv[0]} PROGRAM. The table would be:\n{table}")


if __name__ == "__main__":
    main()
