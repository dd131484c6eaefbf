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
    run,
)


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
