"""Several processes that train one model on the CPU: the same losses as one process, agreed stops, and what is said when they disagree."""

import json
import os
import signal
import subprocess

from rank_support import Ranks
from support import (
    LLAMA,
    OK,
    PROGRAM,
    RUNTIME,
    TIMEOUT_S,
    USAGE,
    environment,
    floats,
    main,
    model,
    read_safetensors,
)


# Of more parameters than four slices have chunks.
WIDE = LLAMA | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4}


class Distributed(Ranks):
    def test_world_sizes_give_the_same_losses(self):
        code, err = self.launch(1, self.arguments("one", 4, 2))
        self.assertEqual(code, OK, err)
        reference = self.steps(self.folder / "one")
        adapter = read_safetensors(self.folder / "one" / "adapter_model.safetensors")
        for size, batch, accumulation, *extra in ((2, 2, 2), (2, 4, 1, "--ddp_bucket_cap_mb", 1), (4, 1, 2)):
            with self.subTest(size=size, batch=batch):
                out = f"w{size}b{batch}"
                code, err = self.launch(size, self.arguments(out, batch, accumulation, *extra))
                self.assertEqual(code, OK, err)
                self.assertIn(f"ranks      {size}", err)
                self.assertEqual(err.count("done: 6 steps"), 1, "one rank reports")
                steps = self.steps(self.folder / out)
                self.assertEqual(len(steps), 6)
                for got, expected in zip(steps, reference):
                    self.assertEqual(got["tokens"], expected["tokens"])
                    self.assertEqual(got["trained_tokens"], expected["trained_tokens"])
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=2e-6 * expected["loss"])
                    self.assertAlmostEqual(got["grad_norm"], expected["grad_norm"], delta=1e-4 * expected["grad_norm"])
                for name, (_, _, data) in read_safetensors(self.folder / out / "adapter_model.safetensors").items():
                    for a, b in zip(floats(data), floats(adapter[name][2])):
                        self.assertAlmostEqual(a, b, delta=1e-5)

    def shared_optimizer(self, out, *extra, config=LLAMA):
        """For runs of one model and rows: 12 steps of 8 rows, with dropout and packed rows."""
        return self.train_arguments(
            model(config), self.rows(48), "--lora.lora_dropout", "0.1", "--max_steps", 12, *extra, out=out,
        )  # fmt: skip

    def batch(self, size):
        return ["--per_device_train_batch_size", 8 // size, "--gradient_accumulation_steps", 1]

    def result(self, out):
        return [(file.name, file.read_bytes()) for file in sorted((self.folder / out).glob("*.safetensors"))]

    def test_a_shared_optimizer_has_the_bits_of_data_parallel(self):
        """And both the losses of one process. Of the adapter's parameters some ranks have none."""
        full = ["--finetuning_type", "full", "--load_in_4bit", "false"]
        for name, config, sizes, extra in (
            ("lora", LLAMA, (4,), ["--modules_to_save", "lm_head", "--data.packing", "true"]),
            ("full", WIDE, (2, 4), full),
        ):
            code, err = self.launch(1, self.shared_optimizer(name, *self.batch(1), *extra, config=config))
            self.assertEqual(code, OK, err)
            alone = self.steps(self.folder / name)
            for size in sizes:
                runs = []
                for stage in (0, 1):
                    out = f"{name}{size}zero{stage}"
                    arguments = self.shared_optimizer(
                        out, *self.batch(size), *extra, "--zero_stage", stage, "--logging.layer_norms", "true",
                        config=config,
                    )  # fmt: skip
                    code, err = self.launch(size, arguments)
                    self.assertEqual(code, OK, err)
                    steps = self.steps(self.folder / out)
                    self.assertEqual(len(steps), 12)
                    runs.append([(s["loss"], s["grad_norm"]) for s in steps])
                    if stage == 0:
                        layers = steps
                    for got, expected in zip(steps, layers):
                        for key in expected:
                            if key.startswith("grad_norm/"):
                                self.assertAlmostEqual(got[key], expected[key], delta=1e-5 * expected[key])
                    for got, expected in zip(steps, alone):
                        self.assertEqual(got["tokens"], expected["tokens"])
                        self.assertAlmostEqual(got["loss"], expected["loss"], delta=1e-5 * expected["loss"])
                self.assertEqual(runs[0], runs[1], f"{name} on {size} ranks")
                self.assertEqual(self.result(f"{name}{size}zero0"), self.result(f"{name}{size}zero1"))

    def test_a_shared_optimizer_goes_on_with_other_numbers_of_ranks(self):
        full = ["--finetuning_type", "full", "--load_in_4bit", "false", "--zero_stage", 1, "--save_steps", 4]

        def run(out, size, *extra):
            code, err = self.launch(size, self.shared_optimizer(out, *self.batch(size), *full, *extra, config=WIDE))
            self.assertEqual(code, OK, err)
            return {s["step"]: s["loss"] for s in self.steps(self.folder / out)}

        whole = run("four", 4)
        checkpoint = self.folder / "four" / "checkpoint-4"
        self.assertEqual(
            sorted(file.name for file in checkpoint.glob("optimizer*")),
            [f"optimizer-{rank:05}-of-00004.safetensors" for rank in range(1, 5)],
        )
        again = run("again", 4, "--resume_from_checkpoint", checkpoint)
        self.assertEqual(again, {step: loss for step, loss in whole.items() if step > 4})
        self.assertEqual(self.result("again"), self.result("four"))
        run("two", 2, "--resume_from_checkpoint", checkpoint)
        one = run("one", 1, "--resume_from_checkpoint", self.folder / "two" / "checkpoint-8")
        self.assertEqual(sorted(one), [9, 10, 11, 12])
        for step, loss in one.items():
            self.assertAlmostEqual(loss, whole[step], delta=1e-4 * whole[step])
        (checkpoint / "optimizer-00003-of-00004.safetensors").unlink()
        code, err = self.launch(
            2,
            self.shared_optimizer(
                "missing", *self.batch(2), *full, "--resume_from_checkpoint", checkpoint, config=WIDE
            ),
        )
        self.assertNotEqual(code, OK)
        self.assertIn("optimizer-00003-of-00004.safetensors is missing", err)

    def test_a_killed_rank_of_a_shared_optimizer_is_named(self):
        arguments = self.shared_optimizer(
            "shared_killed", *self.batch(2), "--finetuning_type", "full", "--load_in_4bit", "false", "--zero_stage", 1,
            "--save_steps", 1000, "--max_steps", 1000000, "--ddp_timeout", 5, config=WIDE,
        )  # fmt: skip
        ranks = self.start_ranks(lambda rank: arguments)
        metrics = self.folder / "shared_killed" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        ranks[1].kill()
        err = self.expect_code(ranks[0], RUNTIME)
        self.assertRegex(err, r"rank 1 .*(no heartbeat|did not come to .* of step)")
        self.assertEqual(list((self.folder / "shared_killed").glob("checkpoint-*")), [])

    def test_a_student_is_the_same_on_ranks(self):
        """Each rank has the whole teacher; the divergence is summed over their targets."""
        results = []
        for size, batch in ((1, 4), (2, 2)):
            out = f"distill{size}"
            arguments = self.train_arguments(
                model(LLAMA), self.rows(20), "--objective", "distill", "--distill.teacher", model(LLAMA),
                "--distill.divergence", "jsd", "--learning_rate", 0.01, "--per_device_train_batch_size", batch,
                "--gradient_accumulation_steps", 1, "--max_steps", 7, "--val_size", 3, out=out,
            )  # fmt: skip
            code, err = self.launch(size, arguments)
            self.assertEqual(code, OK, err)
            lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
            results.append([line for line in lines if "event" not in line])
        one, two = results
        self.assertEqual(len(one), 7 + 1)
        self.assertGreater(one[6]["divergence"], 1e-3, "the labels lead away from the teacher")
        for expected, got in zip(one, two):
            for key, value in expected.items():
                if key in ("loss", "eval_loss") or key.endswith("divergence"):
                    self.assertAlmostEqual(got[key], value, delta=1e-5 * max(1, abs(value)), msg=key)
        self.assertIn("eval_divergence", one[-1])

    def test_preferences_are_the_same_on_ranks(self):
        """The reference is scored by all ranks together; kto's divergence is that of a round, which all ranks share."""
        for objective in ("dpo", "kto"):
            rows = self.preference_rows(objective, 20)  # the last step of the epoch leaves a rank with less
            results = []
            for size, batch in ((1, 4), (2, 2)):
                out = f"{objective}{size}"
                arguments = self.train_arguments(
                    model(LLAMA), rows, "--objective", objective, "--per_device_train_batch_size", batch,
                    "--gradient_accumulation_steps", 1, "--max_steps", 7, "--val_size", 3, out=out,
                )  # fmt: skip
                code, err = self.launch(size, arguments)
                self.assertEqual(code, OK, err)
                lines = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
                adapter = read_safetensors(self.folder / out / "adapter_model.safetensors")
                results.append(([line for line in lines if "event" not in line], adapter))
            (one, adapter), (two, others) = results
            self.assertEqual(len(one), 7 + 1)
            for expected, got in zip(one, two):
                self.assertEqual(expected.keys(), got.keys() - {"rank_work_ms"})  # of several ranks alone
                for key, value in expected.items():
                    # An evaluation's batches follow from the batch size, and kto's divergence is a batch's.
                    if objective == "kto" and key.startswith("eval_"):
                        continue
                    if key in ("loss", "eval_loss") or "rewards/" in key or "logps/" in key or key.endswith("kl"):
                        self.assertAlmostEqual(
                            got[key], value, delta=1e-5 * max(1, abs(value)), msg=f"{objective} {key}"
                        )
            self.assertIn("eval_rewards/margins", one[-1])
            for name, (_, _, data) in others.items():
                for a, b in zip(floats(data), floats(adapter[name][2])):
                    self.assertAlmostEqual(a, b, delta=5e-5)

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        code, err = self.launch(2, self.arguments("two", 2, 2, "--save_steps", 3))
        self.assertEqual(code, OK, err)
        expected = self.steps(self.folder / "two")[3:]
        for size in (1, 4):
            out = f"from_two_to_{size}"
            code, err = self.launch(
                size, self.arguments(out, 2, 2, "--resume_from_checkpoint", self.folder / "two" / "checkpoint-3")
            )
            self.assertEqual(code, OK, err)
            self.assertIn(f"gradient_accumulation_steps is {4 // size} instead of 2", err)
            steps = self.steps(self.folder / out)
            self.assertEqual([s["step"] for s in steps], [4, 5, 6])
            for got, other in zip(steps, expected):
                self.assertEqual((got["tokens"], got["trained_tokens"]), (other["tokens"], other["trained_tokens"]))
                self.assertAlmostEqual(got["loss"], other["loss"], delta=2e-6 * other["loss"])
        code, err = self.launch(
            3, self.arguments("three", 2, 2, "--resume_from_checkpoint", self.folder / "two" / "checkpoint-3")
        )
        self.assertIn(code, (USAGE, RUNTIME), err)  # a rank may hear of another's refusal before it has its own
        self.assertIn("error[checkpoint.other-options]", err)
        self.assertIn("divide it", err)

    def test_a_restart_goes_on_from_the_newest_checkpoint(self):
        """As torchrun and launch --max_restarts do it: all ranks start again after one was killed."""
        arguments = self.arguments(
            "restarted",
            2,
            1,
            "--max_steps",
            60,
            "--save_steps",
            5,
            "--ddp_timeout",
            3,
            "--resume_from_checkpoint",
            "auto",
        )
        launcher = subprocess.Popen(
            [
                PROGRAM,
                "launch",
                "--nproc_per_node",
                "2",
                "--max_restarts",
                "1",
                "--grace_period",
                "20",
                *map(str, arguments),
            ],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(lambda: (launcher.kill(), launcher.wait(), launcher.stderr.close()))
        metrics = self.folder / "restarted" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 12, [launcher])
        children = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[-1]), signal.SIGKILL)
        err = launcher.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(launcher.returncode, OK, err)
        self.assertIn("resuming from", err)
        code, other = self.launch(2, self.arguments("whole", 2, 1, "--max_steps", 60))
        self.assertEqual(code, OK, other)
        self.assertEqual(
            [s["loss"] for s in self.steps(self.folder / "restarted")],
            [s["loss"] for s in self.steps(self.folder / "whole")],
        )

    def test_evaluation_counts_every_row_once(self):
        losses = []
        for size in (1, 3):
            out = f"eval{size}"
            code, err = self.launch(
                size, self.arguments(out, 2 if size == 3 else 6, 1, "--val_size", 7, "--eval_on_start", "true")
            )
            self.assertEqual(code, OK, err)
            rows = self.evaluations(self.folder / out)
            losses.append([(r["eval_loss"], r["eval_tokens"]) for r in rows])
        for (a, n), (b, m) in zip(*losses):
            self.assertAlmostEqual(a, b, delta=1e-5 * a)
            self.assertEqual(n, m)


if __name__ == "__main__":
    main()
