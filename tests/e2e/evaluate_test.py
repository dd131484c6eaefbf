"""Which evaluation was the best, and what follows from that: early stopping, the result; and the command `evaluate`."""

import json
import math
import shutil
import unittest

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    TEXT_LLAMA,
    USAGE,
    floats,
    main,
    model,
    read_rows,
    read_safetensors,
    write_rows,
)
from generate_probe_test import stopping_model

ADAPTER = "adapter_model.safetensors"


def stop_and_best(values, patience, threshold=0.0, greater=False):
    """(step of the stop or None, step of the best) of {step: value}, as transformers' EarlyStoppingCallback and
    Trainer._determine_best_metric have it."""
    best = best_step = None
    bad = 0
    for step, value in values.items():
        better = best is None or (value > best if greater else value < best)
        bad = 0 if best is None or (better and abs(value - best) > threshold) else bad + 1
        if better:
            best, best_step = value, step
        if bad >= patience:
            return step, best_step
    return None, best_step


class Best(EndToEnd):
    EVALUATED = ["--learning_rate", "0.3", "--val_size", "4", "--eval_steps", "1"]

    def values(self, out, metric="eval_loss"):
        return {e["step"]: e[metric] for e in self.evaluations(out)}

    def state(self, out):
        return json.loads((out / "trainer_state.json").read_text())

    def steps_kept(self, out):
        return sorted(int(p.name.split("-")[1]) for p in out.glob("checkpoint-*"))

    def test_a_run_ends_where_transformers_would_end_it(self):
        base, rows = model(LLAMA), self.rows(16)
        whole = self.train(base, rows, *self.EVALUATED, "--max_steps", "10", "--save_steps", "0", out="whole")
        stops = set()
        cases = (
            ("eval_loss", 1, 0.05, "false"),
            ("loss", 2, 0.015, "null"),  # better ones, but by too little: the best moves on, and the run ends
            ("eval_loss", 3, 0, "true"),
            ("token_accuracy", 2, 0, "null"),
        )
        for metric, patience, threshold, greater in cases:
            with self.subTest(metric=metric, patience=patience, threshold=threshold, greater=greater):
                full = "eval_" + metric.removeprefix("eval_")
                more = greater == "true" or (greater == "null" and not metric.endswith("loss"))
                wanted, best = stop_and_best(self.values(whole, full), patience, threshold, more)
                self.assertIsNotNone(wanted, "the data of this test must stop")
                stops.add((wanted, best))
                name = f"{metric}{patience}"
                words = ["--early_stopping_patience", patience, "--early_stopping_threshold", threshold]
                words += ["--metric_for_best_model", metric, f"--greater_is_better={greater}"]
                result = self.succeed(
                    *self.train_arguments(
                        base, rows, *self.EVALUATED, *words, "--max_steps", "10", "--save_steps", "0", out=name
                    )
                )
                out = self.folder / name
                self.assertEqual(len(self.steps(out)), wanted)
                self.assertEqual(
                    self.values(out), {s: v for s, v in self.values(whole).items() if s <= wanted}, "bits differ"
                )
                state = self.state(out)
                self.assertEqual((state["global_step"], state["max_steps"]), (wanted, 10))
                self.assertEqual(state["best_global_step"], best)
                self.assertIn(f"stops early, after step {wanted} of 10", result.err)
                self.assertEqual(self.summary(out)["exit_reason"], "finished")
                self.assertEqual(self.summary(out)["best_step"], best)
        self.assertEqual(len(stops), len(cases), "the cases of this test must differ")

    def test_the_best_one_is_the_result_whatever_the_limit(self):
        base, rows = model(LLAMA), self.rows(16)
        words = ["--max_steps", "8", "--metric_for_best_model", "loss", "--greater_is_better", "true"]
        out = self.train(
            base,
            rows,
            *self.EVALUATED,
            *words,
            "--load_best_model_at_end",
            "--save_steps",
            "3",
            "--save_total_limit",
            "1",
        )
        _, best = stop_and_best(self.values(out), 99, greater=True)
        self.assertNotEqual(best, 8, "the last one is no test")
        self.assertNotEqual(best % 3, 0, "one that save_steps saves is no test")
        self.assertEqual(self.steps_kept(out), [best, 8])
        state = self.state(out)
        self.assertEqual(state["best_global_step"], best)
        self.assertEqual(state["best_model_checkpoint"], str(out / f"checkpoint-{best}"))
        self.assertEqual((out / ADAPTER).read_bytes(), (out / f"checkpoint-{best}" / ADAPTER).read_bytes())
        self.assertNotEqual((out / ADAPTER).read_bytes(), (out / "checkpoint-8" / ADAPTER).read_bytes())

    def test_of_a_full_training_too(self):
        words = ["--finetuning_type", "full", "--greater_is_better", "true", "--max_steps", "4"]
        out = self.train(model(LLAMA), self.rows(12), *self.EVALUATED, *words, "--load_best_model_at_end")
        best = self.state(out)["best_global_step"]
        self.assertNotEqual(best, 4, "the last one is no test")
        name = "model.safetensors"
        self.assertEqual((out / name).read_bytes(), (out / f"checkpoint-{best}" / name).read_bytes())

    def test_over_a_resume_nothing_changes(self):
        base, rows = model(LLAMA), self.rows(16)
        words = [*self.EVALUATED, "--early_stopping_patience", "3", "--greater_is_better", "true", "--max_steps", "12"]
        words += ["--load_best_model_at_end", "--save_steps", "1"]
        whole = self.train(base, rows, *words, out="whole")
        last = len(self.steps(whole))
        self.assertLess(last, 12, "the run of this test must stop early")
        parts = self.train(base, rows, *words, out="parts")
        for step in self.steps_kept(parts):  # as if it was killed two evaluations before its end
            if step > last - 2:
                shutil.rmtree(parts / f"checkpoint-{step}")
        for file in (ADAPTER, "trainer_state.json"):
            (parts / file).unlink()
        resume = [*words, "--resume_from_checkpoint", "auto"]
        self.assertIn(
            f"resuming from {parts / f'checkpoint-{last - 2}'}",
            self.succeed(*self.train_arguments(base, rows, *resume, out="parts")).err,
        )
        self.assertEqual(self.values(parts), self.values(whole))
        for again in ("resumed", "finished and resumed again"):
            with self.subTest(again):
                self.assertEqual((parts / ADAPTER).read_bytes(), (whole / ADAPTER).read_bytes())
                self.assertEqual(self.state(parts)["global_step"], last)
                self.assertEqual(self.state(parts)["best_global_step"], self.state(whole)["best_global_step"])
            done = self.succeed(*self.train_arguments(base, rows, *resume, out="parts"))
            self.assertIn(f"stops early, after step {last} of 12", done.err)

    def test_ranks_stop_together(self):
        base, rows = model(LLAMA), self.rows(16)
        words = [*self.EVALUATED, "--early_stopping_patience", "2", "--greater_is_better", "true", "--max_steps", "12"]
        words += ["--load_best_model_at_end", "--gradient_accumulation_steps", "1"]
        one = self.train(base, rows, *words, "--per_device_train_batch_size", "4", out="one")
        arguments = self.train_arguments(base, rows, *words, "--per_device_train_batch_size", "2", out="two")
        self.succeed("launch", "--nproc_per_node", "2", "train", *arguments)
        two = self.folder / "two"
        self.assertLess(len(self.steps(one)), 12)
        self.assertEqual(len(self.steps(two)), len(self.steps(one)))
        best = self.state(two)["best_global_step"]
        self.assertEqual(best, self.state(one)["best_global_step"])
        self.assertEqual((two / ADAPTER).read_bytes(), (two / f"checkpoint-{best}" / ADAPTER).read_bytes())

    def test_a_value_that_no_evaluation_has(self):
        self.fail_with(
            USAGE,
            ["an evaluation has no eval_accuracy", "eval_loss, eval_token_accuracy"],
            *self.train_arguments(model(LLAMA), self.rows(), *self.EVALUATED, "--metric_for_best_model", "accuracy"),
        )


