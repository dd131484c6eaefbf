"""The process is killed after every call by which a run changes its output folder, and every call is made to fail: the run goes on
with the same bytes as one that nothing happened to.

UNSLOTH_FAULT names the library of tests/fault. By default every call is killed at, and of the errors every eighth call is tried; with
UNSLOTH_TEST_ALL=1 all of them. UNSLOTH_TEST_KINDS=EROFS,short leaves out the other kinds.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import unittest

from support import EndToEnd, LLAMA, OK, RUNTIME, environment, main, model, run

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")
ALL = os.environ.get("UNSLOTH_TEST_ALL") == "1"
KINDS = ("kill", "ENOSPC", "EIO", "EROFS", "short")
CHOSEN = [kind for kind in os.environ.get("UNSLOTH_TEST_KINDS", "").split(",") if kind] or list(KINDS)
ADAPTER = "adapter_model.safetensors"
STATE = (ADAPTER, "optimizer.safetensors", "run_state.json")


@unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
class KillMatrix(EndToEnd):
    def setUp(self):
        super().setUp()
        self.base, self.data = model(LLAMA), self.rows(12)
        self.count = collections.Counter()

    def arguments(self, out, *extra):
        return self.train_arguments(
            self.base, self.data, "--max_steps", 4, "--save_steps", 2, "--save_total_limit", 1, "--r", 2,
            "--target_modules", "q_proj", "--layers_to_transform", 0, "--resume_from_checkpoint", "auto", *extra, out=out,
        )  # fmt: skip

    def run_once(self, out, at=None, kind="", log=None):
        env = environment(
            LD_PRELOAD=LIBRARY,
            FAULT_UNDER=self.folder / out,
            FAULT_KIND=kind,
            FAULT_AT=at or 0,
            ASAN_OPTIONS="verify_asan_link_order=0",
        )
        if log:
            env["FAULT_LOG"] = str(log)
        done = run("train", *self.arguments(out), env=env)
        self.check_words(done)
        return done

    def reference(self):
        """Every checkpoint of a run that nothing happens to, and the calls it makes."""
        log = self.folder / "calls.log"
        self.succeed("train", *self.arguments("all", "--save_total_limit", 0))
        self.assertEqual(self.run_once("whole", log=log).code, OK)
        calls = [line.split(" ", 2) for line in log.read_text().splitlines()]
        self.assertGreater(len(calls), 100)
        return calls

    def whole_checkpoints_are_exact(self, out):
        for checkpoint in (self.folder / out).glob("checkpoint-?"):
            manifest = checkpoint / "manifest.json"
            if not manifest.exists():
                continue
            for entry in json.loads(manifest.read_text())["files"]:
                if not (checkpoint / entry["name"]).exists():
                    break  # its removal was interrupted
            else:
                for name in STATE:
                    self.assertEqual(
                        (checkpoint / name).read_bytes(),
                        (self.folder / "all" / checkpoint.name / name).read_bytes(),
                        f"{out} {checkpoint.name}/{name}",
                    )

    def goes_on(self, out):
        done = self.run_once(out)
        self.assertEqual(done.code, OK, f"{out}: {done.err}")
        self.assertEqual((self.folder / out / ADAPTER).read_bytes(), (self.folder / "all" / ADAPTER).read_bytes(), out)
        self.assertEqual(sorted(p.name for p in (self.folder / out).iterdir() if p.is_dir()), ["checkpoint-4"], out)
        self.assertEqual(
            [p.name for p in (self.folder / out).rglob("*") if ".tmp-" in p.name and p.parent.name == "checkpoint-4"],
            [],
        )

    def once(self, kind, at, name):
        out = f"{kind}{at}"
        done = self.run_once(out, at, kind)
        if kind == "kill":
            self.assertIn(done.code, (-signal.SIGKILL, OK), done.err)
        else:
            self.assertIn(done.code, (OK, RUNTIME), f"{out}: {done.err}")
        self.whole_checkpoints_are_exact(out)
        if done.code == OK and not (self.folder / out / "checkpoint-4").exists():
            # The last checkpoint could not be written, and the result is there all the same.
            self.assertEqual(
                (self.folder / out / ADAPTER).read_bytes(), (self.folder / "all" / ADAPTER).read_bytes(), out
            )
        else:
            self.goes_on(out)
        shutil.rmtree(self.folder / out)
        return kind, name, done.code

    def test_every_call(self):
        calls = self.reference()
        self.assertLessEqual(set(CHOSEN), set(KINDS))
        cases = []
        for kind in CHOSEN:
            for number, name, _ in calls:
                if kind == "short" and name not in ("write", "pwrite"):
                    continue
                if ALL or kind == "kill" or int(number) % 8 == 0:
                    cases.append((kind, int(number), name))
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
            for kind, name, code in pool.map(lambda case: self.once(*case), cases):
                self.count[kind, name, code] += 1
        killed = sum(n for (kind, _, code), n in self.count.items() if kind == "kill" and code == -signal.SIGKILL)
        if "kill" in CHOSEN:
            self.assertGreater(killed, 0.95 * len(calls))
        print(f"{len(cases)} cases; by kind, call and exit code:")
        for (kind, name, code), n in sorted(self.count.items()):
            print(f"  {kind:7} {name:10} {code:4} {n:4}")


if __name__ == "__main__":
    main()
