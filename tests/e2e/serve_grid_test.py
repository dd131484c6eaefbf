"""lora.serve_grid from the outside: evaluation, merging, resuming, several processes, preferences and GGUF files.

The Python package `gguf` reads the exported files, with numpy (UNSLOTH_PYTHON may name its Python); without it that check is left out.
"""

import json
import subprocess

from peers import python_with
from support import EndToEnd, GOLDEN, LLAMA, main, model

PYTHON = python_with("numpy", "gguf")
GRIDS = ("nf4", "q8_0", "q4_0", "mxfp4", "fp8")
MODEL = LLAMA | {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 670, "tie_word_embeddings": False}
TOKENIZER = GOLDEN / "tokenizer" / "llama3_small"

# Compares each weight of a GGUF file with the merged folder's values.
READ_GGUF = """
import json, struct, sys
import numpy as np
from gguf import GGUFReader, dequantize
folder, file, kind = sys.argv[1:]
raw = open(folder + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8 : 8 + size])
def values(name):
    entry = header[name]
    begin, end = entry["data_offsets"]
    data = raw[8 + size + begin : 8 + size + end]
    if entry["dtype"] == "BF16":
        found = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    else:
        found = np.frombuffer(data, "<f4")
    return found.reshape(entry["shape"])
names = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
compared = 0
for tensor in GGUFReader(file).tensors:
    parts = tensor.name.split(".")
    if tensor.name in ("token_embd.weight", "output.weight"):
        assert tensor.tensor_type.name in ("F32", "BF16", "F16"), (tensor.name, tensor.tensor_type)
    if len(parts) < 3 or parts[2] not in names:
        continue
    assert tensor.tensor_type.name == kind, (tensor.name, tensor.tensor_type)
    expected = values(f"model.layers.{parts[1]}.{names[parts[2]]}.weight")
    assert np.array_equal(dequantize(tensor.data, tensor.tensor_type), expected), tensor.name
    compared += 1
print(compared)
"""


class ServeGrid(EndToEnd):
    def setUp(self):
        super().setUp()
        self.base = model(MODEL, tokenizer=TOKENIZER)
        self.train_rows = self.rows(16, name="train.jsonl", vocab=600)
        self.eval_rows = self.rows(8, name="eval.jsonl", vocab=600, seed=9)

    def adapter(self, grid, *options, out="out"):
        return self.train(
            self.base, self.train_rows, "--serve_grid", grid, "--eval_file", self.eval_rows, "--eval_steps", "2",
            "--max_steps", "4", "--r", "4", "--learning_rate", "0.02", *options, out=out,
        )  # fmt: skip

    def evaluate(self, *options):
        result = self.succeed("evaluate", *options, "--eval_file", self.eval_rows, "--device", "cpu", "--json")
        return json.loads(result.out)["eval_loss"]

    def merge(self, adapter, *options, out="merged"):
        result = self.succeed("merge", "--adapter", adapter, "--out", self.folder / out, *options)
        return self.folder / out, result

    def test_what_was_evaluated_is_what_is_merged(self):
        for grid in GRIDS:
            with self.subTest(grid):
                adapter = self.adapter(grid, out=f"out-{grid}")
                self.assertEqual(grid, json.loads((adapter / "adapter_config.json").read_text())["serve_grid"])
                merged, result = self.merge(adapter, out=f"merged-{grid}")
                self.assertIn("relative difference 0 ", result.err)
                trained = self.evaluations(adapter)[-1]["eval_loss"]
                options = ("--dtype", "float32", "--load_in_4bit", "false")
                self.assertAlmostEqual(trained, self.evaluate("--model.path", merged, *options), delta=1e-6)
                adapted = ("--model.path", self.base, "--adapter_name_or_path", adapter, *options)
                self.assertAlmostEqual(trained, self.evaluate(*adapted), delta=1e-6)
                ignored = self.evaluate(*adapted, "--ignore_serve_grid", "true")
                self.assertGreater(abs(trained - ignored), 1e-6)

    def test_gguf_files_hold_the_merged_values(self):
        for grid, kind in (("q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("mxfp4", "MXFP4")):
            with self.subTest(grid):
                merged, _ = self.merge(self.adapter(grid, out=f"out-{grid}"), out=f"merged-{grid}")
                file = self.folder / f"{grid}.gguf"
                exported = self.succeed("export", "gguf", "--model.path", merged, "--out", file)
                self.assertIn("nothing else is quantised", exported.err)
                if PYTHON is None:
                    continue
                read = subprocess.run(
                    [PYTHON, "-c", READ_GGUF, merged, file, kind], capture_output=True, text=True, check=False
                )
                self.assertEqual(0, read.returncode, read.stderr)
                self.assertGreater(int(read.stdout), 5)

    def test_resuming_gives_the_same_run(self):
        whole = self.adapter("q4_0", "--save_steps", "2", out="whole")
        resumed = self.adapter("q4_0", "--resume_from_checkpoint", whole / "checkpoint-2", out="resumed")
        name = "adapter_model.safetensors"
        self.assertEqual((whole / name).read_bytes(), (resumed / name).read_bytes())

    def test_two_processes_train_as_one(self):
        options = ("--per_device_train_batch_size", "2", "--data.shuffle", "false")
        alone = self.adapter("q8_0", *options, "--gradient_accumulation_steps", "2", out="alone")
        self.succeed(
            "launch", "--nproc_per_node", "2",
            "train", *self.train_arguments(
                self.base, self.train_rows, "--serve_grid", "q8_0", "--eval_file", self.eval_rows, "--eval_steps", "2",
                "--max_steps", "4", "--r", "4", *options, "--gradient_accumulation_steps", "1", out="two",
            ), "--learning_rate", "0.02",
        )  # fmt: skip
        for one, two in zip(self.steps(alone), self.steps(self.folder / "two"), strict=True):
            self.assertAlmostEqual(one["loss"], two["loss"], delta=1e-3)
        self.merge(self.folder / "two")  # which verifies

    def test_preferences(self):
        rows = self.folder / "pairs.jsonl"
        rows.write_text(
            "".join(
                json.dumps({"prompt": [1, 5 + i], "chosen": [7, 8 + i, 9], "rejected": [11, 12, 13 + i]}) + "\n"
                for i in range(8)
            )
        )
        out = self.train(
            self.base,
            rows,
            "--objective",
            "dpo",
            "--serve_grid",
            "q4_0",
            "--max_steps",
            "6",
            "--r",
            "4",
            "--beta",
            "0.5",
        )
        losses = [row["loss"] for row in self.steps(out)]
        self.assertLess(losses[-1], losses[0])
        self.merge(out)

    def test_refuses_what_would_use_the_adapter_without_its_grid(self):
        adapter = self.adapter("q8_0")
        self.fail_with(
            "export.unsupported", "serve_grid q8_0",
            "export", "gguf", "--model.path", self.base, "--adapter", adapter, "--out", self.folder / "a.gguf",
        )  # fmt: skip
        _, other = self.merge(adapter, "--grid", "none", out="plain")
        self.assertIn("other weights than it was trained through", other.err)
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text(json.dumps({"text": "a", "adapter": "a"}) + "\n")
        self.fail_with(
            "adapter.not-together", "serve_grid",
            "generate", "--model.path", self.base, "--adapter", f"a={adapter}", "--file", prompts, "--device", "cpu",
            "--max_new_tokens", "4",
        )  # fmt: skip


if __name__ == "__main__":
    main()
