"""What the tests of merge and quantize share: kinds of adapters, and merging them."""

import lzma
import shutil

from support import EndToEnd, GOLDEN, LOGITS_TOLERANCE

PATTERNS = [
    "--r",
    "4",
    "--rank_pattern",
    '{"v_proj": 2, "layers.1.mlp.down_proj": 6}',
    "--alpha_pattern",
    '{"layers.1.self_attn.q_proj": 5}',
    "--target_modules",
    "q_proj,v_proj,down_proj",
]
SAVED = ["--r", "4", "--modules_to_save", "embed_tokens,lm_head", "--layers_to_transform", "1"]
KINDS = {
    "lora": ["--r", "4", "--lora_alpha", "16"],
    "rank-stabilised": ["--r", "4", "--use_rslora", "true"],
    "DoRA": ["--r", "4", "--use_dora", "true"],
    "patterns": PATTERNS,
    "saved modules": SAVED,
    "all of it": [*PATTERNS, "--use_rslora", "true", "--modules_to_save", "lm_head"],
}


class Merging(EndToEnd):
    def adapter(self, base, *options, vocab=128, name="adapter"):
        """An adapter that matters: some steps with a large rate."""
        rows = self.rows(8, name=f"{name}.jsonl", vocab=vocab)
        return self.train(base, rows, "--max_steps", "4", "--learning_rate", "0.03", *options, out=name)

    def merge(self, adapter, base, *options, out="merged"):
        result = self.succeed("merge", "--adapter", adapter, "--base", base, "--out", self.folder / out, *options)
        self.assertEqual([], [p.name for p in self.folder.iterdir() if ".tmp-" in p.name])
        return self.folder / out, result

    def same_logits(self, base, adapter, merged, *, vocab=128, base_options=()):
        rows = self.rows(4, name="probe.jsonl", vocab=vocab, seed=5)
        adapted, plain, found = (
            self.logits(base, rows, adapter, *base_options),
            self.logits(base, rows),
            self.logits(merged, rows),
        )
        self.assertGreater(self.distance(adapted, plain), 100 * LOGITS_TOLERANCE, "the adapter must matter")
        self.assertLess(self.distance(adapted, found), LOGITS_TOLERANCE)

    def golden_sixteen_bit(self, name="sixteen"):
        source = GOLDEN / "models" / "small_llama" / "bf16"
        folder = self.folder / name
        folder.mkdir()
        shutil.copy(source / "config.json", folder)
        (folder / "model.safetensors").write_bytes(lzma.decompress((source / "model.safetensors.xz").read_bytes()))
        return folder
