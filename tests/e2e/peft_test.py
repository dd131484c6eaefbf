"""Adapters and models of this program in transformers and PEFT: they load, and give the same logits.

Needs a Python with torch, transformers and peft: the environment variable UNSLOTH_PYTHON names it (python3 otherwise).
Without one the test says so and exits with 77, which ctest shows as skipped.
"""

import os
import pathlib
import subprocess
import sys
import unittest

from support import EndToEnd, LLAMA, MISTRAL, QWEN3, environment, floats, main, model, read_safetensors

PYTHON = os.environ.get("UNSLOTH_PYTHON", "python3")
SKIP_CODE = 77
TOLERANCE = 1e-4

# Runs in the other Python: base, adapter ("" for none), rows as JSON; writes each row's logits as fp32, one after another.
REFERENCE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
base, adapter, rows, out = sys.argv[1:]
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
if adapter:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, adapter)
model.eval()
with open(out, "wb") as file, torch.no_grad():
    for line in open(rows):
        ids = torch.tensor([json.loads(line)["input_ids"]])
        file.write(model(input_ids=ids).logits[0].float().contiguous().numpy().tobytes())
"""


class Reference(EndToEnd):
    def reference_logits(self, base, adapter, rows):
        out = self.folder / "reference.bin"
        done = subprocess.run([PYTHON, "-W", "ignore", "-c", REFERENCE, str(base), str(adapter or ""), str(rows), str(out)], capture_output=True,
                              timeout=600, env=environment(HF_HUB_OFFLINE=1))
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-4000:])
        for word in ("MISSING", "UNEXPECTED", "newly initialized"):  # transformers loads such models with a warning alone
            self.assertNotIn(word, done.stderr.decode())
        return floats(out.read_bytes())

    def own_logits(self, base, adapter, rows):
        name = self.folder / "logits.safetensors"
        self.score(base, rows, "--logits", name, *(["--adapter_name_or_path", adapter] if adapter else []))
        tensors = read_safetensors(name)
        return [x for i in range(len(tensors)) for x in floats(tensors[f"logits.{i}"][2])]

    def compare(self, base, adapter, rows):
        own, reference = self.own_logits(base, adapter, rows), self.reference_logits(base, adapter, rows)
        self.assertEqual(len(own), len(reference))
        spread = max(reference) - min(reference)
        self.assertGreater(spread, 0.1, "logits without content would agree anyhow")
        worst = max(abs(a - b) for a, b in zip(own, reference))
        self.assertLess(worst, TOLERANCE, f"spread of the logits {spread}")
        return own

    def test_adapters_on_every_kind_of_model(self):
        rows = self.rows(4)
        variants = {
            "llama": (LLAMA, ["--r", "4", "--lora_alpha", "16"]),
            "llama, patterns": (LLAMA, ["--rank_pattern", '{"v_proj": 2}', "--alpha_pattern", '{"layers.1.self_attn.q_proj": 5}', "--use_rslora",
                                        "true", "--target_modules", "q_proj,v_proj,down_proj"]),
            "llama, saved modules": (LLAMA, ["--r", "4", "--modules_to_save", "embed_tokens,lm_head", "--layers_to_transform", "1"]),
            "qwen3": (QWEN3, ["--r", "4"]),
            "mistral, window": (MISTRAL, ["--r", "4"]),
        }
        for number, (name, (config, options)) in enumerate(variants.items()):
            with self.subTest(name):
                base = model(config)
                adapter = self.train(base, rows, "--learning_rate", "0.03", *options, out=f"adapter{number}")
                adapted = self.compare(base, adapter, rows)
                plain = self.own_logits(base, None, rows)
                self.assertGreater(max(abs(a - b) for a, b in zip(adapted, plain)), 100 * TOLERANCE, "the adapter must matter")

    def test_a_sixteen_bit_base(self):
        base, rows = model(LLAMA, dtype="bfloat16"), self.rows(4)
        adapter = self.train(base, rows, "--r", "4", out="adapter")
        self.compare(base, adapter, rows)

    def test_fully_trained_models(self):
        rows = self.rows(4)
        for number, config in enumerate((LLAMA, QWEN3)):
            with self.subTest(config["model_type"]):
                out = self.train(model(config), rows, "--finetuning_type", "full", out=f"model{number}")
                self.compare(out, None, rows)


def missing():
    """Why the other Python cannot serve, or an empty text."""
    done = subprocess.run([PYTHON, "-c", "import torch, transformers, peft"], capture_output=True)
    return done.stderr.decode().strip().splitlines()[-1] if done.returncode else ""


if __name__ == "__main__":
    reason = missing()
    if reason:
        print(f"skipped: {PYTHON} cannot import torch, transformers and peft ({reason}); UNSLOTH_PYTHON may name a Python that can")
        sys.exit(SKIP_CODE)
    main()
