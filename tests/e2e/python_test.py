"""The Python package: `python -m unsloth_train`, train() and stream(), with the build's program."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from support import LLAMA, PROGRAM, SOURCE, TIMEOUT_S, EndToEnd, environment, main, model, token_rows, write_rows

sys.path.insert(0, str(SOURCE / "python"))
os.environ.update(environment())

import unsloth_train


class Python(EndToEnd):
    def config(self, **training):
        rows = write_rows(self.folder / "rows.jsonl", token_rows(16))
        return {
            "model": {"path": model(LLAMA), "load_in_4bit": False, "dtype": "float32"},
            "data": {"train_file": rows},
            "training": {"output_dir": self.folder / "out", "max_steps": 3, "warmup_steps": 0} | training,
            "hardware": {"device": "cpu"},
        }

    def test_the_module_is_the_program(self):
        for arguments in (["--version"], ["explain", "data.empty"], ["--no_such_option"]):
            done = subprocess.run(
                [sys.executable, "-m", "unsloth_train", *arguments],
                cwd=SOURCE / "python",
                capture_output=True,
                text=True,
            )
            plain = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
            self.assertEqual(
                (done.returncode, done.stdout, done.stderr), (plain.returncode, plain.stdout, plain.stderr)
            )

    def test_train(self):
        called = []
        rows = unsloth_train.train(self.config(), on_metrics=called.append, quiet=True, learning_rate=1e-3)
        self.assertEqual(rows, called)
        self.assertEqual([row.get("step") for row in rows], [1, 2, 3, None])
        self.assertEqual([row.get("learning_rate") for row in rows[:1]], [1e-3])
        self.assertEqual((rows[-1]["event"], rows[-1]["exit_reason"]), ("summary", "finished"))
        written = [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(rows, written)
        self.assertTrue((self.folder / "out" / "adapter_model.safetensors").exists())
        # A resumed run, here of two processes, keeps the file's first rows, which are not its own.
        more = unsloth_train.train(
            self.config(max_steps=5), nproc_per_node=2, quiet=True, resume_from_checkpoint="auto", learning_rate=1e-3
        )
        self.assertEqual([row.get("step") for row in more], [4, 5, None])

    def test_a_run_that_replaces_another_repeats_its_rows(self):
        """Evaluations before the first step are equal, to the byte."""
        options = {"eval_on_start": True, "eval_steps": 2, "overwrite_output_dir": True, "quiet": True, "val_size": 4}
        first, second = (unsloth_train.train(self.config(), **options) for _ in range(2))
        self.assertIn("eval_loss", first[0])
        self.assertEqual(first[0], second[0])
        self.assertEqual([row.get("step") for row in first], [row.get("step") for row in second])

    def test_a_file_and_no_metrics(self):
        file = self.folder / "run.json"
        file.write_text(json.dumps(self.config(), default=str))
        self.assertEqual(unsloth_train.train(file, metrics_file="", max_steps=1, quiet=True), [])
        self.assertEqual(unsloth_train.train(file, max_steps=0, quiet=True, overwrite_output_dir=True), [])

    def test_errors_are_the_programs(self):
        cases = [
            ({"learning_rat": 1}, 2, "option.unknown", "--learning_rat"),
            ({"train_file": self.folder / "none.jsonl"}, 3, "disk.cannot-read", "none.jsonl"),
        ]
        for options, code, name, words in cases:
            with self.subTest(name), self.assertRaises(unsloth_train.TrainingError) as raised:
                unsloth_train.train(self.config(), quiet=True, **options)
            self.assertEqual((raised.exception.exit_code, raised.exception.error_id), (code, name))
            self.assertTrue(str(raised.exception).startswith(f"unsloth-train: error[{name}]: "), raised.exception)
            self.assertIn(words, str(raised.exception))

    def test_an_exception_of_the_caller_stops_the_run(self):
        def refuse(row):
            raise KeyError(row["step"])

        with self.assertRaises(KeyError):
            unsloth_train.train(self.config(max_steps=100_000, save_steps=0), on_metrics=refuse, quiet=True)
        self.assertTrue((self.folder / "out" / "adapter_model.safetensors").exists())

    def test_in_another_thread(self):
        rows = []
        thread = threading.Thread(target=lambda: rows.extend(unsloth_train.train(self.config(), quiet=True)))
        thread.start()
        thread.join(TIMEOUT_S)
        self.assertEqual(len(rows), 4)

    def test_the_page(self):
        """What docs/get-started/wheel.md shows, with fewer steps."""
        (self.folder / "examples").symlink_to(SOURCE / "examples")
        blocks = re.findall(
            r"^```python\n(.*?)^```", (SOURCE / "docs/get-started/wheel.md").read_text(), re.MULTILINE | re.DOTALL
        )
        self.assertEqual(len(blocks), 3)
        code = "".join(blocks).replace("max_steps=100", 'max_steps=2, dtype="float32"')
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=environment(PYTHONPATH=SOURCE / "python"),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^finished \d\.\d+\n3 disk.cannot-read\n$")

    def script(self):
        """A Python process whose run would take very long, already past its first step."""
        text = f"""
import json, unsloth_train
config = json.loads({json.dumps(self.config(max_steps=1_000_000, save_steps=0), default=str)!r})
try:
    unsloth_train.train(config, on_metrics=lambda row: print(row["step"] if "step" in row else row["exit_reason"], flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=SOURCE / "python",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "1\n")
        return process

    def test_signals_save_and_stop(self):
        for number, code, end in ((signal.SIGINT, 0, "interrupted"), (signal.SIGTERM, -signal.SIGTERM, None)):
            with self.subTest(number.name):
                process = self.script()
                os.killpg(process.pid, number)  # as a terminal does it: to the foreground's process group
                lines = process.communicate(timeout=TIMEOUT_S)[0].splitlines()
                self.assertEqual(process.returncode, code)
                if end:
                    self.assertEqual(lines.pop(), end)
                self.assertIn(number.name, lines[-1])
                out = self.folder / "out"
                self.assertTrue((out / "adapter_model.safetensors").exists())
                for path in sorted(out.rglob("*"), reverse=True):
                    path.unlink() if path.is_file() else path.rmdir()

    def test_a_killed_parent_ends_the_run(self):
        process = self.script()
        process.kill()
        deadline = time.monotonic() + TIMEOUT_S
        metrics = self.folder / "out" / "metrics.jsonl"
        while '"summary"' not in metrics.read_text():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
