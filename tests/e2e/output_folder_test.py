"""What stands in an output folder, and what a run may do to it."""

import fcntl
import json
import os
import shutil
import unittest

from support import (
    EndToEnd,
    LLAMA,
    LEGAL_BASE,
    OK,
    RUNTIME,
    TEXT_LLAMA,
    USAGE,
    environment,
    main,
    model,
    run,
    token_rows,
    write_rows,
)

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")


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


if __name__ == "__main__":
    main()
