"""The main job, from configuration to adapter."""

import csv
import fcntl
import gzip
import io
import json
import os
import shutil
import unittest

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LLAMA,
    LEGAL_BASE,
    NF4_MODEL,
    OK,
    RUNTIME,
    TEXT_LLAMA,
    USAGE,
    environment,
    main,
    model,
    read_rows,
    read_safetensors,
    run,
    token_rows,
    write_rows,
    write_safetensors,
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
LIBRARY = os.environ.get("UNSLOTH_FAULT", "")
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


class Text(EndToEnd):
    ROWS = {
        "text": [{"text": f"The supplier pays {n} euros within thirty days."} for n in range(8)],
        "alpaca": [
            {
                "instruction": "Name the clause.",
                "input": f"Payment is due in {n} days.",
                "output": "A payment clause.",
                "system": "You read contracts.",
            }
            for n in range(8)
        ],
        "messages": [
            {
                "messages": [
                    {"role": "user", "content": f"What does section {n} say?"},
                    {"role": "assistant", "content": "It sets the term."},
                ]
            }
            for n in range(8)
        ],
        "sharegpt": [
            {
                "conversations": [
                    {"from": "human", "value": f"What does section {n} say, and why does it say so?"},
                    {"from": "gpt", "value": "It sets."},
                ]
            }
            for n in range(8)
        ],
        "prompt_completion": [
            {"prompt": f"Section {n} of this agreement, on payment, says: ", "completion": "thirty days."}
            for n in range(8)
        ],
    }

    def test_every_form_trains_and_takes_the_tokenizer_along(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        for form, rows in self.ROWS.items():
            with self.subTest(form):
                template = ["--template", "alpaca"] if form in ("messages", "sharegpt") else []
                out = self.train(
                    base, write_rows(self.folder / f"{form}.jsonl", rows), "--max_steps", "2", *template, out=form
                )
                self.assertTrue(all(s["loss"] > 0 for s in self.steps(out)))
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    self.assertEqual((out / name).read_bytes(), (LEGAL_BASE / name).read_bytes())
                step = self.steps(out)[0]
                if form == "text":  # all tokens but the first are targets: eight rows a step
                    self.assertEqual(step["tokens"] - step["trained_tokens"], 8)
                else:  # prompts are masked
                    self.assertLess(step["trained_tokens"], step["tokens"] / 2)

    def test_train_on_prompt(self):
        base, rows = (
            model(TEXT_LLAMA, tokenizer=LEGAL_BASE),
            write_rows(self.folder / "rows.jsonl", self.ROWS["alpaca"]),
        )
        out = self.train(base, rows, "--max_steps", "1", "--train_on_prompt", "true")
        step = self.steps(out)[0]
        self.assertEqual(step["tokens"] - step["trained_tokens"], 8)


class SpecialTokens(EndToEnd):
    def test_another_token_ends_texts_and_is_saved(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "rows.jsonl", Text.ROWS["text"])
        named = ["--special_tokens", json.dumps({"eos_token": "!", "pad_token": "<|end|>"})]
        plain = self.train(base, rows, out="plain")
        out = self.train(base, rows, *named, "--finetuning_type", "full", "--learning_rate", "1e-4")
        saved = json.loads((out / "tokenizer_config.json").read_text())
        self.assertEqual((saved["eos_token"], saved["pad_token"], saved["bos_token"]), ("!", "<|end|>", "<|begin|>"))
        ids = {"eos_token_id": 2, "pad_token_id": 1}
        self.assertEqual(json.loads((out / "generation_config.json").read_text()), ids)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["eos_token_id"], config["pad_token_id"]), ([2, 1], 1))
        self.assertNotIn("generation_config.json", os.listdir(plain))
        scores = self.score(base, rows, *named)
        self.assertEqual([row["ids"][-1] for row in scores], [2] * len(scores))
        self.fail_with(
            "option.invalid-value",
            "pad_token '<pad>' is no token of",
            "train",
            *self.train_arguments(base, rows, "--special_tokens", '{"pad_token": "<pad>"}', out="refused"),
        )


