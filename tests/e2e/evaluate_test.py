"""Which evaluation was the best, and what follows from that: early stopping, the result."""

import json
import shutil
import unittest

from support import (
    EndToEnd,
    LLAMA,
    USAGE,
    main,
    model,
)

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
    # A rate that is too high: evaluations go up and down.
    WILD = ["--learning_rate", "0.3", "--val_size", "4", "--eval_steps", "1"]

    def values(self, out, metric="eval_loss"):
        return {e["step"]: e[metric] for e in self.evaluations(out)}

    def state(self, out):
        return json.loads((out / "trainer_state.json").read_text())

    def steps_kept(self, out):
        return sorted(int(p.name.split("-")[1]) for p in out.glob("checkpoint-*"))

    def test_a_run_ends_where_transformers_would_end_it(self):
        base, rows = model(LLAMA), self.rows(16)
        whole = self.train(base, rows, *self.WILD, "--max_steps", "10", "--save_steps", "0", out="whole")
        stops = set()
        for patience, threshold, greater in ((1, 0, False), (2, 0.05, False), (2, 0, True)):
            with self.subTest(patience=patience, threshold=threshold, greater=greater):
                wanted, best = stop_and_best(self.values(whole), patience, threshold, greater)
                self.assertIsNotNone(wanted, "the data of this test must stop")
                stops.add(wanted)
                name = f"p{patience}{greater}"
                words = ["--early_stopping_patience", patience, "--early_stopping_threshold", threshold]
                words += ["--greater_is_better", "true"] if greater else []
                result = self.succeed(
                    *self.train_arguments(
                        base, rows, *self.WILD, *words, "--max_steps", "10", "--save_steps", "0", out=name
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
        self.assertGreater(len(stops), 1, "the cases of this test must differ")

    def test_the_best_one_is_the_result_whatever_the_limit(self):
        base, rows = model(LLAMA), self.rows(16)
        words = ["--max_steps", "8", "--metric_for_best_model", "loss", "--greater_is_better", "true"]
        out = self.train(
            base, rows, *self.WILD, *words, "--load_best_model_at_end", "--save_steps", "3", "--save_total_limit", "1"
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
        out = self.train(model(LLAMA), self.rows(12), *self.WILD, *words, "--load_best_model_at_end")
        best = self.state(out)["best_global_step"]
        self.assertNotEqual(best, 4, "the last one is no test")
        name = "model.safetensors"
        self.assertEqual((out / name).read_bytes(), (out / f"checkpoint-{best}" / name).read_bytes())

    def test_over_a_resume_nothing_changes(self):
        base, rows = model(LLAMA), self.rows(16)
        words = [*self.WILD, "--early_stopping_patience", "3", "--greater_is_better", "true", "--max_steps", "12"]
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
            f"goes on from {parts / f'checkpoint-{last - 2}'}",
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
        words = [*self.WILD, "--early_stopping_patience", "2", "--greater_is_better", "true", "--max_steps", "12"]
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
            *self.train_arguments(model(LLAMA), self.rows(), *self.WILD, "--metric_for_best_model", "accuracy"),
        )


if __name__ == "__main__":
    main()
