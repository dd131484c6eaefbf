"""merge, quantize and export are killed, asked to stop and refused every call by which their output comes about, one after another: the
output is there whole or not at all, nothing else stays, and the next call works.

UNSLOTH_FAULT names the library of tests/fault. Every call meets one of the errors; with UNSLOTH_TEST_ALL=1 each of them.
"""

import collections
import concurrent.futures
import os
import shutil
import signal
import unittest

from merge_support import Merging
from support import (
    GOLDEN,
    LEGAL_BASE,
    OK,
    RUNTIME,
    SIGTERM_SAVED,
    TEXT_LLAMA,
    environment,
    main,
    model,
    run,
)

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")
ALL = os.environ.get("UNSLOTH_TEST_ALL") == "1"
ERRORS = ("ENOSPC", "EIO", "EROFS")
KINDS = ("kill", "term", *ERRORS)
# Without these a temporary folder cannot be removed.
REMOVING = ("unlink", "rmdir")


def bytes_below(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in files}


@unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
class Stopped(Merging):
    def setUp(self):
        super().setUp()
        self.base = model(TEXT_LLAMA, dtype="bfloat16", tokenizer=LEGAL_BASE)

    def command(self, words, out, *, at=0, kind="", log=None):
        env = environment(
            LD_PRELOAD=LIBRARY, FAULT_UNDER=out, FAULT_KIND=kind, FAULT_AT=at, ASAN_OPTIONS="verify_asan_link_order=0"
        )
        if log:
            env["FAULT_LOG"] = str(log)
        done = run(*words, "--out", out, env=env)
        self.check_words(done)
        return done

    def calls_of(self, words, out):
        """[(number, name)] of the calls of an undisturbed run."""
        log = self.folder / "calls.log"
        done = self.command(words, out, log=log)
        self.assertEqual(done.code, OK, done.err)
        return [
            (int(number), name) for number, name, _ in (line.split(" ", 2) for line in log.read_text().splitlines())
        ]

    def once(self, words, whole, kind, at, name):
        """One disturbed run in a folder of its own, and the next one."""
        folder = self.folder / f"{kind}{at}"
        folder.mkdir()
        out = folder / whole[0].name
        done = self.command(words, out, at=at, kind=kind)
        where = f"{kind} at call {at} ({name}): {done.err}"
        expected = {"kill": (-signal.SIGKILL,), "term": (SIGTERM_SAVED, OK)}.get(kind, (RUNTIME, OK))
        self.assertIn(done.code, expected, where)
        if out.exists():
            self.assertEqual(bytes_below(out), whole[1], where)
        elif kind == "term" or (kind != "kill" and name not in REMOVING):
            self.assertEqual([p.name for p in folder.iterdir()], [], where)
        if done.code == OK:
            self.assertTrue(out.exists(), where)
        if not out.exists():
            again = self.command(words, out)
            self.assertEqual(again.code, OK, f"after {where}: {again.err}")
            self.assertEqual(bytes_below(out), whole[1], where)
        self.assertEqual([p.name for p in folder.iterdir()], [out.name], where)
        shutil.rmtree(folder)
        return kind, name, done.code

    def disturb(self, words, name):
        """Tries every call; the counts by kind and exit code."""
        out = self.folder / name
        calls = self.calls_of(words, out)
        self.assertGreater(len(calls), 5)
        whole = out, bytes_below(out)
        cases = [
            (kind, at, call)
            for number, kind in enumerate(KINDS)
            for at, call in calls
            if ALL or kind not in ERRORS or at % len(ERRORS) == number % len(ERRORS)
        ]
        count = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            for kind, _, code in pool.map(lambda case: self.once(words, whole, *case), cases):
                count[kind, code] += 1
        print(
            f"{words[0]}: {len(calls)} calls, {len(cases)} cases; by kind and exit code: "
            + ", ".join(f"{kind} {code}: {n}" for (kind, code), n in sorted(count.items()))
        )
        return calls, count

    def test_quantize(self):
        calls, count = self.disturb(["quantize", "--model", self.base, "--max_shard_size", "200KB"], "quantised")
        # Until the output is complete, being asked to stop is obeyed.
        self.assertGreater(count["term", SIGTERM_SAVED], len(calls) / 2)

    def test_merge(self):
        adapter = self.adapter(self.base, "--r", "4", vocab=2048)
        words = ["merge", "--adapter", adapter, "--base", self.base, "--max_shard_size", "200KB", "--no_verify"]
        calls, count = self.disturb(words, "merged")
        self.assertGreater(count["term", SIGTERM_SAVED], len(calls) / 2)

    def test_stopped_before_the_comparison_of_logits(self):
        adapter = self.adapter(self.base, "--r", "4", vocab=2048)
        words = ["merge", "--adapter", adapter, "--base", self.base]
        calls = self.calls_of(words, self.folder / "whole")
        renames = [at for at, name in calls if name == "rename"]
        folder = self.folder / "stopped"
        folder.mkdir()
        # The last file has its name; then come the comparison and the folder's rename.
        done = self.command(words, folder / "merged", at=renames[-2], kind="term")
        self.assertEqual(done.code, SIGTERM_SAVED, done.err)
        self.assertNotIn("logits of the merged model", done.err)
        self.assertEqual(list(folder.iterdir()), [])

    def test_prune_stopped_before_it_is_whole_and_on_a_full_disk(self):
        rows = self.rows(2, vocab=2048)
        words = ["prune", "--model.path", self.base, "--layers", "1", "--calibration", rows, "--device", "cpu"]
        calls = self.calls_of(words, self.folder / "pruned")
        whole = self.folder / "pruned", bytes_below(self.folder / "pruned")
        writes = [call for call in calls if call[1] == "pwrite"]
        for kind, (at, name) in {"term": calls[len(calls) // 2], "kill": calls[-2], "ENOSPC": writes[-1]}.items():
            self.once(words, whole, kind, at, name)

    def test_export(self):
        # With the tokenizer of a model that llama.cpp knows.
        tokenizer = GOLDEN / "tokenizer" / "llama3_small"
        calls, count = self.disturb(
            ["export", "gguf", "--model", self.base, "--tokenizer", tokenizer, "--type", "q8_0"], "m.gguf"
        )
        self.assertGreater(count["term", SIGTERM_SAVED], len(calls) / 2)


if __name__ == "__main__":
    main()