class Sources(EndToEnd):
    """Rows as users bring them."""

    ROWS = [{"instruction": f'Name clause {n}, "please".', "output": "A payment\nclause."} for n in range(8)]

    def losses(self, base, path, *extra, out):
        return [step["loss"] for step in self.steps(self.train(base, path, "--max_steps", "2", *extra, out=out))]

    def test_every_kind_of_file_gives_the_same_run(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        expected = self.losses(base, write_rows(self.folder / "rows.jsonl", self.ROWS), out="jsonl")
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, ["instruction", "output"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.ROWS)
        parts = self.folder / "parts"
        parts.mkdir()
        write_rows(parts / "train-00000-of-00002.jsonl", self.ROWS[:3])
        write_rows(parts / "train-00001-of-00002.jsonl", self.ROWS[3:])
        write_rows(parts / "test-00000-of-00001.jsonl", [{"nothing": "to train on"}])
        for name, content in (
            ("a.json", json.dumps(self.ROWS, indent=1).encode()),
            ("a.csv", table.getvalue().encode()),
            ("a.csv.gz", gzip.compress(table.getvalue().encode())),
            ("parts", None),
            ("parts/train-*.jsonl", None),
        ):
            with self.subTest(name):
                if content is not None:
                    (self.folder / name).write_bytes(content)
                self.assertEqual(self.losses(base, self.folder / name, out="out-" + name.replace("/", "-")), expected)

    def test_several_sources_with_weights_and_columns(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        write_rows(self.folder / "a.jsonl", self.ROWS)
        write_rows(self.folder / "b.jsonl", [{"question": "Why?", "answer": "Because."}] * 2)
        sources = [
            {"path": str(self.folder / "a.jsonl"), "weight": 1},
            {
                "path": str(self.folder / "b.jsonl"),
                "weight": 1,
                "columns": {"instruction": "question", "output": "answer"},
            },
        ]
        result = self.succeed(
            "train",
            *self.train_arguments(
                base,
                "",
                "--datasets",
                json.dumps(sources),
                "--num_train_epochs",
                "1",
                "--per_device_train_batch_size",
                "1",
                "--gradient_accumulation_steps",
                "1",
            ),
        )
        tokens = [step["tokens"] for step in self.steps(self.folder / "out")]
        self.assertEqual(len(tokens), 10)
        self.assertEqual(sum(t == min(tokens) for t in tokens), 5)  # half of an epoch, though two of ten rows
        self.assertIn("by the sources' weights", result.err)

    def test_a_second_start_takes_the_cache(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "rows.jsonl", self.ROWS)
        runs = []
        for out in ("first", "second"):
            result = self.succeed(
                "train",
                *self.train_arguments(base, rows, "--cache_dir", self.folder / "cache", "--max_steps", "2", out=out),
            )
            runs.append((result.err, [step["loss"] for step in self.steps(self.folder / out)]))
        self.assertIn("are in the cache now", runs[0][0])
        self.assertIn("from the cache", runs[1][0])
        self.assertEqual(runs[0][1], runs[1][1])
        self.assertEqual(self.losses(base, rows, "--cache_dir", "", out="third"), runs[0][1])

    def test_micro_batches_by_tokens(self):
        out = self.train(
            model(LLAMA),
            self.rows(16),
            "--max_tokens_per_batch",
            "64",
            "--gradient_accumulation_steps",
            "1",
            "--num_train_epochs",
            "2",
        )
        steps = self.steps(out)
        self.assertTrue(all(step["tokens"] <= 64 for step in steps))
        self.assertEqual(
            sum(s["tokens"] for s in steps[: len(steps) // 2]), sum(s["tokens"] for s in steps[len(steps) // 2 :])
        )


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


class Repeating(EndToEnd):
    def test_two_runs_are_byte_identical(self):
        base, rows = model(LLAMA), self.rows(16)
        extra = ["--lora_dropout", "0.1", "--max_steps", "4"]
        env = environment(OMP_NUM_THREADS=2)
        first = self.train(base, rows, *extra, out="first", env=env)
        second = self.train(base, rows, *extra, out="second", env=env)
        self.assertEqual(
            (first / "adapter_model.safetensors").read_bytes(), (second / "adapter_model.safetensors").read_bytes()
        )
        figures = [[(s["loss"], s["grad_norm"], s["tokens"]) for s in self.steps(f)] for f in (first, second)]
        self.assertEqual(*figures)
        other = self.train(base, rows, *extra, "--seed", "7", out="other")
        self.assertNotEqual(figures[0], [(s["loss"], s["grad_norm"], s["tokens"]) for s in self.steps(other)])

    def test_a_second_run_into_the_same_folder_must_be_said(self):
        base, rows = model(LLAMA), self.rows(8)
        self.train(base, rows, "--max_steps", "5", "--r", "8", "--save_steps", "2")
        self.fail_with(
            USAGE,
            ["holds a run already", "resume_from_checkpoint", "overwrite_output_dir"],
            *self.train_arguments(base, rows, "--r", "2"),
        )
        out = self.train(base, rows, "--max_steps", "2", "--r", "2", "--overwrite_output_dir", "true")
        self.assertEqual(len(self.steps(out)), 2)
        self.assertEqual(json.loads((out / "adapter_config.json").read_text())["r"], 2)
        self.assertEqual([p.name for p in out.iterdir() if p.is_dir() or ".tmp-" in p.name], ["checkpoint-2"])


class OutputFolder(EndToEnd):
    def files(self, *folders):
        return {p: p.is_file() and p.read_bytes() for folder in folders for p in sorted(folder.rglob("*"))}

    def test_the_base_is_not_written_over(self):
        base = self.copied_model(model(LLAMA), "base")
        (self.folder / "link").symlink_to(base)
        rows, before = self.rows(4), self.files(base)
        for path, out in (
            (base, "base"),
            (base, "link"),
            (base, "base/../link"),
            (self.folder / "link", "base"),
            (base / "model.safetensors", "base"),
        ):
            for extra in ([], ["--finetuning_type", "full"], ["--max_steps", "0"]):
                with self.subTest(path=path, out=out, extra=extra):
                    self.fail_with(
                        USAGE,
                        ["training.output_dir", "write over", "model.path", "Choose another"],
                        *self.train_arguments(path, rows, *extra, out=out),
                    )
        self.assertEqual(self.files(base), before)

    def test_what_other_programs_left_is_not_replaced_without_a_word(self):
        base, rows = model(LLAMA), self.rows(4)
        done = self.train(base, rows, "--save_steps", "2", out="done")
        tuned = self.train(base, rows, "--finetuning_type", "full", "--learning_rate", "1e-4", out="tuned")
        files = {
            "adapter": (done, ["adapter_config.json", "adapter_model.safetensors"]),
            "model": (tuned, ["config.json", "model.safetensors"]),
            "trainer": (
                done / "checkpoint-2",
                ["adapter_config.json", "adapter_model.safetensors", "trainer_state.json"],
            ),
        }
        for name, (source, names) in files.items():
            out = self.folder / name
            place = out / "checkpoint-2" if name == "trainer" else out
            place.mkdir(parents=True)
            for file in names:
                shutil.copy(source / file, place)
            before = self.files(out)
            for extra in ([], ["--max_steps", "0"], ["--resume_from_checkpoint", "auto"]):
                with self.subTest(name=name, extra=extra):
                    result = self.fail_with(
                        USAGE,
                        [
                            f"{out} holds a ",
                            "already",
                            "overwrite_output_dir",
                            f"_path {place}" if name != "model" else "model.path",
                        ],
                        *self.train_arguments(base, rows, *extra, out=name),
                    )
                    self.assertNotIn("resume_from_checkpoint auto", result.err)
                    self.assertNotIn("not finished", result.err)
                    self.assertEqual(self.files(out), before)
            (out / "notes.txt").write_text("mine")
            self.train(base, rows, "--overwrite_output_dir", "true", "--save_steps", "0", out=name)
            self.assertEqual((out / "notes.txt").read_text(), "mine")
            weights = sorted(p.name for p in out.rglob("*.safetensors"))
            self.assertEqual(weights, ["adapter_model.safetensors"])
            self.assertFalse((out / "config.json").exists())
        self.fail_with(
            USAGE,
            ["checkpoint of transformers' Trainer", f"model.adapter_name_or_path {self.folder / 'foreign'}"],
            *self.train_arguments(
                base,
                rows,
                "--resume_from_checkpoint",
                shutil.copytree(
                    done / "checkpoint-2",
                    self.folder / "foreign",
                    ignore=shutil.ignore_patterns("manifest.json", "run_state.json", "run_config.json"),
                ),
                out="new",
            ),
        )

    def test_overwriting_removes_the_whole_result_and_nothing_else(self):
        base, rows = model(TEXT_LLAMA, tokenizer=LEGAL_BASE), self.rows(4)
        out = self.train(base, rows)
        (out / "chat_template.jinja").write_text("{{ messages }}")  # of another base
        (out / "samples.jsonl").write_text("{}")
        (out / "config.json").write_text('{"training": {}}')  # the user's own
        full = ["--overwrite_output_dir", "true", "--finetuning_type", "full", "--learning_rate", "1e-5"]
        before = self.files(out)
        self.fail_with(USAGE, ["write over", "config.json"], *self.train_arguments(base, rows, *full))
        self.assertEqual(self.files(out), before)
        (out / "config.json").rename(out / "mine.json")
        bad = write_rows(self.folder / "bad.jsonl", ["no JSON"])
        before = self.files(out)
        self.assertNotEqual(run(*self.train_arguments(base, bad, *full)).code, OK)
        self.assertEqual(self.files(out), before, "a run that cannot begin removes nothing")
        self.train(base, rows, *full, "--save_steps", "0")
        names = {p.name for p in out.iterdir()}
        self.assertLessEqual({"model.safetensors", "config.json", "mine.json"}, names)
        self.assertFalse(names & {"adapter_config.json", "adapter_model.safetensors", "checkpoint-3"}, names)
        self.assertFalse(names & {"chat_template.jinja", "samples.jsonl"}, names)

    def test_what_a_run_reads_is_not_written_over(self):
        base, out = model(LLAMA), self.folder / "out"
        out.mkdir()
        rows = write_rows(out / "metrics.jsonl", token_rows(4))
        before = self.files(out)
        self.fail_with(
            USAGE,
            ["write over", "data.train_file"],
            *self.train_arguments(base, rows, "--overwrite_output_dir", "true"),
        )
        self.assertEqual(self.files(out), before)

    def test_a_dry_run_refuses_what_the_run_refuses(self):
        base, rows = model(LLAMA), self.rows(4)
        out = self.train(base, rows, "--save_steps", "2", "--max_steps", "4")
        before = self.files(out)

        def refused(code, parts, *extra, **options):
            dry, wet = (
                self.fail_with(code, parts, *self.train_arguments(base, rows, *extra, "--max_steps", steps), **options)
                for steps in (0, 4)
            )
            last = lambda result: result.err.split("unsloth-train: error[")[-1]
            self.assertEqual(last(dry), last(wet))
            self.assertEqual(self.files(out), before)

        refused(USAGE, ["holds a run already"])
        refused(USAGE, "has reached step 4", "--resume_from_checkpoint", out / "checkpoint-2")
        refused(USAGE, "lora.r: 16 until now, 8", "--resume_from_checkpoint", "auto", "--r", "8")
        refused(USAGE, "there is no folder", "--resume_from_checkpoint", out / "checkpoint-9")
        refused(USAGE, "logging.profile", "--overwrite_output_dir", "true", "--logging.profile", out / "no" / "trace")
        (self.folder / "file").write_text("")
        refused(RUNTIME, "cannot create", "--training.output_dir", self.folder / "file" / "out")
        with open(out / "run.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.files(out)
            refused(USAGE, "is in use by another run", "--overwrite_output_dir", "true")
        (out / "run.lock").unlink()

    def test_what_a_run_begins_with_is_not_written_over(self):
        base, rows = model(LLAMA), self.rows(4)
        out = self.train(base, rows)
        before = self.files(out / "checkpoint-3")
        for adapter in (out, out / "checkpoint-3"):
            self.fail_with(
                USAGE,
                ["training.output_dir", "model.adapter_name_or_path", "Choose another"],
                *self.train_arguments(base, rows, "--adapter_name_or_path", adapter, "--overwrite_output_dir", "true"),
            )
        self.assertEqual(self.files(out / "checkpoint-3"), before)

    @unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
    def test_room_is_looked_for_before_training(self):
        rows = self.rows(4)

        def disk(free):
            return environment(LD_PRELOAD=LIBRARY, FAULT_FREE=free, ASAN_OPTIONS="verify_asan_link_order=0")

        # The adapter takes about 0.1 MiB, and the texts beside it and in a checkpoint count as 1 MiB each.
        for extra, parts in (
            ([], ["not enough room", "are needed (adapter", "first checkpoint", "1.0 MiB are free", "save_steps 0"]),
            (["--finetuning_type", "full"], ["not enough room", "are needed (model"]),
            (["--max_steps", "0"], ["not enough room"]),
        ):
            with self.subTest(extra=extra):
                result = self.fail_with(
                    RUNTIME, parts, *self.train_arguments(model(LLAMA), rows, *extra), env=disk(1 << 20)
                )
                self.assertNotIn("step 1/", result.err)
                self.assertFalse((self.folder / "out" / "metrics.jsonl").exists())
        self.train(model(LLAMA), rows, env=disk(8 << 20), out="enough")
        self.train(model(LLAMA), rows, "--save_steps", "0", env=disk(3 << 19), out="small")


class TrainerState(EndToEnd):
    def test_checkpoints_and_their_limit(self):
        out = self.train(
            model(LLAMA), self.rows(16), "--max_steps", "7", "--save_steps", "2", "--save_total_limit", "2"
        )
        self.assertEqual(sorted(p.name for p in out.iterdir() if p.is_dir()), ["checkpoint-6", "checkpoint-7"])
        for step, folder in ((6, out / "checkpoint-6"), (7, out)):
            state = json.loads((folder / "trainer_state.json").read_text())
            self.assertEqual((state["global_step"], state["max_steps"], len(state["log_history"])), (step, 7, step))
            self.assertEqual(
                state["log_history"][0].keys() & {"loss", "grad_norm", "learning_rate", "epoch", "step"},
                {"loss", "grad_norm", "learning_rate", "epoch", "step"},
            )
        self.assertEqual(
            (out / "checkpoint-7" / "adapter_model.safetensors").read_bytes(),
            (out / "adapter_model.safetensors").read_bytes(),
        )
        self.assertNotEqual(
            (out / "checkpoint-6" / "adapter_model.safetensors").read_bytes(),
            (out / "adapter_model.safetensors").read_bytes(),
        )
        self.assertEqual(run("inspect", out / "checkpoint-6").code, OK)

    def test_logging_steps(self):
        out = self.train(model(LLAMA), self.rows(16), "--max_steps", "5", "--logging_steps", "2")
        self.assertEqual([s["step"] for s in self.steps(out)], [2, 4, 5])


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
