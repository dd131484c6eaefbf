"""Among strangers: links, FIFOs and devices that somebody planted, files that shrink while they are read, folders without an end, and
texts that would steer the terminal.

UNSLOTH_FAULT names the library of tests/fault.
"""

import fcntl
import json
import math
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from support import (
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    OK,
    PROGRAM,
    RUNTIME,
    SIGTERM_SAVED,
    TEXT_LLAMA,
    TIMEOUT_S,
    USAGE,
    EndToEnd,
    environment,
    float_bytes,
    main,
    model,
    read_safetensors,
    run,
    write_safetensors,
)

SECONDS = 30  # within which a run that waits for nothing has ended


class Planted(EndToEnd):
    def setUp(self):
        super().setUp()
        self.precious = self.folder / "precious"
        self.precious.write_text("content")

    def tearDown(self):
        self.assertEqual(self.precious.read_text(), "content")

    def test_links_in_the_output_folder(self):
        rows = self.rows()
        (self.folder / "out").mkdir()
        for name in ("run.lock", "metrics.jsonl"):
            place = self.folder / "out" / name
            place.symlink_to(self.precious)
            if name == "run.lock":
                self.fail_with(
                    RUNTIME, [str(place), "is a symbolic link"], "train", *self.train_arguments(model(LLAMA), rows)
                )
                place.unlink()
        self.train(model(LLAMA), rows)  # a link under a file's own name makes way: its target is not touched
        self.assertFalse((self.folder / "out" / "metrics.jsonl").is_symlink())

    def test_folders_that_a_run_keeps_in_its_output_folder(self):
        """Links in their places lead to a folder with files of the same names."""
        rows = self.rows(8)
        elsewhere, out = self.folder / "elsewhere", self.folder / "out"
        for name in ("anomalies/step-1.json", "tensorboard/events", "sub/m"):
            (elsewhere / name).parent.mkdir(parents=True)
            (elsewhere / name).write_text("content")
        content = lambda: {p: p.is_file() and p.read_bytes() for p in sorted(elsewhere.rglob("*"))}
        before = content()
        out.mkdir()
        for name in ("anomalies", "tensorboard", "sub"):
            (out / name).symlink_to(elsewhere / name)
        save = ["--save_steps", "1", "--save_total_limit", "1"]
        board = ["--report_to", "tensorboard"]
        self.fail_with(
            RUNTIME, ["tensorboard is a symbolic link"], *self.train_arguments(model(LLAMA), rows, *save, *board)
        )
        self.assertEqual(content(), before)
        self.fail_with(
            RUNTIME,
            ["sub is a symbolic link"],
            *self.train_arguments(model(LLAMA), rows, *save, "--logging.metrics_file", "sub/m"),
        )
        if not (out / "anomalies").is_symlink():
            (out / "anomalies").symlink_to(elsewhere / "anomalies")
        bad = self.copied_model(model(LLAMA), "bad")
        tensors = read_safetensors(bad / "model.safetensors")
        dtype, shape, data = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = (dtype, shape, float_bytes([math.nan] * (len(data) // 4)))
        write_safetensors(bad / "model.safetensors", tensors)
        self.fail_with(
            RUNTIME,
            ["is not finite", "anomalies is a symbolic link", "could not be written down"],
            *self.train_arguments(bad, rows, *save),
        )
        self.assertEqual(content(), before)
        self.train(model(LLAMA), rows, *save, "--overwrite_output_dir", "true")
        self.assertEqual(content(), before)
        self.assertFalse((out / "anomalies").exists())

    def test_the_umask_keeps_files_from_others(self):
        cache, rows = self.folder / "cache", self.rows(8)
        more = ["--save_steps", "1", "--cache_dir", cache, "--report_to", "tensorboard,html"]
        self.train(model(LLAMA), rows, *more, out="private", preexec=lambda: os.umask(0o077))
        made = [p for top in (self.folder / "private", cache) for p in (top, *top.rglob("*"))]
        self.assertGreater(len(made), 20)
        self.assertEqual([p for p in made if p.stat().st_mode & 0o077], [])

    def test_fifos_sockets_and_devices_are_refused_at_once(self):
        fifo, device, sock = self.folder / "fifo", self.folder / "device", self.folder / "sock"
        os.mkfifo(fifo)
        device.symlink_to("/dev/zero")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(sock))
        folder = self.copied_model(NF4_MODEL)
        tokenizer = self.copied_model(LEGAL_BASE, "tokenizer")
        rows = self.rows()

        def refused(what, code, *arguments):
            begin = time.monotonic()
            result = self.fail_with(code, [str(what), "not a regular file"], *arguments)
            self.assertLess(time.monotonic() - begin, SECONDS, str(result))

        for what in (fifo, device, sock):
            refused(what, INPUT, "data", "--model.path", folder, "--data.train_file", what)
        refused(fifo, USAGE, "config", "--config", fifo)
        refused(fifo, INPUT, "score", "--model.path", folder, "--data.train_file", fifo, "--out", self.folder / "s")
        for name, place in (("config.json", folder), ("model.safetensors", folder), ("tokenizer.json", tokenizer)):
            kept = (place / name).read_bytes()
            (place / name).unlink()
            os.mkfifo(place / name)
            if place == folder:
                refused(place / name, INPUT, "quantize", "--model", folder, "--out", self.folder / "out")
            else:
                refused(place / name, INPUT, "tokenize", "--tokenizer", tokenizer)
            (place / name).unlink()
            (place / name).write_bytes(kept)
        result = run("score", "--model.path", folder, "--data.train_file", rows, "--device", "cpu", "--out", fifo)
        self.assertEqual(result.code, RUNTIME, str(result))
        self.assertIn("FIFO", result.err)
        self.assertTrue(fifo.is_fifo())

    def test_sigterm_ends_a_run_that_waits_for_a_file(self):
        rows, cache = self.rows(), self.folder / "cache"
        words = ["data", "--model.path", model(LLAMA), "--data.train_file", rows, "--cache_dir", cache]
        self.succeed(*words)
        (held,) = cache.glob("*.rows")
        with open(held) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
            )
            self.addCleanup(process.kill)
            self.addCleanup(process.stderr.close)
            for line in process.stderr:
                if b"waiting for another process" in line:
                    break
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(SECONDS), SIGTERM_SAVED)

    def test_a_folder_whose_links_have_no_end(self):
        rows = self.folder / "rows"
        (rows / "deep").mkdir(parents=True)
        shutil.copy(self.rows(), rows / "a.jsonl")
        (rows / "deep" / "one").symlink_to("..")
        (rows / "deep" / "two").symlink_to("..")
        self.fail_with(
            INPUT, "leads back to a folder above it", "data", "--model.path", model(LLAMA), "--data.train_file", rows
        )

    def test_a_file_of_holes(self):
        for name, words in {
            "config.json": ["quantize", "--out", self.folder / "out", "--model"],
            "tokenizer.json": ["tokenize", "--tokenizer"],
        }.items():
            place = self.copied_model(LEGAL_BASE, "holes-" + name)
            os.truncate(place / name, 1 << 40)
            self.fail_with(INPUT, [name, "up to 1 GiB"], *words, place)
        rows = self.rows()
        os.truncate(rows, 1 << 40)
        begin = time.monotonic()
        self.fail_with(
            INPUT,
            ["no row ends within 1 GiB"],
            "data",
            "--model.path",
            model(LLAMA),
            "--data.train_file",
            rows,
            "--cache_dir",
            self.folder / "cache",
            "--skip_bad_rows",
            "true",
        )
        self.assertLess(time.monotonic() - begin, 2 * SECONDS)


