"""What a person sees at a terminal: a pty of 40, 60, 80 and 200 columns. UNSLOTH_SHOW_TERMINAL=1 prints the pictures."""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import unittest

from support import (
    EndToEnd,
    LEGAL_BASE,
    PROGRAM,
    TEXT_LLAMA,
    TIMEOUT_S,
    environment,
    main,
    model,
    parts_of_terminal,
    write_rows,
)

ERASE = "\r\x1b[K"


class Terminal(EndToEnd):
    # Loading, encoding and evaluating take some tenths of a second each, so that they are seen.
    WIDE = TEXT_LLAMA | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 20}

    def at_terminal(self, columns, *arguments, output=False, **variables):
        """Everything that the program wrote to a terminal of this width: messages, and with `output` what it is for."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs if output else subprocess.DEVNULL,
            stderr=theirs,
            env=environment(**{"TERM": "xterm", **variables}),
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),  # slow enough to be seen
        )
        os.close(theirs)
        text = b"".join(parts_of_terminal(ours)).decode()
        self.assertEqual(process.wait(TIMEOUT_S), 0, text)
        return text.replace("\r\n", "\n")

    def status_lines(self, text):
        """What stood in the last line, one time after another: all that was erased."""
        return [line for part in text.split("\n") for line in part.split(ERASE)[:-1] if line]

    def test_the_line_fits_at_every_width(self):
        base = model(self.WIDE, tokenizer=LEGAL_BASE)
        sentence = "The supplier pays the agreed sum within thirty days of the invoice. "
        rows = write_rows(self.folder / "rows.jsonl", [{"text": f"{n}. {sentence * 8}"} for n in range(30000)])
        held_out = write_rows(self.folder / "eval.jsonl", [{"text": f"{n}. {sentence}"} for n in range(12)])
        for columns in (40, 80, 200):
            with self.subTest(columns=columns):
                text = self.at_terminal(
                    columns,
                    "train",
                    *self.train_arguments(
                        base,
                        rows,
                        "--load_in_4bit",
                        "true",
                        "--max_steps",
                        4,
                        "--max_length",
                        16,
                        "--per_device_train_batch_size",
                        1,
                        "--gradient_accumulation_steps",
                        1,
                        "--eval_file",
                        held_out,
                        "--eval_steps",
                        2,
                        "--cache_dir",
                        "",
                        out=f"out{columns}",
                    ),
                )
                lines = self.status_lines(text)
                if os.environ.get("UNSLOTH_SHOW_TERMINAL"):
                    print(f"--- {columns} columns", *lines, sep="\n", file=sys.stderr)
                self.assertTrue(lines)
                self.assertLess(max(map(len, lines)), columns)
                for what in ("encoding rows", "loading the model", "evaluating"):
                    self.assertTrue(any(what in line for line in lines), f"no sign of {what}: {lines}")
                steps = [line for line in lines if "loss" in line]
                for line in steps:
                    self.assertRegex(line, r"[1-4]/4  loss \d+\.\d+ .* ?left \d\d:\d\d$")
                    if columns > 40:
                        self.assertRegex(line, r"^\[#*\.*\] ")
                    if columns != 80:
                        self.assertEqual("grad norm" in line, columns == 200, line)
                self.assertRegex(text, r"done: 4 steps: \d+ tokens in .* tok/s; loss ")
                # Nothing is left of the line at the end.
                self.assertTrue(text.endswith("\n"), text[-200:])
                self.assertNotRegex(text.split("done:")[1], r"left \d\d:\d\d")

    def test_columns_say_less_than_the_terminal(self):
        """COLUMNS counts in a pipe, and at a terminal where it says less."""
        folder = self.folder / "run"
        folder.mkdir()
        rows = [{"step": step, "epoch": 1, "loss": 1 / step, "step_ms": 5, "tokens": 9} for step in range(1, 300)]
        write_rows(folder / "metrics.jsonl", rows)
        widest = {}
        for columns in ("60", "120", "0", "wide"):
            text = self.succeed("watch", folder, env=environment(COLUMNS=columns)).out
            widest[columns] = max(len(line) for line in text.splitlines() if "└" in line)  # of the plots
        self.assertEqual(widest, {"60": 60, "120": 120, "0": 80, "wide": 80})
        rows = write_rows(
            self.folder / "rows.jsonl", [{"text": f"{n}. {'The term is one year. ' * 20}"} for n in range(9000)]
        )
        base = model(self.WIDE, tokenizer=LEGAL_BASE)
        arguments = self.train_arguments(base, rows, "--max_steps", 2, "--max_length", 16, "--cache_dir", "")
        for columns, most in ((40, 40), (200, 80)):
            lines = self.status_lines(self.at_terminal(80, "train", *arguments, COLUMNS=columns))
            shutil.rmtree(self.folder / "out")
            self.assertTrue(lines)
            self.assertLess(max(map(len, lines)), most)

    def test_runs_are_drawn_in_colours(self):
        """What comes from a run's files is shown by its name; what the program draws with is not."""
        folder = self.folder / "a\x1b[2Jrun"
        folder.mkdir()
        rows = [{"step": step, "epoch": 1, "loss": 1 / step, "step_ms": 5, "tokens": 9} for step in range(1, 30)]
        rows.append({"event": "summary", "exit_reason": "error", "seconds": 1, "error": "no \x1b[31mfile"})
        write_rows(folder / "metrics.jsonl", rows)
        for command, clears in (("watch", ["\x1b[2J", "\x1b[H", "\x1b[J"]), ("compare", [])):
            text = self.at_terminal(80, command, folder, output=True)
            self.assertIn(r"a\u001b[2Jrun", text)
            self.assertEqual(text.count(r"\u001b"), 2 if command == "watch" else 1, text)
            escapes = re.findall(r"\x1b\[[0-9;]*\w", text)
            self.assertLessEqual(set(escapes), {"\x1b[36m", "\x1b[33m", "\x1b[0m", *clears})
            self.assertEqual([e for e in escapes if e in clears], clears)
            self.assertIn("\x1b[36m", escapes)

    def test_no_colours_and_no_drawing_where_they_are_unwanted(self):
        """NO_COLOR leaves what draws over lines, TERM=dumb nothing at all: of logs, rows, pictures and progress."""
        folder = self.folder / "run"
        folder.mkdir()
        write_rows(folder / "metrics.jsonl", [{"step": step, "epoch": 1, "loss": 1 / step} for step in range(1, 9)])
        rows = write_rows(self.folder / "rows.jsonl", [{"instruction": "What?", "output": "The term."}])
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        commands = {
            "watch": ("watch", folder, "--once"),
            "compare": ("compare", folder),
            "data": ("data", "--model.path", base, "--train_file", rows, "--template", "alpaca"),
            "train": ("train", *self.train_arguments(base, rows, "--template", "alpaca", "--max_steps", 0)),
        }
        for name, words in commands.items():
            with self.subTest(command=name):
                self.assertRegex(self.at_terminal(80, *words, output=True), r"\x1b\[[0-9;]+m")
                plain = self.at_terminal(80, *words, output=True, NO_COLOR="1")
                self.assertNotRegex(plain, r"\x1b\[[0-9;]*m")
                self.assertNotIn("\x1b", self.at_terminal(80, *words, output=True, TERM="dumb"))

    def test_no_escapes_where_there_is_no_terminal(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"text": f"{n}. The term is one year."} for n in range(8)])
        result = self.succeed("train", *self.train_arguments(model(TEXT_LLAMA, tokenizer=LEGAL_BASE), rows))
        self.assertIsNone(re.search(r"[\r\x1b]", result.err), result.err)
        self.assertRegex(result.err, r"step 3/3  loss .* left 00:00")


if __name__ == "__main__":
    main()
