"""What is not resumed: other runs, damaged checkpoints, and runs with nothing left to do."""

import json

from support import (
    INPUT,
    LEGAL_BASE,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    token_rows,
    write_rows,
)
from resume_support import ADAPTER, ResumedRuns, STEPS


class Refusing(ResumedRuns):
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
            "resuming from " + str(out / "checkpoint-4"),
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
