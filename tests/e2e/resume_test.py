"""Going on from a checkpoint: the same losses and the same bytes as a run that was not interrupted, and what is refused."""

import json
import re
import shutil
import signal
import time

from support import (
    LEGAL_BASE,
    SIGTERM_SAVED,
    TEXT_LLAMA,
    environment,
    finish,
    main,
    model,
    token_rows,
    write_rows,
)
from resume_support import ADAPTER, ResumedRuns, STEPS


class Resuming(ResumedRuns):
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
        self.assertIn(f"resuming from {checkpoint}", result.err)

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
            self.assertIn(f"checkpoint-{step} to resume from", done.err)
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


if __name__ == "__main__":
    main()
