"""SIGINT and SIGTERM: the first saves and stops, the second leaves at once."""

import json
import os
import signal
import subprocess
import threading
import time
import unittest

from support import (
    EndToEnd,
    LLAMA,
    OK,
    PROGRAM,
    SIGHUP_SAVED,
    SIGINT_SAVED,
    SIGTERM_SAVED,
    TIMEOUT_S,
    environment,
    main,
    model,
    read_rows,
    run,
    write_rows,
)


class ClosedLogs(EndToEnd):
    """`unsloth-train … 2>&1 | head`: who read the log has seen enough."""

    def unread(self, *arguments):
        """The exit code of a command whose output nobody reads after the first line."""
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
        self.addCleanup(process.kill)
        process.stdout.readline()
        process.stdout.close()
        return process.wait(TIMEOUT_S)

    def test_a_run_trains_and_saves_on(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(16), "--max_steps", "20")
        json_lines = ["--progress", "json", "--overwrite_output_dir"]
        for start in (["train"], ["train", *json_lines], ["launch", "--nproc_per_node", 2, "--", *json_lines]):
            with self.subTest(start[0]):
                self.assertEqual(self.unread(*start, *arguments), OK)
                out = self.folder / "out"
                self.assertEqual([row["step"] for row in self.steps(out)], list(range(1, 21)))
                self.assertEqual(self.summary(out)["exit_reason"], "finished")
                self.assertTrue((out / "adapter_model.safetensors").exists())
                self.assertTrue((out / "checkpoint-20" / "manifest.json").exists())

    def test_streams_that_are_closed_from_the_start(self):
        """No file gets their numbers, and with them what is said."""
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term of this agreement is one year."}] * 8)
        closed, open_ = self.folder / "closed.jsonl", self.folder / "open.jsonl"
        words = ("data", "augment", "--in", rows, "--delete_rate", "0.2", "--fields", "text", "--out")

        def close():
            for number in (0, 1, 2):
                os.close(number)

        self.assertEqual(run(*words, closed, preexec=close).code, OK)
        self.succeed(*words, open_)
        self.assertEqual(closed.read_bytes(), open_.read_bytes())
        self.assertNotEqual(run("config", preexec=lambda: os.close(1)).code, OK)

    def test_other_results_are_written_too(self):
        adapter = self.train(model(LLAMA), self.rows(8), "--max_steps", "1", out="adapter")
        merged, quantised, scores = (self.folder / name for name in ("merged", "quantised", "scores.jsonl"))
        self.assertEqual(self.unread("merge", "--adapter", adapter, "--out", merged), OK)
        self.assertEqual(self.unread("quantize", "--model", model(LLAMA), "--out", quantised), OK)
        for folder in (merged, quantised):
            self.assertIn("problems      none", self.succeed("inspect", folder).out)
        words = (
            "--model.path",
            model(LLAMA),
            "--adapter_name_or_path",
            adapter,
            "--train_file",
            self.rows(8),
            "--device",
            "cpu",
        )
        self.assertEqual(self.unread("score", *words, "--out", scores), OK)
        self.assertEqual(len(read_rows(scores)), 8)


class Interrupting(EndToEnd):
    def start(self, *extra, hangup=signal.SIG_DFL):
        """A run that would take very long, already past its first step; the process and its first lines of stderr."""
        arguments = self.train_arguments(model(LLAMA), self.rows(16), "--max_steps", "1000000", *extra)
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),  # whoever runs the tests may ignore it
        )
        self.addCleanup(self.put_away, process)
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        lines = []
        for line in process.stderr:
            lines.append(line.decode())
            if "step 2/" in lines[-1]:
                return process, lines
        self.fail("the run ended before its second step:\n" + "".join(lines))

    def put_away(self, process):
        process.kill()
        process.wait()
        process.stderr.close()

    def check_saved(self, number, code):
        process, _ = self.start("--logging_steps", "1")
        process.send_signal(number)
        rest = process.stderr.read().decode()
        self.assertEqual(process.wait(), code, rest)
        self.assertIn("stopped after step", rest)
        self.assertIn(str(self.folder / "out"), rest)
        for word in ("error", "terminate called"):
            self.assertNotIn(word, rest)
        state = json.loads((self.folder / "out" / "trainer_state.json").read_text())
        self.assertGreaterEqual(state["global_step"], 2)
        self.assertEqual(state["global_step"], self.steps(self.folder / "out")[-1]["step"])
        self.assertEqual(self.summary(self.folder / "out")["exit_reason"], signal.Signals(number).name)
        self.assertEqual(run("inspect", self.folder / "out").code, OK)
        scores = self.score(model(LLAMA), self.folder / "rows.jsonl", "--adapter_name_or_path", self.folder / "out")
        self.assertEqual(len(scores), 16)

    def test_sigint_saves(self):
        self.check_saved(signal.SIGINT, SIGINT_SAVED)

    def test_sigterm_saves(self):
        self.check_saved(signal.SIGTERM, SIGTERM_SAVED)

    def test_a_hangup_saves(self):
        self.check_saved(signal.SIGHUP, SIGHUP_SAVED)

    def test_under_nohup_a_hangup_is_nothing(self):
        process, _ = self.start(hangup=signal.SIG_IGN)
        process.send_signal(signal.SIGHUP)
        for _ in range(50):  # steps go on
            self.assertTrue(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read().decode()
        self.assertEqual(process.wait(), SIGTERM_SAVED, rest)

    def test_saving_needs_nobody_who_listens(self):
        """A terminal that is closed takes with it what the messages were piped to."""
        for number, code in ((signal.SIGHUP, SIGHUP_SAVED), (signal.SIGINT, SIGINT_SAVED)):
            with self.subTest(number=number):
                process, _ = self.start("--overwrite_output_dir", "true")
                process.send_signal(signal.SIGSTOP)
                process.stderr.close()
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
                self.assertEqual(process.wait(), code)
                self.assertEqual(run("inspect", self.folder / "out").code, OK)

    def test_a_second_signal_leaves_at_once(self):
        # Stopped while both arrive: SIGTERM and SIGINT are delivered before another step can end.
        process, _ = self.start()
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        rest = process.stderr.read().decode()
        self.assertIn(process.wait(), (SIGINT_SAVED, SIGTERM_SAVED), rest)
        self.assertNotIn("stopped after step", rest)
        self.assertFalse((self.folder / "out" / "adapter_model.safetensors").exists())


if __name__ == "__main__":
    main()
