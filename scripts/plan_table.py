#!/usr/bin/env python3
"""Plans against measurements: memory and time of a step, in 24 settings, as a table for docs/performance/plans.md.

    scripts/plan_table.py BINARY FOLDER [--only WORDS] [--steps 4] [--warmup 3]

Writes models with random weights into FOLDER where they are missing (llama-3.1-8b, llama-3.2-1b, both in NF4), and runs
`bench step` once a setting. Exit status 1 when a peak is above its plan or 3 % below it, or a step's time is more than
10 % off what was predicted.
"""

import argparse
import json
import pathlib
import subprocess
import sys

# shape, rows, tokens a row, further options
SETTINGS = [
    ("llama-3.1-8b", 8, 2048, ["--max_memory_gib", gib]) for gib in ("6.5", "8", "10", "16", "24", "40", "54", "130")
]
SETTINGS += [("llama-3.1-8b", 2, 2048, ["--max_memory_gib", gib]) for gib in ("6", "10", "130")]
SETTINGS += [("llama-3.1-8b", 1, length, []) for length in (128, 512, 8192, 16384)]
SETTINGS += [
    ("llama-3.1-8b", 1, 32768, ["--max_memory_gib", "22"]),
    ("llama-3.1-8b", 8, 2048, ["--lora.r", "64", "--max_memory_gib", "24"]),
    ("llama-3.1-8b", 8, 2048, ["--gradient_checkpointing", "full"]),
    ("llama-3.1-8b", 8, 2048, ["--gradient_checkpointing", "mlp+offload", "--dequantized_weights", "off"]),
    ("llama-3.1-8b", 8, 2048, ["--compute_dtype", "int8"]),
    ("llama-3.1-8b", 8, 2048, ["--compute_dtype", "fp8_both"]),
    ("llama-3.1-8b", 8, 2048, ["--compute_dtype", "fp8_backward"]),
    (
        "llama-3.1-8b",
        8,
        2048,
        ["--dequantized_weights", "off", "--device_map", '{"model.layers": "cpu", "model.embed_tokens": "cpu", "": 0}'],
    ),
    ("llama-3.1-8b", 16, 2048, ["--min_seq", "256", "--max_memory_gib", "60"]),
    ("llama-3.2-1b", 8, 2048, []),
    ("llama-3.2-1b", 8, 2048, ["--max_memory_gib", "6"]),
]


def measure(binary, model, rows, length, options, steps, warmup):
    command = [
        binary,
        "bench",
        "step",
        "--model.path",
        model,
        "--batch",
        str(rows),
        "--seq",
        str(length),
        "--steps",
        str(steps),
    ]
    command += ["--warmup", str(warmup), "--max_seq_length", str(length), "--log_level", "error", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1:] or ["no words"]
    return json.loads(done.stdout), []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help="settings whose row holds this text")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=3)
    asked = parser.parse_args()
    print("| step | options | plan | predicted / measured ms | error | planned / peak GiB | error |")
    print("| -- | -- | -- | -- | -- | -- | -- |")
    wrong = 0
    for shape, rows, length, options in SETTINGS:
        name, words = f"{shape} {rows} x {length}", " ".join(options)
        if asked.only not in f"{name} {words}":
            continue
        model = asked.folder / shape
        if not model.exists():
            subprocess.run([asked.binary, "init", "--shape", shape, "--quantize", "nf4", "--out", model], check=True)
        found, failure = measure(asked.binary, str(model), rows, length, options, asked.steps, asked.warmup)
        if found is None:
            print(f"| {name} | {words} | did not run: {' '.join(failure)} | | | | |", flush=True)
            wrong += 1
            continue
        time_off = found["predicted_step_ms"] / found["step_ms"] - 1
        memory_off = found["planned_gib"] / found["peak_gib"] - 1
        wrong += abs(time_off) > 0.1 or not 0 <= memory_off <= 0.03
        print(
            f"| {name} | {words} | {found['gradient_checkpointing']}; {found['cached_layers']} layers cached; {found['host_gib']:.1f} GiB of host memory"
            f" | {found['predicted_step_ms']:.1f} / {found['step_ms']:.1f} | {time_off:+.1%}"
            f" | {found['planned_gib']:.2f} / {found['peak_gib']:.2f} | {memory_off:+.2%} |",
            flush=True,
        )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