@unittest.skipUnless(os.geteuid() == 0, "only root can make files of another user")
class OtherUsers(EndToEnd):
    """In a folder that others may write into, with the sticky bit, as /tmp has it."""

    stranger = 12345

    def setUp(self):
        super().setUp()
        self.shared, self.mine = self.folder / "shared", self.folder / "mine"
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.base, self.data = model(LLAMA), self.rows(8)
        self.train(self.base, self.data, "--save_steps", "1", out="mine")
        self.before = self.content()

    def content(self):
        return {p: p.is_file() and p.read_bytes() for p in sorted(self.mine.rglob("*"))}

    def tearDown(self):
        self.assertEqual(self.content(), self.before)

    def give_away(self, place):
        for path in (place, *place.rglob("*")):
            os.chown(path, self.stranger, self.stranger, follow_symlinks=False)

    def plant(self, name, target):
        place = self.shared / name
        place.symlink_to(target)
        self.give_away(place)
        return place

    def test_a_checkpoint_that_is_planted_while_the_run_is_under_way(self):
        arguments = self.train_arguments(
            self.base, self.data, "--max_steps", 100000, "--save_steps", 40, "--logging_steps", 1, out="shared"
        )
        process = subprocess.Popen(
            [PROGRAM, "train", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
        said = []
        for line in process.stderr:
            said.append(line)
            if "saved" in line and "checkpoint-40" in line:
                for step in (80, 120):
                    self.plant(f"checkpoint-{step}", self.mine / "checkpoint-3")
                break
        for line in process.stderr:
            said.append(line)
            if "checkpoint-120" in line:
                process.terminate()
                break
        process.stderr.read()
        self.assertEqual(process.wait(TIMEOUT_S), SIGTERM_SAVED, "".join(said))
        self.assertRegex("".join(said), "checkpoint-80 was not saved: .* it belongs to another user")
        self.assertTrue((self.shared / "checkpoint-80").is_symlink())
        self.assertEqual([p.name for p in self.shared.iterdir() if ".old-" in p.name], [])

    def test_no_checkpoint_of_another_user_is_resumed(self):
        planted = shutil.copytree(self.mine / "checkpoint-2", self.shared / "checkpoint-2")
        self.give_away(planted)
        self.plant("checkpoint-1", self.mine / "checkpoint-1")
        more = ["--save_steps", "1", "--save_total_limit", "1", "--resume_from_checkpoint"]
        result = self.succeed(*self.train_arguments(self.base, self.data, *more, "auto", out="shared"))
        self.assertIn("checkpoint-2 is skipped: it belongs to another user", result.err)
        self.assertNotIn("resuming from", result.err)
        self.assertTrue((planted / "manifest.json").exists())
        named = self.succeed(*self.train_arguments(self.base, self.data, *more, planted, out="named"))
        self.assertIn("at step 3", named.err)

    def test_links_on_the_way_to_what_the_user_names(self):
        link = self.plant("link", self.mine)
        said = "is a symbolic link of another user"
        self.fail_with(RUNTIME, said, *self.train_arguments(self.base, self.data, out="shared/link"))
        self.fail_with(RUNTIME, said, *self.train_arguments(self.base, self.data, out="shared/link/run"))
        common = ["--model.path", self.base, "--data.train_file", self.data, "--device", "cpu"]
        self.fail_with(RUNTIME, said, "score", *common, "--out", link / "metrics.jsonl", "--force")
        self.fail_with(RUNTIME, said, "data", *common[:4], "--cache_dir", link)
        for out in (link, link / "new"):
            self.fail_with(RUNTIME, said, "quantize", "--model", self.base, "--out", out)


class Terminal(EndToEnd):
    """Control characters in names, rows, templates and options."""

    evil = "a\x1b]0;title\x07\x9b31m\x7fb"

    def expect_plain(self, text):
        for byte in range(0x20):
            if byte not in (0x09, 0x0A):
                self.assertNotIn(chr(byte), text)
        self.assertNotIn("\x7f", text)
        self.assertNotIn("\x9b", text)

    def test_messages(self):
        rows = self.folder / (self.evil + "\nunsloth-train: error[data.empty]: forged.jsonl")
        rows.write_text('{"te\\u001b[2Jxt\\u009b": "x"}\n')
        cases = [
            (INPUT, "data", "--model.path", model(LLAMA), "--data.train_file", rows),
            (INPUT, "data", "--model.path", model(LLAMA), "--data.train_file", self.folder / (self.evil + "absent")),
            (USAGE, "train", "--" + self.evil, "1"),
            (INPUT, "inspect", self.folder / self.evil),
        ]
        for code, *arguments in cases:
            result = run(*arguments)
            self.assertEqual(result.code, code, str(result))
            self.expect_plain(result.err + result.out)
            self.assertIn("\\u001b", result.err + result.out)
            self.assertNotIn("\nunsloth-train: error[data.empty]: forged", result.err)

    def test_reports_and_their_json(self):
        rows = self.folder / "rows.jsonl"
        rows.write_text('{"text": "x\\u001b[2J\\u009b\\u007f"}\n' * 4, encoding="utf-8")
        words = ["data", "--model.path", model(TEXT_LLAMA, tokenizer=LEGAL_BASE), "--data.train_file", rows]
        for extra in ([], ["--json"], ["--color", "never"]):
            self.expect_plain(self.succeed(*words, *extra).out)

    def test_the_launcher(self):
        words = ["--program", sys.executable, "-I", "-S", "-c", "print('line')"]
        result = self.succeed("launch", "--nproc_per_node", "1", "--prefix", self.evil, *words)
        self.expect_plain(result.err + result.out)
        self.assertIn("a\\u001b]0;title\\u0007\\u009b31m\\u007fbline", result.out)

    def test_text_of_a_tokenizer_on_a_terminal_and_in_a_pipe(self):
        tokenizer = LEGAL_BASE
        ids = self.succeed("tokenize", "--tokenizer", tokenizer, stdin='{"text": "x\\u009b\\u007f[2J"}\n').out
        piped = self.succeed("tokenize", "--tokenizer", tokenizer, "--decode", stdin=ids).out
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [PROGRAM, "tokenize", "--tokenizer", str(tokenizer), "--decode"],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        process.communicate(ids.encode(), timeout=TIMEOUT_S)
        os.close(theirs)
        shown = os.read(ours, 65536).decode().replace("\r\n", "\n")
        os.close(ours)
        self.assertEqual(process.returncode, OK)
        self.expect_plain(shown)
        self.assertIn("x\x9b\x7f[2J", json.loads(piped)["text"])
        self.assertEqual(shown, piped.replace("\x7f", "\\u007f"))


if __name__ == "__main__":
    main()
