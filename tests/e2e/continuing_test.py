"""Runs that continue from an adapter, and runs that train all weights."""

import json
import shutil

from support import (
    EndToEnd,
    INPUT,
    LLAMA,
    LEGAL_BASE,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    read_safetensors,
    write_rows,
    write_safetensors,
)


class Continuing(EndToEnd):
    def test_an_adapter_is_taken_up_where_it_was_left(self):
        base, rows = model(LLAMA), self.rows(8)
        first = self.train(
            base, rows, "--r", "4", "--lora_alpha", "8", "--target_modules", "q_proj,down_proj", out="first"
        )
        second = self.train(
            base,
            rows,
            "--adapter_name_or_path",
            first,
            "--max_steps",
            "1",
            "--per_device_train_batch_size",
            "8",
            "--gradient_accumulation_steps",
            "1",
            out="second",
        )
        scores = self.score(base, rows, "--adapter_name_or_path", first)
        mean = sum(s["loss"] * s["n_labels"] for s in scores) / sum(s["n_labels"] for s in scores)
        self.assertAlmostEqual(self.steps(second)[0]["loss"], mean, places=5)
        config = json.loads((second / "adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"], config["target_modules"]), (4, 8, ["down_proj", "q_proj"]))

    def test_a_contradicting_option_is_refused(self):
        base, rows = model(LLAMA), self.rows(8)
        first = self.train(base, rows, "--r", "4", "--max_steps", "1", out="first")
        for option, value in (("r", "8"), ("lora_alpha", "3"), ("target_modules", "q_proj"), ("use_rslora", "true")):
            self.fail_with(
                USAGE,
                [f"lora.{option}", str(first)],
                *self.train_arguments(base, rows, "--adapter_name_or_path", first, f"--{option}", value, out="second"),
            )
        self.train(
            base, rows, "--adapter_name_or_path", first, "--r", "4", "--max_steps", "1", out="second"
        )  # says the same

    def test_patterns_and_saved_modules_survive(self):
        base, rows = model(LLAMA), self.rows(8)
        first = self.train(
            base,
            rows,
            "--r",
            "4",
            "--rank_pattern",
            '{"v_proj": 2}',
            "--alpha_pattern",
            '{"layers.1.self_attn.q_proj": 5}',
            "--modules_to_save",
            "lm_head",
            "--use_rslora",
            "true",
            out="first",
        )
        tensors = read_safetensors(first / "adapter_model.safetensors")
        self.assertEqual(tensors["base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"][1], [2, 32])
        self.assertIn("base_model.model.lm_head.weight", tensors)
        second = self.train(base, rows, "--adapter_name_or_path", first, "--max_steps", "1", out="second")
        configs = [json.loads((f / "adapter_config.json").read_text()) for f in (first, second)]
        self.assertEqual(*configs)

    def test_embeddings_that_peft_stored_stand_in_for_the_bases(self):
        base, rows = model(TEXT_LLAMA, tokenizer=LEGAL_BASE), self.rows(8, vocab=50)
        first = self.train(base, rows, out="first")
        tensors = read_safetensors(first / "adapter_model.safetensors")
        stored = "base_model.model.model.embed_tokens.weight"
        other = read_safetensors(model(TEXT_LLAMA, seed=5) / "model.safetensors")["model.embed_tokens.weight"]
        write_safetensors(first / "adapter_model.safetensors", tensors | {stored: other})
        # A base that has them itself, with the adapter without them.
        mixed, plain = self.copied_model(base, "mixed"), self.folder / "plain"
        shutil.copytree(first, plain)
        write_safetensors(plain / "adapter_model.safetensors", tensors)
        weights = read_safetensors(mixed / "model.safetensors")
        write_safetensors(mixed / "model.safetensors", weights | {"model.embed_tokens.weight": other})
        losses = lambda path, adapter: [
            row["loss"] for row in self.score(path, rows, "--adapter_name_or_path", adapter)
        ]
        expected = losses(mixed, plain)
        self.assertEqual(losses(base, first), expected)
        self.assertNotEqual(losses(base, plain), expected)
        # They stay frozen, and with the adapter: in the result, in checkpoints, and in what is merged.
        extra = ["--max_steps", "4", "--save_steps", "2"]
        second = self.train(base, rows, "--adapter_name_or_path", first, *extra, out="second")
        expected = self.train(mixed, rows, "--adapter_name_or_path", plain, *extra, out="expected")
        after = read_safetensors(second / "adapter_model.safetensors")
        self.assertEqual(after.pop(stored), other)
        self.assertEqual(after, read_safetensors(expected / "adapter_model.safetensors"))
        self.assertIn(stored, read_safetensors(second / "checkpoint-2" / "adapter_model.safetensors"))
        shutil.rmtree(second / "checkpoint-4")
        for file in ("adapter_model.safetensors", "adapter_config.json", "trainer_state.json"):
            (second / file).unlink()
        arguments = ["--adapter_name_or_path", first, *extra, "--resume_from_checkpoint", "auto"]
        self.assertEqual(
            read_safetensors(self.train(base, rows, *arguments, out="second") / "adapter_model.safetensors"),
            after | {stored: other},
        )
        self.succeed("merge", "--base", base, "--adapter", first, "--out", self.folder / "merged", "--device", "cpu")
        merged = read_safetensors(self.folder / "merged" / "model.safetensors")
        self.assertEqual(merged["model.embed_tokens.weight"], other)
        # Beside others, and in llama.cpp's files, they would be lost.
        advice = "stores the model's embed_tokens"
        prompt = ["--adapter", f"one={first}", "--file", write_rows(self.folder / "p.jsonl", [{"text": "a"}])]
        self.fail_with(INPUT, advice, "generate", "--model.path", base, *prompt)
        self.fail_with(INPUT, advice, "export", "gguf", "--adapter", first, "--base", base, "--out", self.folder / "a")
        write_safetensors(
            first / "adapter_model.safetensors",
            tensors | {stored: (other[0], [2050, 32], other[2] + other[2][: 2 * 32 * 4])},
        )
        self.fail_with(
            INPUT,
            "the vocabulary was enlarged from 2048 to 2050",
            *self.train_arguments(base, rows, "--adapter_name_or_path", first, out="third"),
        )


