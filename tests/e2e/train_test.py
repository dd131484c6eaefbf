"""The main job, from configuration to adapter."""

import json

from support import (
    EndToEnd,
    LLAMA,
    NF4_MODEL,
    RUNTIME,
    USAGE,
    main,
    model,
    read_safetensors,
    run,
    token_rows,
    write_rows,
)

STEP_FIELDS = [
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "trained_tokens",
    "tokens_per_second",
    "step_ms",
    "memory_gib",
]
EVAL_FIELDS = ["step", "epoch", "eval_loss", "eval_tokens", "eval_token_accuracy", "eval_perplexity"]
SUMMARY_FIELDS = [
    "event",
    "exit_reason",
    "global_step",
    "epoch",
    "steps",
    "tokens",
    "trained_tokens",
    "tokens_per_second",
    "seconds",
    "train_seconds",
    "eval_seconds",
    "save_seconds",
    "load_seconds",
    "train_loss",
    "final_loss",
    "final_eval_loss",
    "best_eval_loss",
    "best_step",
    "skipped_steps",
    "memory_gib",
]


def keys_in_order(line):
    return [key for key, _ in json.loads(line, object_pairs_hook=list)]


class TokenisedRows(EndToEnd):
    def test_a_run_leaves_every_file_that_it_promises(self):
        base, rows = model(LLAMA), self.rows(16)
        out = self.train(base, rows, "--r", "4", "--max_steps", "4", "--shuffle", "false")
        self.assertEqual(
            sorted(p.name for p in out.iterdir()),
            [
                "adapter_config.json",
                "adapter_model.safetensors",
                "checkpoint-4",
                "metrics.jsonl",
                "run_config.json",
                "run_facts.json",
                "trainer_state.json",
            ],
        )
        tensors = read_safetensors(out / "adapter_model.safetensors")
        self.assertEqual(len(tensors), 2 * 7 * 2)  # A and B of seven projections in two layers
        name = "base_model.model.model.layers.1.mlp.down_proj.lora_"
        self.assertEqual(tensors[name + "A.weight"][:2], ("F32", [4, 64]))
        self.assertEqual(tensors[name + "B.weight"][:2], ("F32", [32, 4]))
        for key, (_, _, data) in tensors.items():
            self.assertTrue(any(data), f"{key} is all zero after training")
        config = json.loads((out / "adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], str(base))
        self.assertEqual(
            (config["peft_type"], config["r"], config["lora_alpha"], config["task_type"]), ("LORA", 4, 16, "CAUSAL_LM")
        )

    def test_metrics_have_the_promised_fields(self):
        rows = token_rows(16)
        out = self.train(
            model(LLAMA),
            write_rows(self.folder / "rows.jsonl", rows),
            "--max_steps",
            "3",
            "--shuffle",
            "false",
            "--per_device_train_batch_size",
            "2",
            "--gradient_accumulation_steps",
            "2",
            "--eval_steps",
            "2",
            "--eval_file",
            self.rows(4, "eval.jsonl", seed=9),
        )
        lines = (out / "metrics.jsonl").read_text().splitlines()
        self.assertEqual(
            [keys_in_order(line) for line in lines],
            [STEP_FIELDS, STEP_FIELDS, EVAL_FIELDS, STEP_FIELDS, EVAL_FIELDS, SUMMARY_FIELDS],
        )
        steps = self.steps(out)
        self.assertEqual([s["step"] for s in steps], [1, 2, 3])
        for index, step in enumerate(steps):  # four rows a step, in the file's order
            tokens = sum(len(row["input_ids"]) for row in rows[4 * index : 4 * index + 4])
            self.assertEqual((step["tokens"], step["trained_tokens"]), (tokens, tokens - 4))
            self.assertAlmostEqual(step["epoch"], (index + 1) / 4)
            self.assertAlmostEqual(step["learning_rate"], 0.01 * (1 - index / 3))  # linear, no warm-up
            self.assertGreater(step["grad_norm"], 0)
            self.assertGreater(step["step_ms"], 0)
            self.assertAlmostEqual(
                step["tokens_per_second"], tokens / step["step_ms"] * 1000, delta=1e-6 * step["tokens_per_second"]
            )
        evaluations = self.evaluations(out)
        self.assertEqual([e["step"] for e in evaluations], [2, 3])
        wanted = sum(len(row["input_ids"]) - 1 for row in token_rows(4, seed=9))
        self.assertEqual({e["eval_tokens"] for e in evaluations}, {wanted})

    def test_the_last_line_sums_the_run_up(self):
        arguments = ["--max_steps", "4", "--eval_steps", "3", "--save_steps", "2"]
        arguments += ["--eval_file", self.rows(4, "eval.jsonl", seed=9)]
        out = self.train(model(LLAMA), self.rows(16), *arguments)
        steps, evaluations, summary = self.steps(out), self.evaluations(out), self.summary(out)
        self.assertEqual((summary["exit_reason"], summary["global_step"], summary["steps"]), ("finished", 4, 4))
        for key in ("tokens", "trained_tokens"):
            self.assertEqual(summary[key], sum(s[key] for s in steps))
        self.assertAlmostEqual(summary["train_seconds"], sum(s["step_ms"] for s in steps) / 1000, places=9)
        self.assertAlmostEqual(summary["train_loss"], sum(s["loss"] for s in steps) / 4, places=12)
        self.assertEqual(summary["final_loss"], steps[-1]["loss"])
        self.assertEqual(summary["final_eval_loss"], evaluations[-1]["eval_loss"])
        self.assertEqual(summary["best_eval_loss"], min(e["eval_loss"] for e in evaluations))
        self.assertGreater(summary["memory_gib"], 0)
        parts = [summary[f"{part}_seconds"] for part in ("train", "eval", "save", "load")]
        self.assertTrue(all(part > 0 for part in parts), parts)
        self.assertLess(sum(parts), summary["seconds"])

    def test_a_run_that_failed_says_why_in_its_last_line(self):
        # A loss that is not finite: the weight decay throws the weights out of range.
        result = run(
            "train",
            *self.train_arguments(
                model(LLAMA),
                self.rows(16),
                *("--max_steps", "50", "--learning_rate", "1", "--weight_decay", "1e30", "--max_grad_norm", "0"),
            ),
        )
        self.assertEqual(result.code, RUNTIME, result)
        summary = self.summary(self.folder / "out")
        self.assertEqual(summary["exit_reason"], "error")
        self.assertIn("is not finite", summary["error"])
        self.assertEqual(summary["error_id"], "numerics.not-finite")
        self.assertEqual(summary["global_step"], self.steps(self.folder / "out")[-1]["step"])

    def test_a_logged_loss_is_the_mean_since_the_last_one(self):
        every, third = (
            self.train(model(LLAMA), self.rows(16), "--max_steps", "8", "--logging_steps", n, out=f"every{n}")
            for n in ("1", "3")
        )
        losses = [s["loss"] for s in self.steps(every)]
        logged = self.steps(third)
        self.assertEqual([s["step"] for s in logged], [3, 6, 8])
        for row, part in zip(logged, (losses[:3], losses[3:6], losses[6:])):
            self.assertAlmostEqual(row["loss"], sum(part) / len(part), places=12)
        history = json.loads((third / "trainer_state.json").read_text())["log_history"]
        self.assertEqual([row["loss"] for row in history], [row["loss"] for row in logged])

    def test_the_first_loss_is_what_score_says(self):
        base, rows = model(LLAMA), self.rows(4)
        out = self.train(
            base, rows, "--max_steps", "1", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1"
        )
        scores = self.score(base, rows)
        mean = sum(s["loss"] * s["n_labels"] for s in scores) / sum(s["n_labels"] for s in scores)
        self.assertAlmostEqual(self.steps(out)[0]["loss"], mean, places=5)

    def test_the_loss_falls(self):
        out = self.train(
            model(LLAMA), self.rows(16), "--max_steps", "40", "--learning_rate", "0.03", "--optim", "adamw_torch"
        )
        losses = [s["loss"] for s in self.steps(out)]
        self.assertLess(losses[-1], losses[0] - 0.5)

    def test_a_four_bit_checkpoint(self):
        rows = self.rows(8)
        out = self.train(NF4_MODEL, rows, "--load_in_4bit", "true")
        self.assertEqual(len(self.steps(out)), 3)
        again = self.score(NF4_MODEL, rows, "--adapter_name_or_path", out)
        self.assertLess(
            sum(s["loss"] for s in again), sum(s["loss"] for s in self.score(NF4_MODEL, rows, name="base.jsonl"))
        )

    def test_a_model_quantised_while_loading(self):
        result = self.succeed(
            "train", *self.train_arguments(model(LLAMA), self.rows(8), "--load_in_4bit", "true", "--max_steps", "1")
        )
        self.assertIn("linears in 4 bit (nf4) while loading", result.err)

    def test_labels_and_segments(self):
        # Rows with two segments and with masked labels count only their targets.
        rows = [
            {"input_ids": [5, 6, 7, 8, 9, 10], "labels": [-100, -100, 7, 8, -100, 10]},
            {"input_ids": [5, 6, 7, 8, 9, 10], "position_ids": [0, 1, 2, 0, 1, 2]},
        ]
        out = self.train(
            model(LLAMA),
            write_rows(self.folder / "rows.jsonl", rows),
            "--max_steps",
            "1",
            "--shuffle",
            "false",
            "--gradient_accumulation_steps",
            "1",
        )
        step = self.steps(out)[0]
        self.assertEqual((step["tokens"], step["trained_tokens"]), (12, 3 + 4))

    def test_truncation(self):
        out = self.train(
            model(LLAMA),
            self.rows(4),
            "--max_steps",
            "1",
            "--max_length",
            "5",
            "--gradient_accumulation_steps",
            "1",
            "--per_device_train_batch_size",
            "4",
        )
        self.assertEqual(self.steps(out)[0]["tokens"], 4 * 5)

    def test_reduced_precision_stays_close(self):
        base, rows = model(LLAMA), self.rows(8)
        losses = {}
        for dtype in ("float32", "bfloat16"):
            out = self.train(base, rows, "--dtype", dtype, out=dtype)
            losses[dtype] = [s["loss"] for s in self.steps(out)]
        for full, half in zip(losses["float32"], losses["bfloat16"]):
            self.assertAlmostEqual(full, half, delta=0.02)


class Evaluation(EndToEnd):
    def test_eval_file_before_during_and_after(self):
        base, rows, held_out = model(LLAMA), self.rows(16), self.rows(4, "eval.jsonl", seed=9)
        out = self.train(
            base, rows, "--max_steps", "5", "--eval_file", held_out, "--eval_steps", "2", "--eval_on_start", "true"
        )
        evaluations = self.evaluations(out)
        self.assertEqual([e["step"] for e in evaluations], [0, 2, 4, 5])
        scores = self.score(base, held_out)
        before = sum(s["loss"] * s["n_labels"] for s in scores) / sum(s["n_labels"] for s in scores)
        self.assertAlmostEqual(evaluations[0]["eval_loss"], before, places=5)
        scores = self.score(base, held_out, "--adapter_name_or_path", out)
        after = sum(s["loss"] * s["n_labels"] for s in scores) / sum(s["n_labels"] for s in scores)
        self.assertAlmostEqual(evaluations[-1]["eval_loss"], after, places=5)

    def test_named_evaluation_files(self):
        base, rows = model(LLAMA), self.rows(16)
        files = {name: self.rows(count, f"{name}.jsonl", seed=count) for name, count in (("law", 3), ("chat", 5))}
        named = json.dumps({name: str(file) for name, file in files.items()})
        out = self.train(base, rows, "--max_steps", "2", "--eval_files", named, "--eval_on_start", "true")
        sums, labels, first = {}, {}, self.evaluations(out)[0]
        for name, file in files.items():
            scores = self.score(base, file)
            labels[name] = sum(s["n_labels"] for s in scores)
            sums[name] = sum(s["loss"] * s["n_labels"] for s in scores)
            self.assertAlmostEqual(first[f"eval_{name}_loss"], sums[name] / labels[name], places=5)
        self.assertAlmostEqual(first["eval_loss"], sum(sums.values()) / sum(labels.values()), places=5)
        self.assertEqual(first["eval_tokens"], sum(labels.values()))
        history = json.loads((out / "trainer_state.json").read_text())["log_history"]
        self.assertEqual(history[-1]["eval_law_loss"], self.evaluations(out)[-1]["eval_law_loss"])
        self.fail_with(
            USAGE,
            ["data.eval_file cannot be combined with data.eval_files"],
            *self.train_arguments(base, rows, "--eval_files", named, "--eval_file", files["law"]),
        )
        self.fail_with(
            USAGE, ["data.eval_files: 'a b'"], *self.train_arguments(base, rows, "--eval_files", '{"a b": "x"}')
        )

    def test_val_size_holds_rows_back(self):
        out = self.train(
            model(LLAMA),
            self.rows(16),
            "--val_size",
            "4",
            "--num_train_epochs",
            "1",
            "--per_device_train_batch_size",
            "3",
            "--gradient_accumulation_steps",
            "1",
        )
        self.assertEqual(len(self.steps(out)), 4)  # 12 of 16 rows, three a step
        self.assertEqual([e["step"] for e in self.evaluations(out)], [4])
        state = json.loads((out / "trainer_state.json").read_text())
        self.assertAlmostEqual(state["best_metric"], self.evaluations(out)[0]["eval_loss"])


class Configuration(EndToEnd):
    def config(self, **training):
        config = {
            "model": {"path": str(model(LLAMA)), "load_in_4bit": False, "dtype": "float32"},
            "lora": {"r": 4},
            "data": {"train_file": str(self.rows(8))},
            "training": {"output_dir": str(self.folder / "out"), "max_steps": 2, "learning_rate": "1e-2"} | training,
            "hardware": {"device": "cpu"},
        }
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        return path

    def test_with_and_without_the_word_train(self):
        config = self.config()
        self.succeed("--config", config)
        first = (self.folder / "out" / "adapter_model.safetensors").read_bytes()
        self.succeed("train", "--config", config, "--overwrite_output_dir", "true")
        self.assertEqual((self.folder / "out" / "adapter_model.safetensors").read_bytes(), first)

    def test_flags_win_over_the_file(self):
        config = self.config()
        self.succeed("--config", config, "--lora.r", "2", "--max-steps", "3", "--target_modules", "q_proj,v_proj")
        effective = json.loads((self.folder / "out" / "run_config.json").read_text())
        self.assertEqual((effective["lora"]["r"], effective["training"]["max_steps"]), (2, 3))
        self.assertEqual(effective["lora"]["target_modules"], ["q_proj", "v_proj"])
        self.assertEqual(len(self.steps(self.folder / "out")), 3)
        self.assertEqual(len(read_safetensors(self.folder / "out" / "adapter_model.safetensors")), 2 * 2 * 2)

    def test_run_config_repeats_the_run(self):
        self.succeed("--config", self.config())
        kept = self.folder / "kept.json"
        (self.folder / "out" / "run_config.json").rename(kept)
        self.succeed("--config", kept, "--output_dir", self.folder / "again")
        self.assertEqual(
            (self.folder / "out" / "adapter_model.safetensors").read_bytes(),
            (self.folder / "again" / "adapter_model.safetensors").read_bytes(),
        )

    def test_max_steps_0_plans_and_writes_nothing(self):
        result = self.succeed("--config", self.config(max_steps=0))
        self.assertIn("memory plan", result.err)
        self.assertFalse((self.folder / "out").exists())

    def test_relative_paths_are_relative_to_the_working_directory(self):
        self.config()
        (self.folder / "place").mkdir()
        write_rows(self.folder / "place" / "here.jsonl", token_rows(4))
        self.succeed(
            "--config",
            "../config.json",
            "--train_file",
            "here.jsonl",
            "--output_dir",
            "made",
            cwd=self.folder / "place",
        )
        self.assertTrue((self.folder / "place" / "made" / "adapter_model.safetensors").exists())

    def test_quiet_means_quiet(self):
        result = self.succeed("--config", self.config(), "--log_level", "error")
        self.assertEqual((result.out, result.err), ("", ""))


if __name__ == "__main__":
    main()
