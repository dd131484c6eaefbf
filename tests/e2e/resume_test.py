"""Going on from a checkpoint: the same losses and the same bytes as a run that was not interrupted, and what is refused."""

import json
import re
import shutil
import signal
import time
import unittest

from support import (
    EndToEnd,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    SIGTERM_SAVED,
    TEXT_LLAMA,
    TIMEOUT_S,
    USAGE,
    environment,
    finish,
    main,
    model,
    start,
    token_rows,
    write_rows,
)

STEPS = 9
ADAPTER = "adapter_model.safetensors"


class Resuming(EndToEnd):
    # Dropout, 8-bit moments (the projections are large enough for them), an epoch that ends in the middle, accumulation.
    COMMON = [
        "--lora.lora_dropout",
        "0.1",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "2",
        "--max_steps",
        str(STEPS),
        "--lr_scheduler_type",
        "cosine",
        "--r",
        "16",
    ]
    WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 288}

    def arguments(self, out, *extra, base=None, rows=None):
        return self.train_arguments(base or model(self.WIDE), rows or self.data, *self.COMMON, *extra, out=out)

    def setUp(self):
        super().setUp()
        self.data = self.rows(14)

    def figures(self, out):
        return [
            (s["step"], s["epoch"], s["loss"], s["grad_norm"], s["learning_rate"], s["tokens"])
            for s in self.steps(self.folder / out)
        ]

    def compare(self, *extra, at=4, files=(ADAPTER,)):
        """A run of STEPS steps against one that is stopped after `at` and goes on."""
        self.succeed(*self.arguments("whole", *extra))
        self.succeed(*self.arguments("parts", *extra, "--save_steps", at, "--save_total_limit", 9))
        for checkpoint in (self.folder / "parts").glob("checkpoint-*"):
            if checkpoint.name != f"checkpoint-{at}":
                shutil.rmtree(checkpoint)
        for file in (*files, "trainer_state.json"):  # as a run that was killed leaves its folder
            (self.folder / "parts" / file).unlink()
        result = self.succeed(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
        self.assertIn(f"goes on from {self.folder / 'parts' / f'checkpoint-{at}'}", result.err)
        self.assertEqual(self.figures("parts"), self.figures("whole"))
        for file in files:
            self.assertEqual(
                (self.folder / "parts" / file).read_bytes(), (self.folder / "whole" / file).read_bytes(), file
            )
        whole, parts = (json.loads((self.folder / f / "trainer_state.json").read_text()) for f in ("whole", "parts"))
        for key in ("global_step", "epoch", "num_input_tokens_seen", "log_history"):
            self.assertEqual(parts[key], whole[key], key)

    def test_what_was_left_to_the_program_stays(self):
        auto = ("--learning_rate", "auto", "--r", "auto")
        log = self.succeed(*self.arguments("chosen", *auto, "--max_steps", 1)).err
        self.assertRegex(log, r"learning_rate auto: 8\.43e-04 = 5e-4 x \(2000 / 1024\)\^0\.781 for a LoRA of a Llama")
        self.assertRegex(log, r"r auto: 8: the adapters' \d+ parameters are at least the \d+ targets")
        of_run = json.loads((self.folder / "chosen" / "run_config.json").read_text())
        self.assertEqual((of_run["training"]["learning_rate"], of_run["lora"]["r"]), (8.43e-4, 8))
        given = ("--learning_rate", "1e-3", "--r", "4", "--save_steps", 2)
        self.succeed(*self.arguments("run", *given, "--max_steps", 2))
        log = self.succeed(*self.arguments("run", *auto, "--resume_from_checkpoint", "auto")).err
        self.assertIn("learning_rate auto: 0.001, as the run began", log)
        self.assertIn("r auto: 4, as the run began", log)

    def test_in_the_middle_of_an_epoch(self):
        self.compare(at=5)

    def test_at_every_step(self):
        self.succeed(*self.arguments("whole", "--save_steps", 1))
        expected = (self.folder / "whole" / ADAPTER).read_bytes()
        moments = (self.folder / "whole" / f"checkpoint-{STEPS}" / "optimizer.safetensors").read_bytes()
        for step in range(1, STEPS):
            with self.subTest(step=step):
                out = f"from{step}"
                self.succeed(
                    *self.arguments(
                        out,
                        "--save_steps",
                        100,
                        "--resume_from_checkpoint",
                        self.folder / "whole" / f"checkpoint-{step}",
                    )
                )
                self.assertEqual((self.folder / out / ADAPTER).read_bytes(), expected)
                self.assertEqual(
                    (self.folder / out / f"checkpoint-{STEPS}" / "optimizer.safetensors").read_bytes(), moments
                )

    def test_another_number_of_threads_is_told(self):
        """The BLAS library divides sums by it."""
        self.succeed(*self.arguments("run", "--save_steps", 3, "--max_steps", 3), env=environment(OMP_NUM_THREADS=1))
        state = json.loads((self.folder / "run" / "checkpoint-3" / "run_state.json").read_text())
        self.assertEqual(state["cpu_threads"], 1)
        words = "1 CPU threads until now, 2 from here on"
        for threads in (1, 2):
            result = self.succeed(
                *self.arguments("run", "--max_steps", 4, "--save_steps", 0),
                "--resume_from_checkpoint",
                self.folder / "run" / "checkpoint-3",
                "--training.output_dir",
                self.folder / f"with{threads}",
                env=environment(OMP_NUM_THREADS=threads),
            )
            self.assertEqual(words in result.err, threads == 2, result)

    def test_with_packing(self):
        self.compare("--packing", "true", "--max_seq_length", "32", at=3)

    def test_with_modules_to_save(self):
        self.compare("--modules_to_save", "lm_head", at=3)

    def test_with_8_bit_products_of_the_backward_pass(self):
        self.compare("--compute_dtype", "fp8_backward", at=4)

    def test_with_32_bit_moments(self):
        self.compare("--optim", "adamw_torch", at=3)

    def test_full_training(self):
        self.compare("--finetuning_type", "full", at=3, files=("model.safetensors",))

    def test_full_training_of_16_bit_weights(self):
        """The fp32 values that training goes on with hold more than the model that is saved."""
        base = model(self.WIDE | {"torch_dtype": "bfloat16"}, dtype="bfloat16")
        extra = ["--finetuning_type", "full", "--dtype", "bfloat16"]
        arguments = self.arguments
        self.arguments = lambda out, *more, **given: arguments(out, *more, base=base)
        self.compare(*extra, at=3, files=("model.safetensors",))

    def test_half_precision_with_its_loss_scale(self):
        self.compare("--dtype", "float16", at=4)

    def test_a_schedule_that_follows_the_evaluations(self):
        self.compare(
            "--lr_scheduler_type",
            "reduce_lr_on_plateau",
            "--lr_scheduler_kwargs",
            '{"patience": 0, "factor": 0.5, "threshold": 0.5}',
            "--val_size",
            "4",
            "--eval_steps",
            "1",
            at=4,
        )

    def start(self, *arguments):
        process = start(*arguments)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
        return process

    def wait_for(self, process, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            if process.poll() is not None:
                self.fail(finish(process).err)
            time.sleep(0.01)

    def test_after_a_signal_and_after_a_kill(self):
        extra = ["--max_steps", 60, "--save_steps", 7]
        self.succeed(*self.arguments("whole", *extra))
        metrics = self.folder / "parts" / "metrics.jsonl"
        for number, least in ((signal.SIGTERM, 5), (signal.SIGKILL, 20), (signal.SIGTERM, 30)):
            process = self.start(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
            self.wait_for(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= least)
            process.send_signal(number)
            done = finish(process)
            if number == signal.SIGTERM:
                self.assertEqual(done.code, SIGTERM_SAVED, done)
                self.assertIn("--resume_from_checkpoint auto", done.err)
        self.succeed(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
        self.assertEqual(self.figures("parts"), self.figures("whole"))
        self.assertEqual((self.folder / "parts" / ADAPTER).read_bytes(), (self.folder / "whole" / ADAPTER).read_bytes())
        self.assertEqual(
            [p.name for p in (self.folder / "parts").iterdir() if ".tmp-" in p.name or p.name == "run.lock"], []
        )

    def test_means_of_losses_and_the_last_words_after_going_on(self):
        extra = ["--save_steps", 4, "--logging_steps", 3]
        self.succeed(*self.arguments("whole", *extra))
        whole = self.figures("whole")
        shutil.copytree(self.folder / "whole" / "checkpoint-4", self.folder / "parts" / "checkpoint-4")
        result = self.succeed(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
        self.assertEqual(self.figures("parts"), [row for row in whole if row[0] > 4])  # step 6: mean of 4, 5 and 6
        summary = self.summary(self.folder / "parts")
        self.assertEqual((summary["global_step"], summary["steps"]), (STEPS, STEPS - 4))
        self.assertIn(f"done: {STEPS} steps, {STEPS - 4} of them now: {summary['tokens']} tokens in", result.err)
        self.assertLess(summary["tokens"], self.summary(self.folder / "whole")["tokens"])

    def test_a_step_longer_than_the_grace_is_dropped(self):
        extra = ["--max_steps", 4, "--gradient_accumulation_steps", 120, "--logging_steps", 1]
        rows = self.rows(600, name="many.jsonl")
        arguments = self.arguments(
            "long", *extra, "--save_grace_seconds", 0, "--resume_from_checkpoint", "auto", rows=rows
        )
        process = self.start(*arguments)
        metrics = self.folder / "long" / "metrics.jsonl"
        self.wait_for(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= 1)
        one = self.steps(self.folder / "long")[0]["step_ms"] / 1000
        time.sleep(one / 4)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        done = finish(process)
        self.assertEqual(done.code, SIGTERM_SAVED, done)
        self.assertIn("stopped after step 1 of 4", done.err)
        self.assertLess(time.monotonic() - began, max(0.75 * one, 3))
        self.succeed(*arguments)
        self.succeed(*self.arguments("whole", *extra, rows=rows))
        self.assertEqual((self.folder / "long" / ADAPTER).read_bytes(), (self.folder / "whole" / ADAPTER).read_bytes())

    def test_checkpoints_by_time(self):
        self.succeed(*self.arguments("timed", "--max_steps", 40, "--save_minutes", "0.0005"))
        saved = sorted(int(p.name.split("-")[1]) for p in (self.folder / "timed").glob("checkpoint-*"))
        self.assertGreater(len(saved), 2)
        self.assertEqual(saved[-1], 40)

    def test_templates_in_a_folder_come_along(self):
        base = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE), "base")
        template = "additional_chat_templates/tool_use.jinja"
        (base / template).parent.mkdir()
        (base / template).write_text("{{ messages[0].content }}")
        rows = write_rows(self.folder / "texts.jsonl", [{"text": "The term is one year."}] * 4)
        self.succeed(*self.arguments("out", "--max_steps", 1, "--save_steps", 1, base=base, rows=rows))
        checkpoint = self.folder / "out" / "checkpoint-1"
        self.assertEqual((checkpoint / template).read_bytes(), (base / template).read_bytes())
        self.assertIn(
            template, [file["name"] for file in json.loads((checkpoint / "manifest.json").read_text())["files"]]
        )
        result = self.succeed(
            *self.arguments("out", "--max_steps", 2, "--resume_from_checkpoint", "auto", base=base, rows=rows)
        )
        self.assertIn(f"goes on from {checkpoint}", result.err)

    def test_the_best_one_is_kept(self):
        self.succeed(
            *self.arguments(
                "best",
                "--learning_rate",
                0.3,
                "--val_size",
                4,
                "--eval_steps",
                1,
                "--eval_on_start",
                "true",
                "--save_steps",
                1,
                "--save_total_limit",
                2,
            )
        )
        state = json.loads((self.folder / "best" / "trainer_state.json").read_text())
        kept = {p.name for p in (self.folder / "best").glob("checkpoint-*")}
        self.assertIn(f"checkpoint-{STEPS}", kept)
        if state["best_global_step"] > 0:
            self.assertIn(f"checkpoint-{state['best_global_step']}", kept)
        self.assertEqual(len(kept), 2)

    def test_after_the_last_step(self):
        """What was evaluated and answered is not evaluated again, and has one row."""
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "texts.jsonl", [{"text": f"The term is {n} years."} for n in range(12)])
        prompts = self.folder / "prompts.txt"
        prompts.write_text("The term\n")
        extra = ["--max_steps", 2, "--save_steps", 2, "--sample_prompts", prompts, "--sample_max_new_tokens", 2]
        for held_out in (["--val_size", 4], []):
            with self.subTest(held_out=held_out):
                out = self.folder / f"last{len(held_out)}"
                arguments = self.arguments(out.name, *extra, *held_out, base=base, rows=rows)
                self.succeed(*arguments)
                files = [(out / name).read_text() for name in ("samples.jsonl", "trainer_state.json")]
                loss = self.summary(out)["final_eval_loss"]
                (out / "trainer_state.json").unlink()
                self.succeed(*arguments, "--resume_from_checkpoint", "auto")
                self.assertEqual([e["step"] for e in self.evaluations(out)], [2] * bool(held_out))
                self.assertEqual([(out / name).read_text() for name in ("samples.jsonl", "trainer_state.json")], files)
                self.assertEqual(self.summary(out)["final_eval_loss"], loss)

    def test_after_the_last_step_with_another_evaluation_set(self):
        """Another set is evaluated, also where the step has an evaluation; the same one is not."""
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "texts.jsonl", [{"text": f"The term is {n} years."} for n in range(8)])
        sets = [write_rows(self.folder / f"{n}.jsonl", [{"text": f"Rent is due {n} times."}]) for n in range(2)]
        losses = []
        for held_out, evaluations in ((sets[0], 1), (sets[0], 1), (sets[1], 2), (sets[1], 2)):
            self.succeed(
                *self.arguments("last", "--max_steps", 2, "--eval_file", held_out, base=base, rows=rows),
                *("--resume_from_checkpoint", "auto"),
            )
            self.assertEqual(len(self.evaluations(self.folder / "last")), evaluations)
            losses.append(self.summary(self.folder / "last")["final_eval_loss"])
        self.assertEqual((losses[0], losses[2]), (losses[1], losses[3]))
        self.assertNotEqual(losses[0], losses[2])

    def test_damaged_ones_are_passed_over(self):
        self.succeed(*self.arguments("whole"))
        self.succeed(*self.arguments("parts", "--save_steps", 2))
        out = self.folder / "parts"
        (out / f"checkpoint-{STEPS}" / "manifest.json").unlink()
        spoilt = bytearray((out / "checkpoint-8" / "optimizer.safetensors").read_bytes())
        spoilt[-1] ^= 1
        (out / "checkpoint-8" / "optimizer.safetensors").write_bytes(spoilt)
        (out / "checkpoint-6" / "run_state.json").unlink()
        # A finished result is not replaced by one from an earlier step; that of a run that was killed is not there.
        self.fail_with(
            USAGE,
            [
                f"holds the result of a finished run of {STEPS} steps",
                str(out / "checkpoint-4"),
                "Nothing is left to do",
            ],
            *self.arguments("parts", "--resume_from_checkpoint", "true"),
        )
        (out / "trainer_state.json").unlink()
        result = self.succeed(*self.arguments("parts", "--resume_from_checkpoint", "true"))
        for word in (
            "has no manifest.json",
            "optimizer.safetensors was changed",
            "run_state.json is missing",
            "goes on from " + str(out / "checkpoint-4"),
        ):
            self.assertIn(word, result.err)
        self.assertEqual(self.figures("parts"), self.figures("whole"))
        self.fail_with(
            INPUT,
            ["not a complete checkpoint"],
            *self.arguments("other", "--resume_from_checkpoint", self.damaged(out / "checkpoint-4")),
        )

    def damaged(self, checkpoint):
        (checkpoint / ADAPTER).write_bytes(b"")
        return checkpoint

    def test_what_would_be_another_run_is_refused(self):
        self.succeed(*self.arguments("parts", "--save_steps", 4))
        newest = self.folder / "parts" / "checkpoint-4"
        other = write_rows(self.folder / "other.jsonl", token_rows(14, seed=5))
        for option, value in (
            ("--r", 8),
            ("--seed", 7),
            ("--optim", "adamw_torch"),
            ("--lora_dropout", 0.0),
            ("--packing", "true"),
        ):
            with self.subTest(option=option):
                self.fail_with(
                    USAGE,
                    [option.lstrip("-")],
                    *self.arguments("new", option, value, "--resume_from_checkpoint", newest),
                )
        self.fail_with(
            USAGE, ["rows are not those"], *self.arguments("new", "--resume_from_checkpoint", newest, rows=other)
        )
        self.fail_with(
            USAGE,
            ["gradient_accumulation_steps to 4"],
            *self.arguments(
                "new",
                "--per_device_train_batch_size",
                1,
                "--gradient_accumulation_steps",
                3,
                "--resume_from_checkpoint",
                newest,
            ),
        )
        self.fail_with(
            USAGE,
            ["is a run's output folder", "checkpoint-"],
            *self.arguments("new", "--resume_from_checkpoint", self.folder / "parts"),
        )
        self.fail_with(
            "checkpoint.not-found",
            ["no folder"],
            *self.arguments("new", "--resume_from_checkpoint", self.folder / "absent"),
        )
        self.fail_with(
            "checkpoint.not-found",
            ["no complete checkpoint"],
            *self.arguments("empty", "--resume_from_checkpoint", "true"),
        )
        result = self.succeed(
            *self.arguments("new", "--learning_rate", 0.001, "--max_steps", 12, "--resume_from_checkpoint", newest)
        )
        self.assertIn("changed since the checkpoint: training.learning_rate", result.err)
        self.assertEqual([s["step"] for s in self.steps(self.folder / "new")], list(range(5, 13)))
        # An earlier version wrote options under their former names.
        file = newest / "run_config.json"
        written = json.loads(file.read_text())
        self.assertEqual(written["data"].pop("overflow_strategy"), "auto")
        written["data"]["long_rows"] = "drop"
        file.write_text(json.dumps(written))
        manifest = json.loads((newest / "manifest.json").read_text())
        manifest["files"] = [entry for entry in manifest["files"] if entry["name"] != file.name]
        (newest / "manifest.json").write_text(json.dumps(manifest))
        self.fail_with(
            USAGE,
            ['data.overflow_strategy: "drop" until now, "auto" from here on'],
            *self.arguments("new2", "--resume_from_checkpoint", newest),
        )

    def test_other_labels_and_positions_are_other_rows(self):
        """The same tokens with as many targets and segments: only which ones they are differs."""
        ids = [row["input_ids"] for row in token_rows(14, shortest=12, longest=12)]
        off = [-100] * 4
        forms = {
            # The first token is no target in any case.
            "labels": ([off + i[4:] for i in ids], None, [i[:4] + off[:3] + i[7:] for i in ids], None),
            "positions": (ids, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7], ids, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]),
        }
        for name, (labels, positions, other_labels, other_positions) in forms.items():
            with self.subTest(name=name):

                def rows(file, labels, positions):
                    extra = {"position_ids": positions} if positions else {}
                    return write_rows(
                        self.folder / file, [{"input_ids": i, "labels": l} | extra for i, l in zip(ids, labels)]
                    )

                first, second = (
                    rows("first.jsonl", labels, positions),
                    rows("second.jsonl", other_labels, other_positions),
                )
                self.succeed(*self.arguments(name, "--save_steps", 4, rows=first))
                self.fail_with(
                    USAGE,
                    ["rows are not those"],
                    *self.arguments(
                        "new", "--resume_from_checkpoint", self.folder / name / "checkpoint-4", rows=second
                    ),
                )

    def test_nothing_that_is_further_on_is_replaced(self):
        out = self.folder / "parts"
        self.succeed(*self.arguments("parts", "--save_steps", 4))
        self.succeed(*self.arguments("other", "--max_steps", 2))
        (self.folder / "link").symlink_to(out)

        def files():
            return {p: p.read_bytes() for f in (out, self.folder / "other") for p in f.rglob("*") if p.is_file()}

        before = files()
        self.fail_with(
            USAGE,
            [f"is of step {STEPS}", "end at step 5", "max_steps"],
            *self.arguments("parts", "--max_steps", 5, "--resume_from_checkpoint", "auto"),
        )
        for folder in ("parts", "link"):
            self.fail_with(
                USAGE,
                [f"has reached step {STEPS}", "checkpoint-4", "resume_from_checkpoint auto", "output_dir"],
                *self.arguments("parts", "--resume_from_checkpoint", self.folder / folder / "checkpoint-4"),
            )
        self.fail_with(
            USAGE,
            ["other holds a run already", "checkpoint-4", "output_dir"],
            *self.arguments("other", "--resume_from_checkpoint", out / "checkpoint-4"),
        )
        self.assertEqual(files(), before)
        # Longer is what going on is for.
        self.succeed(*self.arguments("parts", "--max_steps", STEPS + 1, "--resume_from_checkpoint", "auto"))
        self.assertEqual(len(self.steps(out)), STEPS + 1)

    def test_a_signal_in_the_middle_of_an_evaluation(self):
        held_out = write_rows(self.folder / "held_out.jsonl", token_rows(800, seed=9))
        extra = ["--max_steps", 4, "--eval_file", held_out, "--eval_steps", 2, "--eval_on_start", "true"]
        extra += ["--lr_scheduler_type", "reduce_lr_on_plateau"]
        extra += ["--lr_scheduler_kwargs", '{"patience": 0, "factor": 0.5, "threshold": 0.5}']
        err = self.succeed(*self.arguments("whole", *extra)).err
        longest = max(float(seconds) for seconds in re.findall(r"labels in ([\d.]+) s", err))
        metrics = self.folder / "parts" / "metrics.jsonl"
        for step, lines_before in (
            (0, 0),
            (2, 3),
            (4, 6),
        ):  # before the first step, during the run, after the last step
            process = self.start(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
            self.wait_for(process, lambda: metrics.exists() and metrics.read_text().count("\n") >= lines_before)
            time.sleep(longest / 5)
            process.send_signal(signal.SIGTERM)
            done = finish(process)
            self.assertEqual(done.code, SIGTERM_SAVED, done)
            self.assertIn(f"stopped after step {step} of 4", done.err)
            self.assertIn(f"checkpoint-{step} to go on from", done.err)
            self.assertNotIn(step, [e["step"] for e in self.evaluations(self.folder / "parts")])
        self.succeed(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
        self.assertEqual(self.figures("parts"), self.figures("whole"))
        self.assertEqual(self.evaluations(self.folder / "parts"), self.evaluations(self.folder / "whole"))
        self.assertEqual((self.folder / "parts" / ADAPTER).read_bytes(), (self.folder / "whole" / ADAPTER).read_bytes())

    def test_accumulation_keeps_the_rows_of_a_step(self):
        self.succeed(*self.arguments("parts", "--save_steps", 4))
        result = self.succeed(
            *self.arguments(
                "new",
                "--per_device_train_batch_size",
                1,
                "--resume_from_checkpoint",
                self.folder / "parts" / "checkpoint-4",
            )
        )
        self.assertIn("gradient_accumulation_steps is 4 instead of 2", result.err)
        for got, expected in zip(self.figures("new"), self.figures("parts")[4:]):
            self.assertEqual((got[0], got[5]), (expected[0], expected[5]))
            self.assertAlmostEqual(got[2], expected[2], places=5)

    def test_one_run_a_folder(self):
        process = self.start(*self.arguments("taken", "--max_steps", 100000, "--save_steps", 0))
        metrics = self.folder / "taken" / "metrics.jsonl"
        self.wait_for(process, lambda: metrics.exists() and metrics.read_text())
        result = self.fail_with(
            USAGE,
            ["is in use by another run", f"process {process.pid} on"],
            *self.arguments("taken", "--overwrite_output_dir", "true"),
        )
        process.kill()
        process.wait()
        self.succeed(*self.arguments("taken", "--max_steps", 2))

    def test_nothing_left_to_do(self):
        self.succeed(*self.arguments("done", "--save_steps", 3))
        before = (self.folder / "done" / ADAPTER).read_bytes()
        self.succeed(*self.arguments("done", "--save_steps", 3, "--resume_from_checkpoint", "auto"))
        self.assertEqual((self.folder / "done" / ADAPTER).read_bytes(), before)
        self.assertEqual(len(self.steps(self.folder / "done")), STEPS)


if __name__ == "__main__":
    main()
