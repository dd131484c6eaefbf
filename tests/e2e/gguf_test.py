"""Exported GGUF files, read by the Python package `gguf`: every field, name, shape and byte.

Needs a Python with gguf and numpy (scripts/setup.sh makes one); UNSLOTH_PYTHON may name another. Without one the test says so and
exits with 77, which ctest shows as skipped. The comparison is gguf_reference.py's, which that Python runs.
"""

import json
import pathlib
import random
import shutil
import subprocess

from peers import main_or_skip, python_with
from support import (
    EndToEnd,
    GOLDEN,
    INPUT,
    LLAMA,
    MISTRAL,
    NF4_MODEL,
    QWEN3,
    USAGE,
    RUNTIME,
    environment,
    float_bytes,
    write_safetensors,
)

MODULES = ("numpy", "gguf")
PYTHON = python_with(*MODULES)
REFERENCE = pathlib.Path(__file__).resolve().parent / "gguf_reference.py"
TOKENIZERS = GOLDEN / "tokenizer"

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
}
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
# Name, config, tokenizer, its size. Vocabularies are larger than the tokenizer's: the rest is padding.
MODELS = {
    "llama": (
        LLAMA | SIZES | {"rope_scaling": ROPE, "attention_bias": True, "mlp_bias": True, "vocab_size": 670},
        "llama3_small",
    ),
    "odd": (
        LLAMA
        | SIZES
        | {
            "hidden_size": 128,
            "intermediate_size": 344,
            "head_dim": 32,
            "vocab_size": 610,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
        "llama2_small",
    ),
    "mistral": (MISTRAL | SIZES | {"vocab_size": 607}, "mistral_small"),
    "qwen2": (QWEN2 | SIZES | {"vocab_size": 630}, "qwen_small"),
    "qwen3": (QWEN3 | SIZES | {"vocab_size": 630}, "qwen_small"),
    "qwen3_moe": (QWEN3_MOE | SIZES | {"vocab_size": 630}, "qwen_small"),
}
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k")


def tensor_shapes(config):
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[n] * config["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": [v, d], "model.norm.weight": [d]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [v, d]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        linears = {
            "self_attn.q_proj": [q, d],
            "self_attn.k_proj": [kv, d],
            "self_attn.v_proj": [kv, d],
            "self_attn.o_proj": [d, q],
        }
        experts = [f".experts.{e}" for e in range(config.get("num_experts", 0))]
        if experts:
            f = config["moe_intermediate_size"]
            shapes[at + "mlp.gate.weight"] = [len(experts), d]
        for expert in experts or [""]:
            linears |= {f"mlp{expert}.{name}": [f, d] for name in ("gate_proj", "up_proj")}
            linears[f"mlp{expert}.down_proj"] = [d, f]
        for name, shape in linears.items():
            shapes[at + name + ".weight"] = shape
            attention = name.startswith("self_attn")
            qwen2 = config["model_type"] == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj")
            if qwen2 or config.get("attention_bias" if attention else "mlp_bias"):
                shapes[at + name + ".bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[at + name + ".weight"] = [d]
        if config["model_type"].startswith("qwen3"):
            for name in ("q_norm", "k_norm"):
                shapes[at + f"self_attn.{name}.weight"] = [config["head_dim"]]
    return shapes


def random_tensors(shapes, seed=1):
    numbers = random.Random(seed)
    pool = [numbers.gauss(0, 0.05) for _ in range(1 << 16)]
    tensors = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        start = numbers.randrange(len(pool))
        turned = pool[start:] + pool[:start]
        values = (turned * (count // len(pool) + 1))[:count]
        tensors[name] = ("F32", shape, float_bytes(values))
    return tensors


class Gguf(EndToEnd):
    def write_model(self, name):
        config, tokenizer = MODELS[name]
        folder = self.folder / name
        shutil.copytree(TOKENIZERS / tokenizer, folder)
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", random_tensors(tensor_shapes(config)))
        return folder

    def write_adapter(self, base, name="adapter", **changes):
        config = json.loads((base / "config.json").read_text())
        shapes = {}
        for tensor, shape in tensor_shapes(config).items():
            if "_proj.weight" in tensor:
                rank = changes.get("rank_pattern", {}).get(tensor.split(".")[-2], 8)
                module = "base_model.model." + tensor.removesuffix(".weight")
                shapes |= {module + ".lora_A.weight": [rank, shape[1]], module + ".lora_B.weight": [shape[0], rank]}
        folder = self.folder / name
        folder.mkdir()
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        (folder / "adapter_config.json").write_text(
            json.dumps(
                {
                    "peft_type": "LORA",
                    "task_type": "CAUSAL_LM",
                    "base_model_name_or_path": str(base),
                    "r": 8,
                    "lora_alpha": 16,
                    "target_modules": targets,
                }
                | changes
            )
        )
        write_safetensors(folder / "adapter_model.safetensors", random_tensors(shapes, seed=2))
        return folder

    def export(self, *arguments, out):
        path = self.folder / out
        self.succeed("export", "gguf", *arguments, "--out", path)
        return path

    def refer(self, *arguments):
        done = subprocess.run(
            [PYTHON, "-W", "ignore", str(REFERENCE), *map(str, arguments)],
            capture_output=True,
            timeout=600,
            env=environment(),
        )
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr).decode()[-4000:])
        return done.stdout.decode()

    def test_models_of_every_architecture_and_type(self):
        # What a type makes of a matrix does not depend on the architecture, but for odd sizes and numbers of experts.
        kinds = {name: TYPES if name in ("llama", "odd", "qwen3_moe") else ("f16", "q4_k_m") for name in MODELS}
        for name in MODELS:
            folder = self.write_model(name)
            for kind in kinds[name]:
                with self.subTest(f"{name} {kind}"):
                    out = self.export("--model", folder, "--type", kind, out=f"{name}.{kind}.gguf")
                    self.assertIn("all equal", self.refer("model", folder, out, kind))
                    inspected = json.loads(self.succeed("inspect", out, "--json").out)
                    self.assertTrue(inspected["ok"])

    def test_adapters(self):
        for number, (base, changes) in enumerate(
            (
                ("llama", {}),
                ("llama", {"use_rslora": True}),
                ("mistral", {}),
                ("qwen3", {"alpha_pattern": {"down_proj": 40}, "rank_pattern": {"q_proj": 4}}),
                ("qwen3_moe", {"alpha_pattern": {"down_proj": 40}}),
            )
        ):
            with self.subTest(f"{base} {changes}"):
                folder = self.folder / base
                if not folder.exists():
                    self.write_model(base)
                adapter = self.write_adapter(folder, f"adapter{number}", **changes)
                out = self.export("--adapter", adapter, out=f"{number}.gguf")
                self.assertIn("all equal", self.refer("adapter", folder, out, adapter))
                small = self.export("--adapter", adapter, "--base", folder, "--type", "f16", out=f"{number}.f16.gguf")
                self.assertLess(small.stat().st_size, 0.6 * out.stat().st_size)

    def test_a_four_bit_base_is_dequantised(self):
        out = self.export("--model", NF4_MODEL, "--tokenizer", self.tiny_tokenizer(), out="nf4.gguf")
        kinds = json.loads(self.succeed("inspect", out, "--json").out)["kinds"]
        self.assertEqual(set(kinds), {"F32", "BF16"})

    def tiny_tokenizer(self):
        """Of 100 tokens, for models with small vocabularies."""
        folder = self.folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        tokenizer = json.loads((TOKENIZERS / "llama3_small" / "tokenizer.json").read_text())
        vocab = {chr(33 + i): i for i in range(90)} | {"ab": 90}
        tokenizer |= {
            "added_tokens": [],
            "post_processor": None,
            "model": tokenizer["model"] | {"vocab": vocab, "merges": [["a", "b"]]},
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return folder

    def test_mistakes(self):
        model = self.write_model("odd")
        out = self.folder / "m.gguf"
        export = lambda *words: ("export", "gguf", *words, "--out", out)
        self.fail_with(USAGE, "needs --model.path or --model.adapter_name_or_path", *export())
        nowhere = self.folder / "none" / "m.gguf"
        self.fail_with(RUNTIME, f"cannot create {nowhere}", "export", "gguf", "--model", model, "--out", nowhere)
        self.fail_with(INPUT, "600 tokens", *export("--model", NF4_MODEL, "--tokenizer", TOKENIZERS / "llama2_small"))
        self.fail_with(INPUT, "no tokenizer.json or tokenizer.model", *export("--model", NF4_MODEL))
        adapter = self.write_adapter(model)
        self.fail_with(USAGE, "Give it with --model.adapter_name_or_path", *export("--model", adapter))
        self.fail_with(USAGE, "f32, f16, bf16 or q8_0", *export("--adapter", adapter, "--type", "q4_0"))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(
            json.dumps(config | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
        )
        self.fail_with(INPUT, "gpt2", *export("--model", model))
        (model / "config.json").write_text(json.dumps(config))
        self.assertFalse(out.exists())
        self.succeed(*export("--model", model))
        before = out.read_bytes()
        self.fail_with(USAGE, "exists", *export("--model", model))
        self.assertEqual(out.read_bytes(), before)

    def test_a_full_disk_leaves_nothing(self):
        import resource

        model = self.write_model("odd")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        out = self.folder / "m.gguf"
        self.fail_with(RUNTIME, str(out), "export", "gguf", "--model", model, "--out", out, preexec=limit)
        self.assertEqual(list(self.folder.glob("m.gguf*")), [])


if __name__ == "__main__":
    main_or_skip(PYTHON, *MODULES, setup="scripts/setup.sh")
