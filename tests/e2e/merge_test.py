"""merge and quantize: merged models give the logits of base and adapter. What transformers makes of them: transformers_test.py."""

import json
import resource
import subprocess

from merge_support import KINDS, Merging
from support import (
    FP32,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    OK,
    PROGRAM,
    QWEN3,
    RUNTIME,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    read_safetensors,
    write_rows,
)


class Merge(Merging):
    def test_every_kind_of_adapter_on_every_kind_of_base(self):
        bases = {
            "bfloat16": (model(LLAMA, dtype="bfloat16"), 128, list(KINDS)),
            "tied": (model(QWEN3), 128, ["lora", "saved modules", "all of it"]),
            "4 bit as bitsandbytes wrote it": (NF4_MODEL, 256, ["patterns", "all of it"]),
        }
        number = 0
        for base_name, (base, vocab, kinds) in bases.items():
            for kind in kinds:
                options = KINDS[kind]
                with self.subTest(f"{kind} on {base_name}"):
                    number += 1
                    adapter = self.adapter(base, *options, vocab=vocab, name=f"adapter{number}")
                    merged, result = self.merge(adapter, base, "--dtype", "fp32", out=f"merged{number}")
                    self.assertIn("logits of the merged model against base and adapter", result.err)
                    self.same_logits(base, adapter, merged, vocab=vocab)
                    config = json.loads((merged / "config.json").read_text())
                    self.assertNotIn("quantization_config", config)
                    self.assertEqual(
                        config["tie_word_embeddings"], base_name == "tied" and "--modules_to_save" not in options
                    )
                    self.succeed("inspect", merged)

    def test_scaled_positions_stay_with_the_adapter_and_the_merged_model(self):
        base, scaling = model(LLAMA, dtype="bfloat16"), {"rope_type": "linear", "factor": 2.0}
        length = ["--max_seq_length", "100"]
        self.fail_with(
            USAGE,
            ["64 positions", "rope_scaling", '"factor": 2.0'],
            *self.train_arguments(base, write_rows(self.folder / "rows.jsonl", [{"input_ids": [5] * 90}])),
            *length,
        )
        adapter = self.adapter(base, "--rope_scaling", json.dumps(scaling), *length)
        self.assertEqual(json.loads((adapter / "adapter_config.json").read_text())["rope_scaling"], scaling)
        merged, _ = self.merge(adapter, base, "--dtype", "fp32")
        self.same_logits(base, adapter, merged)
        config = json.loads((merged / "config.json").read_text())
        self.assertEqual(config["max_position_embeddings"], 128)
        found = config.get("rope_parameters") or config["rope_scaling"]
        self.assertEqual({key: found[key] for key in scaling}, scaling)

    def test_into_what_loading_in_4_bit_made_of_the_base(self):
        base = model(LLAMA, dtype="bfloat16")
        adapter = self.adapter(base, "--r", "4", "--load_in_4bit", "true")
        merged, result = self.merge(adapter, base, "--load_in_4bit", "--dtype", "fp32")
        self.assertNotIn(" W ", result.err)
        self.same_logits(base, adapter, merged, base_options=["--load_in_4bit", "true"])
        as_trained, result = self.merge(adapter, base, "--dtype", "fp32", out="as_trained")
        self.assertIn("merging into the values that the run trained on", result.err)
        self.assertNotIn(" W ", result.err)
        same = [(folder / "model.safetensors").read_bytes() for folder in (merged, as_trained)]
        self.assertEqual(same[0], same[1])
        _, result = self.merge(adapter, base, "--load_in_4bit", "false", "--dtype", "fp32", out="plain")
        self.assertIn("quantised to 4 bit while loading, and is merged into 16/32-bit weights", result.err)
        self.assertIn("--load_in_4bit", result.err)
        in_8_bit = self.adapter(base, "--r", "4", "--load_in_8bit", "true", name="in8")
        merged, result = self.merge(in_8_bit, base, "--dtype", "fp32", out="merged8")
        self.same_logits(base, in_8_bit, merged, base_options=["--load_in_8bit", "true"])

    def test_another_base_than_the_trained_one_is_said(self):
        adapter = self.adapter(NF4_MODEL, "--r", "4", vocab=256)
        plain = self.golden_sixteen_bit()
        merged, result = self.merge(adapter, plain, "--dtype", "fp32")
        self.assertIn(" in 4 bit, and is merged into 16/32-bit weights", result.err)
        self.same_logits(plain, adapter, merged, vocab=256)
        onto_plain = self.adapter(plain, "--r", "4", vocab=256, name="other")
        _, result = self.merge(onto_plain, NF4_MODEL, out="reverse")
        self.assertIn("in 16/32 bit, and is merged into 4-bit weights", result.err)
        merged, result = self.merge(adapter, NF4_MODEL, out="same")
        self.assertNotIn(" W ", result.err)

    def test_the_base_is_by_default_the_one_that_the_adapter_names(self):
        base = model(LLAMA)
        adapter = self.adapter(base, "--r", "4")
        self.succeed("merge", "--adapter", adapter, "--out", self.folder / "merged", "--dtype", "fp32")
        self.same_logits(base, adapter, self.folder / "merged")

    def test_types_and_shards(self):
        base = model(LLAMA, dtype="bfloat16")
        adapter = self.adapter(base, "--r", "4")
        for dtype, name, in_config in (
            ("bf16", "BF16", "bfloat16"),
            ("fp16", "F16", "float16"),
            ("fp32", "F32", "float32"),
            ("auto", "BF16", "bfloat16"),
        ):
            with self.subTest(dtype):
                merged, _ = self.merge(adapter, base, "--dtype", dtype, out=dtype)
                self.assertEqual(
                    {kind for kind, _, _ in read_safetensors(merged / "model.safetensors").values()}, {name}
                )
                self.assertEqual(json.loads((merged / "config.json").read_text())["torch_dtype"], in_config)
        shards, result = self.merge(adapter, base, "--max_shard_size", "20KB", out="shards")
        index = json.loads((shards / "model.safetensors.index.json").read_text())
        together = {}
        for file in sorted(set(index["weight_map"].values())):
            tensors = read_safetensors(shards / file)
            self.assertEqual(set(tensors), {tensor for tensor, place in index["weight_map"].items() if place == file})
            self.assertTrue(len(tensors) == 1 or sum(len(data) for _, _, data in tensors.values()) <= 20_000)
            together |= tensors
        self.assertEqual(together, read_safetensors(self.folder / "bf16" / "model.safetensors"))
        self.assertEqual(
            sorted(p.name for p in shards.glob("*.safetensors")), sorted(set(index["weight_map"].values()))
        )

    def test_as_4_bit(self):
        base = model(LLAMA, dtype="bfloat16")
        adapter = self.adapter(base, "--r", "4")
        merged, result = self.merge(adapter, base, "--dtype", "nf4")
        self.assertIn("(at most 0.7)", result.err)
        self.assertTrue(json.loads((merged / "config.json").read_text())["quantization_config"]["load_in_4bit"])
        # What this program makes of the merged 32-bit weights while loading is the same.
        plain, _ = self.merge(adapter, base, "--dtype", "fp32", out="plain")
        rows = self.rows(4)
        self.assertEqual(self.logits(merged, rows), self.logits(plain, rows, None, "--load_in_4bit", "true"))

    def test_tokenizer_and_generation_config_come_along(self):
        base = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE), "base")
        (base / "generation_config.json").write_text('{"eos_token_id": 1}')
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is one year."}] * 4)
        adapter = self.train(base, rows, "--r", "4")
        (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}")
        (adapter / "decision_calibration.json").write_text("{}")
        for texts in ([], ["--verify", "Each party may end this agreement."], ["--verify", rows]):
            merged, result = self.merge(adapter, base, *texts, out=f"merged{len(texts)}{len(str(texts))}")
            self.assertIn("logits of the merged model", result.err)
            for file in ("tokenizer.json", "generation_config.json"):
                self.assertEqual((merged / file).read_bytes(), (base / file).read_bytes())
            self.assertEqual(
                (merged / "chat_template.jinja").read_text(),
                "{{ messages[0].content }}",
                "the adapter's tokenizer files win",
            )
            self.assertEqual((merged / "decision_calibration.json").read_text(), "{}")
        self.succeed(
            "score",
            "--model.path",
            merged,
            "--data.train_file",
            rows,
            "--out",
            self.folder / "s",
            "--device",
            "cpu",
            *FP32,
        )

    def test_a_model_that_differs_is_not_given_its_name(self):
        base = model(LLAMA)
        adapter = self.adapter(base, "--r", "4")
        out = self.folder / "merged"
        result = self.fail_with(
            RUNTIME,
            ["relative difference", "it stays in"],
            "merge",
            "--adapter",
            adapter,
            "--base",
            base,
            "--out",
            out,
            "--dtype",
            "bf16",
            "--tolerance",
            "1e-9",
        )
        self.assertFalse(out.exists())
        kept = [p for p in self.folder.iterdir() if p.name.startswith("merged.unverified-")]
        self.assertEqual(len(kept), 1)
        self.assertIn(str(kept[0]), result.err)
        self.succeed("inspect", kept[0])
        self.fail_with(
            INPUT,
            ["could not be verified", str(self.folder), "tokenizer"],
            "merge",
            "--adapter",
            adapter,
            "--base",
            base,
            "--out",
            self.folder / "second",
            "--verify",
            "a text without a tokenizer",
        )

    def test_refusals(self):
        base = model(LLAMA)
        adapter = self.adapter(base, "--r", "4")
        before = sorted(self.folder.iterdir())

        def refused(code, parts, *options, out=self.folder / "merged"):
            self.fail_with(code, parts, "merge", "--out", out, *options)
            self.assertEqual(sorted(self.folder.iterdir()), before, "nothing may stay")

        refused(USAGE, ["not empty"], "--adapter", adapter, "--base", base, out=adapter)
        refused(USAGE, ["not a folder"], "--adapter", adapter, "--base", base, out=self.folder / "adapter.jsonl")
        refused(
            USAGE,
            ["--no_verify cannot be combined with --verify"],
            "--adapter",
            adapter,
            "--base",
            base,
            "--verify",
            "x",
            "--no_verify",
        )
        refused(USAGE, ["--max_shard_size", "5XB"], "--adapter", adapter, "--base", base, "--max_shard_size", "5XB")
        refused(USAGE, ["--device", "tpu"], "--adapter", adapter, "--base", base, "--device", "tpu")
        refused(INPUT, ["no such file or folder"], "--adapter", adapter, "--base", self.folder / "nowhere")
        refused(INPUT, ["nowhere: no such file or folder"], "--adapter", self.folder / "nowhere", "--base", base)
        refused(
            INPUT,
            ["wrong type or shape", "q_proj.lora_A", "[4, 128]", "[4, 32]"],
            "--adapter",
            adapter,
            "--base",
            NF4_MODEL,
        )
        shallow = model(LLAMA | {"num_hidden_layers": 1})
        refused(INPUT, ["unknown tensors", "layers.1"], "--adapter", adapter, "--base", shallow)

    def test_a_full_disk(self):
        base = model(LLAMA)
        adapter = self.adapter(base, "--r", "4")
        before = sorted(self.folder.iterdir())
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        self.fail_with(
            RUNTIME,
            ["model.safetensors", "File too large"],
            "merge",
            "--adapter",
            adapter,
            "--base",
            base,
            "--out",
            self.folder / "merged",
            preexec=limit,
        )
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_holds_less_than_two_layers(self):
        shape = LLAMA | {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 16000,
        }
        layer = 2 * (1024 * 1024 * 2 + 1024 * 256 * 2 + 3 * 1024 * 4096)
        base = model(shape, dtype="bfloat16")
        rows = self.rows(4)
        adapter = self.train(base, rows, "--max_steps", "1", "--r", "16")
        for dtype in ("bf16", "nf4"):
            with self.subTest(dtype):
                code = (
                    "import resource, subprocess, sys; c = subprocess.run(sys.argv[1:], capture_output=True).returncode; "
                    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(c)"
                )
                peaks = []
                for options in (
                    ["--help"],
                    [
                        "merge",
                        "--adapter",
                        adapter,
                        "--base",
                        base,
                        "--out",
                        self.folder / dtype,
                        "--dtype",
                        dtype,
                        "--no_verify",
                    ],
                ):
                    done = subprocess.run(
                        ["python3", "-c", code, PROGRAM, *map(str, options)], capture_output=True, text=True
                    )
                    self.assertEqual(done.returncode, OK, done.stderr)
                    peaks.append(int(done.stdout) * 1024)
                size = sum(p.stat().st_size for p in (self.folder / dtype).glob("*.safetensors"))
                print(
                    f"{dtype}: {size / 1e6:.0f} MB written, {(peaks[1] - peaks[0]) / 1e6:.1f} MB held, a layer has {layer / 1e6:.1f} MB"
                )
                self.assertLess(peaks[1] - peaks[0], 2 * layer)


if __name__ == "__main__":
    main()
