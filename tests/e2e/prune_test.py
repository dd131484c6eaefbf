"""prune: exact oracles for layers, neurons and weights; what training recovers; what is refused. transformers: transformers_test.py."""

import json
import math
import random
import re
import subprocess
import sys

from pruning import Pruning, changed, identity
from support import (
    GOLDEN,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    MISTRAL,
    QWEN3,
    SOURCE,
    TEXT_LLAMA,
    USAGE,
    floats,
    main,
    model,
    token_rows,
    write_rows,
)

FOUR = {"num_hidden_layers": 4}


class Prune(Pruning):
    def test_a_layer_that_does_nothing_goes_first_and_nothing_changes(self):
        rows = self.rows(4, name="probe.jsonl")
        for config in (LLAMA, QWEN3, MISTRAL):
            name = config["model_type"]
            with self.subTest(name):
                base = identity(self.copied_model(model(config | FOUR), name), 2)
                pruned, report, log = self.prune(base, "--layers", "3", out=f"{name} pruned")
                layers = report["num_hidden_layers"]
                self.assertEqual((layers["before"], layers["after"], layers["removed"]), (4, 3, [2]))
                self.assertLess(abs(layers["block_influence"][2]), 1e-12)
                self.assertGreater(min(x for i, x in enumerate(layers["block_influence"]) if i != 2), 1e-6)
                self.assertRegex(log, r"\n +2 +\S+ +removed")
                self.assertEqual(report["loss_after"], report["loss_before"])
                self.assertAlmostEqual(report["loss_after"], self.loss(pruned, self.folder / "calibration.jsonl"), 5)
                self.assertEqual(self.logits(pruned, rows), self.logits(base, rows))
                found, expected = self.config(pruned), self.config(base)
                self.assertEqual(found.pop("num_hidden_layers"), 3)
                for key in ("num_hidden_layers", "layer_types"):
                    expected.pop(key, None), found.pop(key, None)
                self.assertEqual(found, expected)
                self.assertIn("problems      none", self.succeed("inspect", pruned).out)

    def test_neurons_that_do_nothing_go_first(self):
        columns, rows_of = (3, 10, 63), (0, 5, 33)  # zeros in down, and in gate or up

        def change(name, values, shape):
            width = shape[-1]
            if name.endswith("down_proj.weight"):
                return [0.0 if i % width in columns else x for i, x in enumerate(values)]
            if name.endswith(("layers.0.mlp.gate_proj.weight", "layers.1.mlp.up_proj.weight")):
                return [0.0 if i // width in rows_of else x for i, x in enumerate(values)]
            return None

        base = changed(self.copied_model(model(LLAMA)), change)
        pruned, report, log = self.prune(base, "--intermediate", "58")
        found = report["intermediate_size"]
        self.assertEqual(found["removed"], [sorted(columns + rows_of)] * 2)
        self.assertEqual(found["kept_share"], [1, 1])
        self.assertEqual([len(row) for row in found["importance"]], [64, 64])
        self.assertIn("no multiple of 128", log)
        self.assertEqual(self.config(pruned)["intermediate_size"], 58)
        rows = self.rows(4, name="probe.jsonl")
        self.assertLess(self.distance(self.logits(pruned, rows), self.logits(base, rows)), 1e-6)

    def test_layers_and_neurons_at_once_and_again(self):
        base = self.copied_model(identity(self.copied_model(model(LLAMA | FOUR), "first"), 0))
        (base / "generation_config.json").write_text('{"temperature": 0.7}')
        pruned, report, log = self.prune(base, "--layers", "3", "--intermediate", "40", "--max_shard_size", "20KB")
        self.assertEqual(report["num_hidden_layers"]["removed"], [0])
        self.assertEqual(len(report["intermediate_size"]["importance"]), 3)
        self.assertIn(f"loss {report['loss_after']:.4f}, before {report['loss_before']:.4f} (", log)
        self.assertGreater(len(list(pruned.glob("model-*.safetensors"))), 1)
        self.assertEqual((pruned / "generation_config.json").read_text(), '{"temperature": 0.7}')
        before = {p.name: p.read_bytes() for p in pruned.iterdir()}
        again, report, _ = self.prune(pruned, "--layers", "1", "--method", "last", out="again")
        self.assertEqual(report["num_hidden_layers"]["removed"], [0, 1])
        self.assertEqual({p.name: p.read_bytes() for p in pruned.iterdir()}, before)
        config = self.config(again)
        self.assertEqual((config["num_hidden_layers"], config["intermediate_size"]), (1, 40))
        self.assertAlmostEqual(report["loss_after"], self.loss(again, self.folder / "calibration.jsonl"), 5)

    def test_scan_removes_what_the_loss_misses_least(self):
        base = model(LLAMA | FOUR)
        rows = write_rows(self.folder / "mixed.jsonl", [{"input_ids": [7]}, *token_rows(6), {"input_ids": [9]}])
        pruned, report, log = self.prune(base, "--layers", "2", "--method", "scan", rows=rows)
        self.assertIn("scan: 2 layers, 7 losses", log)
        first, second = report["num_hidden_layers"]["scan"]
        self.assertEqual((len(first["loss_without"]), len(second["loss_without"])), (4, 3))
        for step in (first, second):
            self.assertEqual(step["loss"], min(step["loss_without"].values()))
            self.assertEqual(step["loss_without"][str(step["removed"])], step["loss"])
        self.assertAlmostEqual(report["loss_after"], second["loss"], 5)
        self.assertAlmostEqual(self.loss(pruned, rows), second["loss"], 5)
        one, report, _ = self.prune(base, "--layers", "3", rows=rows, out="one")
        (removed,) = report["num_hidden_layers"]["removed"]
        self.assertAlmostEqual(report["loss_after"], first["loss_without"][str(removed)], 5)

    def test_wanda(self):
        base = model(LLAMA)
        rows = self.rows(8, name="calibration.jsonl")
        weights = {name: (shape, floats(data)) for name, (_, shape, data) in self.tensors(base).items()}
        squares = [0.0] * 32
        for row in token_rows(8):
            for token in row["input_ids"]:
                x = weights["model.embed_tokens.weight"][1][32 * token : 32 * token + 32]
                scale = 1 / math.sqrt(sum(v * v for v in x) / 32 + LLAMA["rms_norm_eps"])
                gain = weights["model.layers.0.input_layernorm.weight"][1]
                squares = [s + (v * scale * g) ** 2 for s, v, g in zip(squares, x, gain)]
        norms = [math.sqrt(s) for s in squares]
        for pattern, group in (("0.5", None), ("2:4", 4)):
            pruned, report, log = self.prune(base, "--wanda", pattern, rows=rows, out=pattern)
            self.assertEqual(report["wanda"], pattern)
            self.assertIn("no loader runs it faster", log)
            found = self.tensors(pruned)
            self.assertEqual(found.keys(), weights.keys())
            for name, (_, shape, data) in found.items():
                values, original = floats(data), weights[name][1]
                if "proj" not in name:
                    self.assertEqual(values, original)
                    continue
                width = group or shape[1]
                for i in range(0, len(values), width):
                    kept = [k for k in range(i, i + width) if values[k] != 0]
                    self.assertEqual(len(kept), width // 2, name)
                    self.assertTrue(all(values[k] == original[k] for k in kept))
                    if name in [f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"]:
                        value = lambda k: abs(original[k]) * norms[k % shape[1]]
                        self.assertEqual(kept, sorted(sorted(range(i, i + width), key=value)[width // 2 :]), name)

    def test_long_rows_pass_the_mlps_in_tiles_where_memory_is_short(self):
        base = model(LLAMA | FOUR | {"intermediate_size": 1024, "max_position_embeddings": 512})
        rows = write_rows(
            self.folder / "long.jsonl", [{"input_ids": [(7 * i + k) % 128 for i in range(400)]} for k in range(22)]
        )
        words = [
            "--layers",
            "3",
            "--intermediate",
            "512",
            "--per_device_train_batch_size",
            "20",
            "--max_seq_length",
            "400",
        ]
        _, whole, log = self.prune(base, *words, rows=rows, out="whole")
        planned = re.search(r"planned (\S+) MiB on cpu for passes of up to 8000 tokens\n", log)
        self.assertIsNotNone(planned, log)
        self.assertRegex(log, r"the process took \S+ .iB at most, \S+ MiB of it planned")
        self.assertRegex(
            log, r"time: read \S+ s, pass \S+ s \(\d+ tokens/s\), score \S+ s, write \S+ s, loss of the result"
        )
        less = ["--max_memory", json.dumps({"cpu": f"{int(float(planned[1])) - 10}MiB"})]
        _, tiled, log = self.prune(base, *words, *less, rows=rows, out="tiled")
        self.assertRegex(log, r"for passes of up to 8000 tokens, 4096 at a time through an MLP")
        for found, expected in zip(
            tiled["num_hidden_layers"]["block_influence"], whole["num_hidden_layers"]["block_influence"]
        ):
            self.assertAlmostEqual(found, expected, delta=1e-5 * expected)
        self.assertEqual(tiled["num_hidden_layers"]["removed"], whole["num_hidden_layers"]["removed"])
        for found, expected in zip(
            tiled["intermediate_size"]["importance"], whole["intermediate_size"]["importance"], strict=True
        ):
            for one, other in zip(found, expected, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-3 * other)  # the report has four digits
        self.assertAlmostEqual(tiled["loss_before"], whole["loss_before"], 5)

    def test_other_types_of_weights(self):
        shape = LLAMA | FOUR | {"hidden_size": 64, "intermediate_size": 128}
        plain = identity(self.copied_model(model(shape)), 1)
        rows = self.rows(4, name="probe.jsonl")
        for kind in ("nf4", "int8"):
            quantised = self.folder / kind
            self.succeed("quantize", "--model", plain, "--out", quantised, "--type", kind)
            pruned, report, log = self.prune(quantised, "--layers", "3", out=f"{kind} pruned")
            self.assertIn(f"{'4' if kind == 'nf4' else '8'}-bit weights are dequantised", log)
            self.assertEqual(report["num_hidden_layers"]["removed"], [1])
            self.assertNotIn("quantization_config", self.config(pruned))
            self.assertEqual({dtype for dtype, _, _ in self.tensors(pruned).values()}, {"F32"})
            self.assertLess(self.distance(self.logits(pruned, rows), self.logits(quantised, rows)), 1e-5)
        for dtype, name in (("float16", "F16"), ("bfloat16", "BF16")):
            half = model(LLAMA | FOUR, dtype=dtype)
            pruned, report, _ = self.prune(half, "--layers", "2", "--method", "last", out=dtype)
            self.assertEqual(report["num_hidden_layers"]["removed"], [1, 2])
            self.assertEqual(self.config(pruned)["torch_dtype"], dtype)
            found, before = self.tensors(pruned), self.tensors(half)
            self.assertEqual({kind for kind, _, _ in found.values()}, {name})
            for tensor, (_, _, data) in found.items():
                self.assertEqual(data, before[tensor.replace("layers.1.", "layers.3.")][2], tensor)

    def test_a_pruned_model_is_a_model_like_others(self):
        base = model(TEXT_LLAMA | FOUR, dtype="bfloat16", tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "texts.jsonl", [{"text": "The term is one year."}] * 4)
        pruned, report, _ = self.prune(base, "--layers", "3", "--intermediate", "32", rows=rows)
        self.assertEqual((pruned / "tokenizer.json").read_bytes(), (LEGAL_BASE / "tokenizer.json").read_bytes())
        tokenizer = GOLDEN / "tokenizer" / "llama3_small"
        gguf = self.folder / "pruned.gguf"
        self.succeed("export", "gguf", "--model", pruned, "--tokenizer", tokenizer, "--out", gguf, "--type", "q8_0")
        told = json.loads(self.succeed("inspect", gguf, "--json").out)
        self.assertTrue(told["ok"])
        self.assertEqual(told["fields"]["llama.block_count"], "3")
        self.assertEqual(told["fields"]["llama.feed_forward_length"], "32")
        self.succeed("generate", "--model.path", pruned, "--prompt", "The", "--max_new_tokens", "2", "--device", "cpu")
        self.train(pruned, rows, "--max_steps", "1")

    def test_what_is_removed_by_influence_matters_little_and_is_recovered(self):
        """On the example's base, which knows its corpus; docs/performance/methods.md has what 300 steps recover."""
        subprocess.run(
            [sys.executable, SOURCE / "examples" / "legal" / "make_corpus.py", "--out", self.folder / "corpus.jsonl"],
            check=True,
            capture_output=True,
        )
        texts = (self.folder / "corpus.jsonl").read_text().splitlines()
        random.Random(1).shuffle(texts)
        probe, rows = write_rows(self.folder / "probe", texts[:30]), write_rows(self.folder / "rows", texts[30:230])
        shape = ["--data.format", "text", "--max_seq_length", "96"]
        scanned = ["--layers", "3", "--method", "scan", *shape]
        _, report, _ = self.prune(LEGAL_BASE, *scanned, rows=probe, out="scan")
        losses = {int(k): loss for k, loss in report["num_hidden_layers"]["scan"][0]["loss_without"].items()}
        pruned, report, _ = self.prune(LEGAL_BASE, "--layers", "3", *shape, rows=probe)
        (removed,) = report["num_hidden_layers"]["removed"]
        before, after = report["loss_before"], report["loss_after"]
        self.assertAlmostEqual(after, losses[removed], 4)
        self.assertLess(
            5 * (after - before), max(losses.values()) - before, "the worst choice costs many times as much"
        )
        words = ["--objective", "distill", "--distill.teacher", LEGAL_BASE, "--distill.alpha", "1", *shape]
        words += ["--finetuning_type", "full", "--learning_rate", "2e-4", "--lr_scheduler_type", "cosine"]
        words += ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1", "--max_steps", "40"]
        healed = self.train(pruned, rows, *words, out="healed")
        recovered = (after - self.loss(healed, probe, *shape)) / (after - before)
        self.assertGreater(recovered, 0.2)

    def test_what_is_refused(self):
        base, rows = model(LLAMA), self.rows(4)
        for options, parts in (
            (["--layers", "2"], ["the model has 2 layers", "from 1 to 1"]),
            (["--layers", "0"], "--layers"),
            (["--intermediate", "64"], ["64 neurons", "below 64"]),
            (["--layers", "1", "--method", "reap"], "--method reap needs --experts"),
            (["--experts", "4", "--method", "last"], ["--method", "--layers"]),
            (["--experts", "4", "--layers", "1"], ["experts", "layers", "second run"]),
            (["--experts", "4", "--intermediate", "8"], ["experts", "intermediate"]),
            (["--experts", "4", "--wanda", "0.5"], ["experts", "wanda"]),
            (["--method", "last"], "layers"),
            ([], "--layers, --intermediate, --experts or --wanda"),
            (["--wanda", "0.5", "--layers", "1"], ["wanda", "layers"]),
            (["--wanda", "0.7"], "--wanda"),
            (["--layers", "1", "--adapter_name_or_path", "some"], ["some", "Merge the adapter first"]),
            (["--layers", "1", "--data.train_file", rows], "does not read data.train_file"),
        ):
            with self.subTest(options):
                self.fail_with(USAGE, parts, *self.words(base, rows, *options))
        odd = model(LLAMA | {"intermediate_size": 66})
        self.fail_with(USAGE, "66 columns", *self.words(odd, rows, "--wanda", "2:4"))
        taken = self.copied_model(base, "taken")
        before = {p.name: p.read_bytes() for p in taken.iterdir()}
        self.fail_with(USAGE, "taken", *self.words(taken, rows, "--layers", "1", out="taken"))
        self.assertEqual({p.name: p.read_bytes() for p in taken.iterdir()}, before)
        for name, content, parts in (
            ("empty.jsonl", "", "empty.jsonl"),
            ("short.jsonl", '{"input_ids": [5]}\n', ["short.jsonl", "no row has two tokens"]),
            ("none.jsonl", '{"input_ids": []}\n', "none.jsonl"),
            ("ids.jsonl", '{"input_ids": [5, 500]}\n', ["ids.jsonl", "500"]),
            ("words.jsonl", "no JSON\n", "words.jsonl"),
        ):
            with self.subTest(name):
                (self.folder / name).write_text(content)
                self.fail_with(INPUT, parts, *self.words(base, self.folder / name, "--layers", "1"))
        self.fail_with(INPUT, "missing.jsonl", *self.words(base, self.folder / "missing.jsonl", "--layers", "1"))
        adapter = self.train(base, rows, "--max_steps", "1", out="adapter")
        of_run = ["prune", adapter / "run_config.json", "--out", self.folder / "pruned", "--calibration", rows]
        self.fail_with(USAGE, "Merge the adapter first", *of_run, "--layers", "1")
        self.fail_with(INPUT, "adapter", *self.words(adapter, rows, "--layers", "1"))
        listed = self.copied_model(base, "listed")
        (listed / "config.json").write_text(json.dumps(LLAMA | {"moe_layers": [1]}))
        self.fail_with(INPUT, "moe_layers", *self.words(listed, rows, "--layers", "1"))
        self.assertFalse((self.folder / "pruned").exists())


if __name__ == "__main__":
    main()
