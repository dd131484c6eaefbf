"""What the tests of prune share."""

import json

from support import QWEN3, EndToEnd, float_bytes, floats, read_safetensors, write_safetensors

# Eight experts, of which a token passes two; one layer has none.
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 6,
}


def changed(folder, change):
    """The model with `change(name, values)` (None: as it is) in place of each tensor's values, in fp32."""
    tensors = read_safetensors(folder / "model.safetensors")
    for name, (dtype, shape, data) in tensors.items():
        values = change(name, floats(data), shape)
        if values is not None:
            tensors[name] = (dtype, shape, float_bytes(values))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def identity(folder, layer):
    """Makes the layer pass on its input."""
    ends = tuple(f"layers.{layer}.{module}.weight" for module in ("self_attn.o_proj", "mlp.down_proj"))
    return changed(folder, lambda name, values, _: [0.0] * len(values) if name.endswith(ends) else None)


class Pruning(EndToEnd):
    def prune(self, base, *options, rows=None, out="pruned"):
        """The folder, its report and the log."""
        rows = rows or self.rows(8, name="calibration.jsonl")
        result = self.succeed(*self.words(base, rows, *options, out=out))
        folder = self.folder / out
        self.assertEqual([], [p.name for p in self.folder.iterdir() if ".tmp-" in p.name])
        return folder, json.loads((folder / "prune_report.json").read_text()), result.err

    def words(self, base, rows, *options, out="pruned"):
        cpu = ["--device", "cpu", *(["--dtype", "float32"] if "--dtype" not in options else [])]
        return ["prune", "--model.path", base, "--out", self.folder / out, "--calibration", rows, *cpu, *options]

    def loss(self, folder, rows, *options):
        scores = self.score(folder, rows, *options)
        logprobs = [p for row in scores for p in row["logprobs"] if p is not None]
        return -sum(logprobs) / len(logprobs)

    def config(self, folder):
        return json.loads((folder / "config.json").read_text())

    def tensors(self, folder):
        return read_safetensors(folder / "model.safetensors")
