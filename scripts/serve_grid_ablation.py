#!/usr/bin/env python3
"""What a model loses when it is merged into a grid of few values, after training or trained through it (lora.serve_grid):

    scripts/serve_grid_ablation.py build/release/unsloth-train [--steps 150] [--layers 3] [--hidden 96]

Trains a small model from scratch on the texts of one Markov chain, then adapters for another chain. For each grid it
prints the held-out loss of the adapter merged into the grid after training, and of one that was trained through it. The gain is the
base's loss, rounded to the grid or not, less the adapter's; the table's share is of the gain of the unmerged adapter.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile

GRIDS = ("nf4", "q8_0", "q4_0", "mxfp4", "fp8")
VOCABULARY = 256


def chain(seed, changed=0.0, like=None):
    """For each token the ones that may follow; `changed` of them are others than in the chain `like`."""
    draw = random.Random(seed)
    successors = lambda: [draw.randrange(4, VOCABULARY) for _ in range(4)]  # noqa: E731
    return [like[i] if like and draw.random() >= changed else successors() for i in range(VOCABULARY)]


def write_rows(path, successors, count, seed, length=64):
    draw = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            ids = [draw.randrange(4, VOCABULARY)]
            while len(ids) < length:
                ids.append(successors[ids[-1]][min(draw.randrange(4), draw.randrange(4))])
            file.write(json.dumps({"input_ids": ids}) + "\n")
    return path


class Ablation:
    def __init__(self, arguments, folder):
        self.program, self.folder, self.arguments = arguments.program, folder, arguments
        first = chain(1)
        second = chain(2, arguments.changed, first)
        self.base_rows = write_rows(folder / "base.jsonl", first, 4000, 3)
        self.train_rows = write_rows(folder / "train.jsonl", second, 2000, 4)
        self.eval_rows = write_rows(folder / "eval.jsonl", second, 200, 5)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": arguments.hidden,
            "intermediate_size": 2 * arguments.hidden,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": arguments.layers,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }
        (folder / "config.json").write_text(json.dumps(config))
        self.run("init", "--model_config", folder / "config.json", "--out", folder / "random", "--dtype", "float32")
        options = ("--finetuning_type", "full", "--learning_rate", "2e-3", "--max_steps", arguments.base_steps)
        self.train("random", self.base_rows, "base", *options)

    def run(self, *words):
        result = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{words}\n{result.stderr}")
        return result.stdout

    def train(self, model, rows, out, *options):
        self.run(
            "train", "--model.path", self.folder / model, "--train_file", rows, "--output_dir", self.folder / out,
            "--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1,
            "--device", self.arguments.device, "--dtype", "float32", "--load_in_4bit", "false", "--optim", "adamw_torch",
            "--lr_scheduler_type", "cosine", "--warmup_steps", 10, "--save_steps", 0, *options,
        )  # fmt: skip

    def adapters(self, out, grid):
        options = ("--r", 8, "--learning_rate", self.arguments.learning_rate, "--max_steps", self.arguments.steps)
        self.train("base", self.train_rows, out, *options, "--serve_grid", grid)

    def loss(self, model, *options):
        words = (
            "--model.path",
            self.folder / model,
            "--eval_file",
            self.eval_rows,
            "--device",
            self.arguments.device,
            "--json",
        )
        plain = ("--dtype", "float32", "--load_in_4bit", "false")
        return json.loads(self.run("evaluate", *words, *plain, *options))["eval_loss"]

    def merged(self, adapter, grid):
        out = f"{adapter}-merged-{grid}"
        self.run("merge", "--adapter", self.folder / adapter, "--out", self.folder / out, "--grid", grid, "--no_verify")
        return self.loss(out)

    def table(self):
        base = self.loss("base")
        self.adapters("plain", "none")
        unmerged = self.loss("base", "--adapter_name_or_path", self.folder / "plain")
        share = lambda loss: f"{100 * (base - loss) / (base - unmerged):.1f} %"  # noqa: E731
        print(f"held-out loss of the base {base:.4f}, with the unmerged adapter {unmerged:.4f}")
        print("\n| grid | merged after training | share of the gain | trained through the grid | share of the gain |")
        print("| -- | -- | -- | -- | -- |")
        for grid in GRIDS:
            after = self.merged("plain", grid)
            self.adapters(f"through-{grid}", grid)
            through = self.merged(f"through-{grid}", grid)
            print(f"| {grid} | {after:.4f} | {share(after)} | {through:.4f} | {share(through)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--base_steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--learning_rate", default="1e-3", help="of the adapters")
    parser.add_argument("--changed", type=float, default=0.1, help="share of tokens with other successors")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unsloth-serve-grid-") as folder:
        Ablation(arguments, pathlib.Path(folder)).table()


if __name__ == "__main__":
    main()