class Evaluate(EndToEnd):
    def evaluate(self, folder, *arguments, **options):
        words = ["--model.path", folder, "--device", "cpu", *FP32, *arguments, "--json"]
        return json.loads(self.succeed("evaluate", *words, **options).out)

    def test_loss_perplexity_and_accuracy_are_those_of_the_logits(self):
        base, rows, held_out = model(LLAMA), self.rows(16), self.rows(5, "held.jsonl", seed=9)
        adapter = self.train(base, rows, "--eval_file", held_out, "--max_steps", "40", "--learning_rate", "0.03")
        found = self.evaluate(base, "--adapter_name_or_path", adapter, "--eval_file", held_out)
        logits = self.folder / "logits.safetensors"
        scores = self.score(base, held_out, "--adapter_name_or_path", adapter, "--logits", logits)
        labels = sum(s["n_labels"] for s in scores)
        loss = sum(s["loss"] * s["n_labels"] for s in scores) / labels
        self.assertAlmostEqual(found["eval_loss"], loss, places=5)
        self.assertAlmostEqual(found["perplexity"], math.exp(loss), places=4)
        self.assertEqual(found["eval_tokens"], labels)
        words = ["--model.path", base, "--device", "cpu", *FP32, "--adapter_name_or_path", adapter]
        text = self.succeed("evaluate", *words, "--eval_file", held_out).out
        self.assertEqual(text.splitlines()[0], f"eval_loss       {found['eval_loss']:g}")
        hits, vocab, tensors = 0, LLAMA["vocab_size"], read_safetensors(logits)
        for i, score in enumerate(scores):
            values = floats(tensors[f"logits.{i}"][2])
            for t in range(len(score["ids"]) - 1):
                row = values[vocab * t : vocab * (t + 1)]
                hits += row.index(max(row)) == score["ids"][t + 1]
        self.assertGreater(hits, 0, "a model that learnt nothing is no test")
        self.assertEqual(found["token_accuracy"], hits / labels)
        of_run = self.evaluations(adapter)[-1]
        self.assertEqual(of_run["eval_token_accuracy"], found["token_accuracy"])
        self.assertAlmostEqual(of_run["eval_loss"], found["eval_loss"], places=6)

    def test_the_rows_that_a_run_holds_out(self):
        """With the run's own configuration: the same rows, so the same figures as at the run's end."""
        base, rows = model(LLAMA), self.rows(16)
        adapter = self.train(base, rows, "--val_size", "5", "--max_steps", "3")
        of_run, words = self.evaluations(adapter)[-1], ["--adapter_name_or_path", adapter]
        found = self.evaluate(base, "--config", adapter / "run_config.json", *words)
        self.assertAlmostEqual(found["eval_loss"], of_run["eval_loss"], places=6)
        self.assertEqual(found["token_accuracy"], of_run["eval_token_accuracy"])
        words += ["--train_file", rows, "--val_size", "5"]
        self.assertNotEqual(self.evaluate(base, *words, "--seed", "99")["eval_loss"], found["eval_loss"])
        held = ["evaluate", "--model.path", base, "--device", "cpu"]
        self.fail_with("option.missing", "data.val_size, which holds out rows", *held, "--train_file", rows)
        self.assertIn("5 rows, which data.val_size 5 holds out", self.succeed(*held, *FP32, *words).err)

    def test_sensitivity(self):
        """The losses are those of runs with the same model.precision, and the proposal keeps the worst unquantized."""
        rows = LEGAL_BASE.parent / "heldout.jsonl"
        words = ["--template", "alpaca", "--eval_file", rows]
        found = self.evaluate(LEGAL_BASE, *words, "--sensitivity", "nf4")
        added = found["loss_added"]
        self.assertEqual(
            set(added), {f"self_attn.{p}_proj" for p in "qkvo"} | {f"mlp.{p}_proj" for p in ("gate", "up", "down")}
        )
        self.assertEqual(list(added.values()), sorted(added.values(), reverse=True))
        layers = json.loads((LEGAL_BASE / "config.json").read_text())["num_hidden_layers"]
        held = [*words, "--load_in_4bit", "false"]
        plain = self.evaluate(LEGAL_BASE, *held)["eval_loss"]
        self.assertEqual(found["eval_loss"], plain)
        worst = next(iter(added))
        alone = json.dumps({f"model.layers.0-{layers - 1}.{worst}": "nf4"})
        self.assertAlmostEqual(
            self.evaluate(LEGAL_BASE, *held, "--precision", alone)["eval_loss"], plain + added[worst], 12
        )
        alone = ["evaluate", "--model.path", LEGAL_BASE, "--device", "cpu", "--dtype", "float32", *words, "--json"]

        def held_as(precision):
            return json.loads(self.succeed(*alone, "--precision", json.dumps(precision)).out)["eval_loss"]

        of_all = held_as({"default": "nf4"})
        self.assertEqual(found["eval_loss_quantized"], of_all)
        mixed = held_as(found["precision"])
        self.assertEqual(found["eval_loss_mixed"], mixed)
        self.assertLess(mixed - plain, 0.8 * (of_all - plain))
        self.assertEqual(found["precision"]["default"], "nf4")
        kept = [key.split(".", 3)[3] for key in found["precision"] if key != "default"]
        self.assertLess(len(kept), len(added))
        left = sum(max(0, d) for kind, d in added.items() if kind not in kept)
        self.assertLessEqual(left, 0.5 * sum(max(0, d) for d in added.values()))

    def test_sensitivity_needs_values_that_are_not_quantized(self):
        words = ["evaluate", "--model.path", LEGAL_BASE, "--template", "alpaca", "--device", "cpu", *FP32]
        words += ["--eval_file", LEGAL_BASE.parent / "heldout.jsonl", "--sensitivity", "nf4"]
        self.fail_with(USAGE, "--metric", *words, "--metric", "exact_match")
        self.fail_with(USAGE, "precision", *words, "--precision", '{"default": "int8"}')
        folder = self.folder / "nf4"
        self.succeed("quantize", "--model.path", LEGAL_BASE, "--out", folder)
        words[2] = folder
        self.fail_with("model.already-quantized", "--sensitivity", *words)

    def test_named_sets(self):
        base = model(LLAMA)
        files = {name: str(self.rows(count, f"{name}.jsonl", seed=count)) for name, count in (("a", 3), ("b", 6))}
        found = self.evaluate(base, "--eval_files", json.dumps(files))
        for name, file in files.items():
            self.assertAlmostEqual(
                found[f"eval_{name}_loss"], self.evaluate(base, "--eval_file", file)["eval_loss"], places=5
            )

    def test_answers(self):
        """A model that goes 40 -> 41 -> 42 -> <|end|>, asked 40, of rows that expect 41, 42, and others that do not."""
        folder = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
        stopping_model(folder)

        def text(*ids):
            done = self.succeed("tokenize", "--tokenizer", folder, "--decode", stdin=json.dumps({"ids": ids}) + "\n")
            return json.loads(done.out)["text"]

        def row(prompt, answer):
            return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}

        rows = [
            row([5, 40], [41, 42, 1]),
            row([7, 7, 40], [41, 42, 1]),
            row([5, 40], [41, 43, 1]),
            row([9, 41], [42, 1]),
        ]
        file = write_rows(self.folder / "rows.jsonl", rows)
        answers = self.folder / "answers.jsonl"
        words = ["--eval_file", file, "--metric", "exact_match", "--max_new_tokens", "6"]
        found = self.evaluate(folder, *words, "--answers", answers)
        self.assertEqual((found["exact_match"], found["answers"]), (0.75, 4))
        told = read_rows(answers)
        self.assertEqual([t["correct"] for t in told], [True, True, False, True])
        self.assertEqual([t["answer"] for t in told], [text(41, 42)] * 3 + [text(42)])
        self.assertEqual(told[2]["expected"], text(41, 43))
        # Of the answers the first token alone: now all are right but the one that lacks it.
        self.assertNotEqual(text(41).strip()[:1], "")
        first = "^\\s*(" + "".join(f"\\x{{{ord(c):x}}}" for c in text(41).strip()[:1]) + ")"
        some = write_rows(self.folder / "some.jsonl", rows[:3])
        words[1] = some
        self.assertEqual(self.evaluate(folder, *words, "--answer_regex", first)["exact_match"], 1.0)
        words = ["--eval_files", json.dumps({"x": str(some), "y": str(file)}), "--max_new_tokens", "6"]
        by_set = self.evaluate(folder, *words, "--metric", "exact_match")
        self.assertEqual((by_set["eval_x_exact_match"], by_set["eval_y_exact_match"]), (2 / 3, 0.75))
        self.assertEqual(by_set["exact_match"], 5 / 7)
        never = self.evaluate(folder, *words, "--metric", "regex", "--answer_regex", "#### (\\d+)")
        self.assertEqual(never["regex"], 0)
        self.fail_with(
            INPUT, ["--answer_regex finds nothing in the answer of row 0"],
            "evaluate", "--model.path", folder, "--device", "cpu", *FP32, "--eval_file", file,
            "--metric", "exact_match", "--answer_regex", "#### (\\d+)",
        )  # fmt: skip
        self.fail_with(
            INPUT, ["row 0 has no prompt before its answer"],
            "evaluate", "--model.path", folder, "--device", "cpu", *FP32, "--metric", "exact_match",
            "--eval_file", write_rows(self.folder / "bare.jsonl", [{"input_ids": [40, 41, 42]}]),
        )  # fmt: skip

    def test_answers_in_a_run(self):
        """The same questions while the model learns other answers to them."""
        folder = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
        stopping_model(folder)

        def rows(name, *pairs):
            made = [{"input_ids": p + a, "labels": [-100] * len(p) + a} for p, a in pairs]
            return write_rows(self.folder / f"{name}.jsonl", made)

        questions = [([5, 40], [41, 42, 1]), ([7, 7, 40], [41, 42, 1]), ([9, 41], [42, 1]), ([5, 41], [43, 1])]
        train = rows("train", *[([8 + i % 5, 41], [43, 1]) for i in range(16)])
        sets = json.dumps({"old": str(rows("old", *questions[:3])), "new": str(rows("new", *questions[3:]))})
        words = ["--eval_files", sets, "--eval_steps", "3", "--eval_on_start", "--max_steps", "9", "--save_steps", "3"]
        words += ["--learning_rate", "0.1", "--lr_scheduler_type", "constant", "--warmup_steps", "0"]
        words += ["--target_modules", "q_proj,v_proj", "--modules_to_save", "lm_head"]
        asks = ["--eval_metric", "exact_match", "--eval_max_new_tokens", "6", "--load_best_model_at_end"]
        asks += ["--metric_for_best_model", "new_exact_match"]
        out = self.train(folder, train, *words, *asks)
        found = {
            e["step"]: [e[f"eval_{name}exact_match"] for name in ("", "old_", "new_")] for e in self.evaluations(out)
        }
        self.assertEqual(found[0], [0.75, 1, 0])
        self.assertEqual(found[9][2], 1, "the run of this test must learn the other answer")
        self.assertNotEqual(found[3], found[9], "an evaluation that differs from the last is needed")
        told = read_rows(out / "answers.jsonl")
        self.assertEqual([t["step"] for t in told], [step for step in (0, 3, 6, 9) for _ in questions])
        for step, (share, _, _) in found.items():
            self.assertEqual(sum(t["correct"] for t in told if t["step"] == step), 4 * share)
        best = min(step for step in found if step > 0 and found[step][2] == 1)
        self.assertEqual(json.loads((out / "trainer_state.json").read_text())["best_global_step"], best)
        self.assertEqual((out / ADAPTER).read_bytes(), (out / f"checkpoint-{best}" / ADAPTER).read_bytes())
        words_after = ["--adapter_name_or_path", out, "--eval_files", sets, "--max_new_tokens", "6"]
        after = self.evaluate(folder, *words_after, "--metric", "exact_match", "--answers", self.folder / "after.jsonl")
        self.assertEqual(
            [after["exact_match"], after["eval_old_exact_match"], after["eval_new_exact_match"]], found[best]
        )
        kept = [{k: v for k, v in t.items() if k not in ("step", "epoch")} for t in told if t["step"] == best]
        self.assertEqual(kept, read_rows(self.folder / "after.jsonl"))
        for e in self.evaluations(out):
            self.assertAlmostEqual(e["eval_perplexity"], math.exp(e["eval_loss"]))
        cache = [
            line
            for line in self.succeed(
                *self.train_arguments(folder, train, *words, *asks, "--max_steps", "0", out="plan")
            ).err.splitlines()
            if "kv cache" in line
        ]
        self.assertEqual(len(cache), 1, "the plan holds training's and the answers' memory")
        # The run is what it is without, and several ranks share the questions.
        without = self.train(folder, train, *words, out="without")
        self.assertEqual([s["loss"] for s in self.steps(out)], [s["loss"] for s in self.steps(without)])
        both = self.train_arguments(folder, train, *words, *asks, "--per_device_train_batch_size", "1", out="both")
        self.succeed("launch", "--nproc_per_node", "2", "train", *both)
        self.assertEqual(
            [t["row"] for t in read_rows(self.folder / "both" / "answers.jsonl")], [t["row"] for t in told]
        )
        first = self.evaluations(self.folder / "both")[0]
        self.assertEqual([first[f"eval_{name}exact_match"] for name in ("", "old_", "new_")], found[0])
        # From a checkpoint on it finds, and keeps, the same.
        again = self.train(folder, train, *words, *asks, "--resume_from_checkpoint", out / "checkpoint-6", out="again")
        values = {e["step"]: e["eval_exact_match"] for e in self.evaluations(again)}
        self.assertEqual(values[9], found[9][0])

    def test_what_a_run_cannot_judge(self):
        base, rows = model(LLAMA), self.rows(8)
        evaluated = ["--val_size", "2", "--eval_steps", "1"]
        for told, words in (
            ("needs data.eval_file", ["--eval_metric", "exact_match"]),
            ("needs training.eval_answer_regex", [*evaluated, "--eval_metric", "regex"]),
            ("only applies to training.eval_metric", [*evaluated, "--eval_answer_regex", "x"]),
            ("an evaluation has no eval_exact_match", [*evaluated, "--metric_for_best_model", "exact_match"]),
        ):
            with self.subTest(told):
                self.fail_with(USAGE, told, *self.train_arguments(base, rows, *words))


if __name__ == "__main__":
    main()
