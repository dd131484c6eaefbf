#!/usr/bin/env python3
"""How near learning_rate auto comes to the best of eight rates, on several data sets:

    scripts/rate_study.py build/release/unsloth-train FOLDER [--device cuda] [--steps 200]

FOLDER has base.jsonl, rows of {text}, and NAME_train.jsonl and NAME_heldout.jsonl for each data set, rows of {instruction, input,
output}. A Llama is trained from random weights on base.jsonl, and adapters of it on each data set by `sweep --find_lr`. The tables
are in Markdown. The last line of each compares auto with the best of five rates: a quarter to four times the rule's.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RULE = 3  # the rule's place among the eight rates
FIVE = range(RULE - 2, RULE + 3)


class Study:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.data = pathlib.Path(arguments.data)
        self.common = (
            "--device", arguments.device, "--dtype", "bfloat16" if arguments.device == "cuda" else "float32",
            "--load_in_4bit", "false", "--max_seq_length", 512, "--save_steps", 0, "--lr_scheduler_type", "cosine",
            "--gradient_accumulation_steps", 1, "--eval_on_start", "false",
        )  # fmt: skip

    def run(self, *words):
        result = subprocess.run([self.arguments.program, *map(str, words)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{words}\n{result.stderr}")

    def make_base(self):
        tokenizer = REPOSITORY / "examples/legal/base"
        config = json.loads((tokenizer / "config.json").read_text())
        hidden = self.arguments.hidden
        config |= {
            "hidden_size": hidden,
            "intermediate_size": hidden * 11 // 4,
            "num_hidden_layers": self.arguments.layers,
            "num_attention_heads": hidden // 64,
            "num_key_value_heads": hidden // 128,
            "head_dim": 64,
        }
        (self.folder / "config.json").write_text(json.dumps(config))
        self.run(
            "init", "--model_config", self.folder / "config.json", "--tokenizer", tokenizer, "--out", self.folder / "random",
            "--dtype", "float32",
        )  # fmt: skip
        self.run(
            "train", *self.common, "--model.path", self.folder / "random", "--train_file", self.data / "base.jsonl",
            "--data.format", "text", "--output_dir", self.folder / "base", "--finetuning_type", "full",
            "--learning_rate", self.arguments.base_rate, "--num_train_epochs", self.arguments.base_epochs,
            "--per_device_train_batch_size", 32, "--warmup_steps", 50, "--optim", "adamw_torch",
        )  # fmt: skip

    def sweep(self, name):
        out = self.folder / name
        self.run(
            "sweep", *self.common, "--model.path", self.folder / "base", "--train_file", self.data / f"{name}_train.jsonl",
            "--eval_file", self.data / f"{name}_heldout.jsonl", "--data.format", "alpaca", "--template", "alpaca",
            "--output_dir", out, "--r", 16, "--lora_alpha", 32, "--per_device_train_batch_size", 8, "--warmup_steps", 10,
            "--find_lr", "--steps", self.arguments.steps,
        )  # fmt: skip
        found = json.loads((out / "find_lr/sweep.json").read_text())
        losses = [trial["scores"][-1]["value"] for trial in found["trials"]]
        losses = [float("inf") if loss is None else float(loss) for loss in losses]
        best = min(losses)
        print(
            f"\n{name}\n\n| rate | held-out loss after {self.arguments.steps} steps | above the best |\n| -- | -- | -- |"
        )
        for place, (trial, loss) in enumerate(zip(found["trials"], losses, strict=True)):
            rate = next(iter(dict(trial["options"]).values()))
            print(f"| {rate}{' (`auto`)' if place == RULE else ''} | {loss:.4f} | {100 * (loss / best - 1):.1f} % |")
        of_five = min(losses[place] for place in FIVE)
        print(f"\nauto is {100 * (losses[RULE] / of_five - 1):.2f} % above the best of five", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("data", metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--base_epochs", type=int, default=4)
    parser.add_argument("--base_rate", default="1e-3")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unsloth-rates-") as folder:
        study = Study(arguments, pathlib.Path(folder))
        study.make_base()
        for rows in sorted(study.data.glob("*_train.jsonl")):
            study.sweep(rows.name.removesuffix("_train.jsonl"))


if __name__ == "__main__":
    main()
