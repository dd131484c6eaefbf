"""sweep: the best trial is a run alone to the last byte, an interrupted sweep goes on, and what is refused."""

import json
import re
import signal
import time
import unittest

from support import (
    EndToEnd,
    LLAMA,
    SIGTERM_SAVED,
    TIMEOUT_S,
    finish,
    main,
    model,
    read_rows,
    start,
)

ADAPTER = "adapter_model.safetensors"
STEPS = 9
RATES = ["1e-5", "1e-2", "3e-2", "1e-3"]


class Sweeping(EndToEnd):
    def setUp(self):
        super().setUp()
        self.data, self.held_out = self.rows(14), self.rows(6, "held_out.jsonl", seed=2)

    def arguments(self, *extra, out="out"):
        given = self.train_arguments(model(LLAMA), self.data, "--eval_file", self.held_out, *extra, out=out)
        at = given.index("--learning_rate")
        return given[:at] + given[at + 2 :]

    def of_four(self, *extra, out="out"):
        return self.arguments(
            *("--max_steps", STEPS, "--lr_scheduler_type", "cosine", "--lora_dropout", "0.1", "--r", "4"),
            *extra,
            out=out,
        )

    def record(self, out="out"):
        return json.loads((self.folder / out / "sweep.json").read_text())

    def check_equals_a_run_alone(self, out="out"):
        """The winner's bytes and losses, those of its evaluations at comparisons too."""
        best = self.record(out)["best"]
        alone = self.folder / "alone"
        if not alone.exists():
            rate = best["options"]["training.learning_rate"]
            self.succeed("train", *self.of_four("--learning_rate", rate, "--eval_steps", "3", out="alone"))
        self.assertEqual((self.folder / out / ADAPTER).read_bytes(), (alone / ADAPTER).read_bytes())
        figures = lambda folder: [(row["step"], row["loss"], row["grad_norm"]) for row in self.steps(folder)]
        self.assertEqual(figures(self.folder / out), figures(alone))
        losses = {row["step"]: row["eval_loss"] for row in self.evaluations(alone)}
        scores = {score["step"]: score["value"] for score in best["scores"]}
        self.assertEqual(list(scores), [3, 5, 9])
        self.assertEqual((scores[3], scores[9]), (losses[3], losses[9]))

    def test_the_best_of_four_equals_a_run_alone(self):
        sweep = ["sweep", *self.of_four("--learning_rate", ",".join(RATES))]
        result = self.succeed(*sweep)
        record, out = self.record(), self.folder / "out"
        self.assertTrue(record["finished"])
        took = float(
            re.search(r"all trials took ([\d.]+) s, [\d.]+ times as long as the best one's", result.err).group(1)
        )
        seconds = [score["seconds"] for trial in record["trials"] for score in trial["scores"]]
        self.assertAlmostEqual(took, sum(seconds), delta=0.1)
        self.assertEqual(record["steps"], [3, 5, 9])
        self.assertEqual([trial["options"]["training.learning_rate"] for trial in record["trials"]], RATES)
        first = [trial["scores"][0]["value"] for trial in record["trials"]]
        kept = sorted(sorted(range(4), key=first.__getitem__)[:2])
        self.assertEqual([i for i, trial in enumerate(record["trials"]) if trial["scores"][0]["kept"]], kept)
        second = {i: record["trials"][i]["scores"][1]["value"] for i in kept}
        self.assertEqual(record["best"]["trial"] - 1, min(second, key=second.get))
        self.check_equals_a_run_alone()
        self.assertEqual(self.summary(out)["exit_reason"], "finished")
        self.assertEqual(json.loads((out / "run_config.json").read_text())["training"]["output_dir"], str(out))
        for trial in record["trials"]:
            folder = out / "trials" / f"{trial['trial']:02}"
            if trial["state"] == "best":
                self.assertFalse(folder.exists())
                continue
            self.assertEqual(trial["state"], f"dropped at step {trial['scores'][-1]['step']}")
            self.assertEqual(self.steps(folder)[-1]["step"], trial["scores"][-1]["step"])
            self.assertEqual([path.name for path in folder.glob("checkpoint-*")], [])
            self.assertFalse((folder / ADAPTER).exists())
        for state in ("best", "dropped at step 3", "dropped at step 5"):
            self.assertIn(state, result.out)

        compared = self.succeed("compare", out).out
        self.assertIn("learning_rate: " + " | ".join(json.dumps(float(rate)) for rate in RATES), compared)
        self.succeed("report", out)
        page = (out / "report.html").read_text()
        self.assertIn('id="trials"', page)
        self.assertIn("dropped at step 5", page)

        before = (out / ADAPTER).stat().st_mtime_ns
        self.assertIn("finished", self.succeed(*sweep).err)
        self.assertEqual((out / ADAPTER).stat().st_mtime_ns, before)
        self.fail_with("sweep.other-sweep", "other settings", "sweep", *self.of_four("--learning_rate", "1e-2,2e-2"))
        self.fail_with("sweep.other-sweep", "training.weight_decay", *sweep, "--weight_decay", "0.5")
        self.succeed("sweep", *self.of_four("--learning_rate", "1e-2,2e-2", "--overwrite_output_dir"))
        self.assertEqual(len(self.record()["trials"]), 2)

    def stop_when(self, seen, how, *arguments):
        """Ends the sweep once `seen` says so; its exit code."""
        process = start("sweep", *arguments)
        deadline = time.monotonic() + TIMEOUT_S
        while not seen() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(how)
        return finish(process).code

    def test_an_interrupted_one_goes_on(self):
        for name, how, code in (("term", signal.SIGTERM, SIGTERM_SAVED), ("kill", signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(name):
                sweep = self.of_four("--grid", "learning_rate=" + ",".join(RATES), out=name)
                second = self.folder / name / "trials" / "02" / "metrics.jsonl"
                self.assertEqual(self.stop_when(second.exists, how, *sweep), code)
                self.assertIsNone(self.record(name)["best"])
                done = self.record(name)["trials"][0]["scores"]
                log = self.folder / name / "trials" / "01.log"
                self.assertEqual(log.read_text().count("training.stop_at_step"), 1)
                self.succeed("sweep", *sweep)
                self.assertEqual(self.record(name)["trials"][0]["scores"][0]["value"], done[0]["value"])
                self.check_equals_a_run_alone(name)

    def test_trials_that_diverge_lose(self):
        """Noise without bounds leaves no finite loss."""
        self.succeed("sweep", *self.arguments("--max_steps", "4", "--grid", "neftune_noise_alpha=1e300,5"))
        self.assertEqual([trial["state"] for trial in self.record()["trials"]], ["diverged at step 2", "best"])
        sweep = self.arguments("--max_steps", "4", "--neftune_noise_alpha", "1e300,1e301", out="other")
        self.fail_with("sweep.all-diverged", "finite", "sweep", *sweep)
        self.assertEqual([trial["scores"][0]["value"] for trial in self.record("other")["trials"]], [None, None])

    def test_find_lr_recommends_a_rate(self):
        result = self.succeed("sweep", *self.arguments("--find_lr", "--steps", "4", "--num_train_epochs", "1"))
        record = self.record("out/find_lr")
        rates = [float(trial["options"]["training.learning_rate"]) for trial in record["trials"]]
        self.assertEqual(len(rates), 8)
        for one, next_one in zip(rates, rates[1:]):
            self.assertAlmostEqual(next_one / one, 2, delta=0.01)
        values = [trial["scores"][0]["value"] for trial in record["trials"]]
        self.assertEqual(record["best"]["trial"], 1 + values.index(min(values)))
        self.assertIn("eval_loss is best at " + record["best"]["options"]["training.learning_rate"], record["reason"])
        self.assertIn(record["reason"], result.err)
        for trial in record["trials"]:
            folder = self.folder / "out" / "find_lr" / "trials" / f"{trial['trial']:02}"
            self.assertEqual(len(self.steps(folder)), 4)
            self.assertFalse((folder / ADAPTER).exists())

    def test_what_is_refused(self):
        rates = ["--learning_rate", "1e-3,1e-2"]
        sweep = lambda *extra, **options: ["sweep", *self.arguments(*extra, **options)]
        self.fail_with("sweep.too-few-steps", "3 steps", *sweep("--learning_rate", ",".join(RATES)))
        epoch = ["--num_train_epochs", "1", "--gradient_accumulation_steps", "16"]
        self.fail_with("sweep.too-few-steps", "1 step,", *sweep(*rates, *epoch))
        self.fail_with("option.conflict", "stop_at_step", *sweep(*rates, "--stop_at_step", "2"))
        self.fail_with("option.conflict", "max_steps", *sweep(*rates, "--max_steps", "0"))
        self.fail_with("option.conflict", "resume_from_checkpoint", *sweep(*rates, "--resume_from_checkpoint", "x"))
        self.fail_with("option.conflict", "metrics_file", *sweep(*rates, "--metrics_file", ""))
        self.fail_with("sweep.bad-axis", "one value", *sweep("--grid", "learning_rate=1e-3"))
        run = self.train(model(LLAMA), self.data, out="run")
        self.fail_with("output.exists", "a run", *sweep(*rates, out="run"))
        self.assertTrue((run / ADAPTER).exists())
        self.held_out.unlink()
        self.fail_with("sweep.trial-failed", ["trial 1 of 2 (learning_rate 1e-3)", "held_out.jsonl"], *sweep(*rates))

    def test_a_run_stops_where_it_is_told(self):
        arguments = self.of_four("--learning_rate", "1e-2")
        self.succeed("train", *arguments, "--stop_at_step", "0.5", "--save_steps", "0")
        out = self.folder / "out"
        self.assertEqual([row["step"] for row in self.steps(out)], [1, 2, 3, 4, 5])
        self.assertEqual([row["step"] for row in self.evaluations(out)], [5])
        self.assertEqual(self.summary(out)["exit_reason"], "stopped")
        self.assertTrue((out / "checkpoint-5" / "manifest.json").exists())
        self.succeed("train", *arguments, "--resume_from_checkpoint", "auto", "--stop_at_step", "4")
        self.assertEqual(len(read_rows(out / "metrics.jsonl")), 7)  # nothing but the summary is new
        self.succeed("train", *arguments, "--resume_from_checkpoint", "auto")
        self.succeed("train", *self.of_four("--learning_rate", "1e-2", out="whole"))
        self.assertEqual((out / ADAPTER).read_bytes(), (self.folder / "whole" / ADAPTER).read_bytes())


if __name__ == "__main__":
    main()