class FullTraining(EndToEnd):
    def test_a_model_folder_comes_out(self):
        base, rows = model(LLAMA), self.rows(8)
        out = self.train(base, rows, "--finetuning_type", "full", "--learning_rate", "0.001")
        self.assertFalse((out / "adapter_model.safetensors").exists())
        report = self.succeed("inspect", out)
        self.assertIn("problems      none", report.out)
        before = read_safetensors(base / "model.safetensors")
        after = read_safetensors(out / "model.safetensors")
        self.assertEqual({n: t[:2] for n, t in before.items()}, {n: t[:2] for n, t in after.items()})
        self.assertEqual([n for n in before if before[n][2] == after[n][2]], [])  # every tensor moved
        self.assertLess(
            sum(s["loss"] for s in self.score(out, rows)),
            sum(s["loss"] for s in self.score(base, rows, name="base.jsonl")),
        )

    def test_ties_are_kept_and_the_dtype_that_was_trained(self):
        base = model(TEXT_LLAMA | {"tie_word_embeddings": True}, dtype="bfloat16", tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is two years."}] * 8)
        out = self.train(base, rows, "--finetuning_type", "full", "--max_steps", "2")
        tensors = read_safetensors(out / "model.safetensors")
        self.assertEqual({t[0] for t in tensors.values()}, {"F32"})
        self.assertEqual(json.loads((out / "config.json").read_text())["torch_dtype"], "float32")
        self.assertNotIn("lm_head.weight", tensors)
        self.assertTrue((out / "tokenizer.json").exists())
        self.succeed(
            "generate", "--model.path", out, "--prompt", "The term", "--max_new_tokens", "2", "--device", "cpu"
        )


if __name__ == "__main__":
    main()
