"""A rank on a GPU that is stopped in mid-training."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from gpu_support import OnGpu, gpus
from launch_support import alive
from rank_support import free_port
from support import PROGRAM, RUNTIME, SIGTERM_SAVED, SOURCE, environment, main

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")


def find_torchrun():
    """Its words; none where there is none."""
    for python in (sys.executable, SOURCE / ".deps" / "venv" / "bin" / "python"):
        words = [str(python), "-m", "torch.distributed.run"]
        if pathlib.Path(python).exists() and subprocess.run([*words, "--help"], capture_output=True).returncode == 0:
            return words
    return []


TORCHRUN = find_torchrun() if gpus(2) else []


@unittest.skipUnless(gpus(2), "needs two GPUs")
class StuckRank(OnGpu):
    """A rank is stopped in mid-training: all end in time, and it is named."""

    LIMIT_S = 30
    HARD_LIMIT_S = 90  # for a case; then it is killed, and the next one has its GPUs
    MESHES = {"dp": [], "tp": ["--tp_size", "2"]}

    def start_training(self, out, launcher, *extra, **changes):
        """The launcher and {rank: pid}, once some steps are done; its stderr is the file OUT.log."""
        arguments = self.arguments(out, "--max_steps", "1000000", *extra)
        with open(self.folder / f"{out}.log", "wb") as log:
            process = subprocess.Popen(
                [*launcher, *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment(**changes),
            )  # fmt: skip
        pids = {}
        self.addCleanup(self.kill_all, process, pids)
        metrics = self.folder / out / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 5, process, out)
        pids |= self.ranks_of(out)
        self.assertEqual(sorted(pids), [0, 1])
        return process, pids

    def kill_all(self, process, pids):
        process.kill()
        process.wait()
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait_for(self, condition, process, out):
        end = time.monotonic() + self.HARD_LIMIT_S
        while not condition():
            self.assertIsNone(process.poll(), self.said(out))
            self.assertLess(time.monotonic(), end, self.said(out))
            time.sleep(0.05)

    def ranks_of(self, out):
        """Processes with this output folder that a launcher started."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.folder / out).encode() not in (folder / "cmdline").read_bytes().split(b"\0"):
                    continue
                words = (folder / "environ").read_bytes().split(b"\0")
                found |= {int(word[5:]): int(folder.name) for word in words if word.startswith(b"RANK=")}
        return found

    def said(self, out):
        return (self.folder / f"{out}.log").read_text(errors="replace")[-6000:]

    def expect_end(self, out, ended, began, limit):
        """What is said then, once `ended` within this time."""
        while not ended():
            self.assertLess(time.monotonic() - began, self.HARD_LIMIT_S, f"no end\n{self.said(out)}")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        print(f"{self.id()} {out}: {seconds:.1f} s")
        self.assertLess(seconds, limit, self.said(out))
        return self.said(out)

    def launcher(self):
        return [PROGRAM, "launch", "--nproc_per_node", "2"]

    def test_under_launch(self):
        for name, mesh in self.MESHES.items():
            for stopped in (1, 0):
                with self.subTest(mesh=name, stopped=stopped):
                    out = f"{name}{stopped}"
                    process, pids = self.start_training(out, self.launcher(), *mesh)
                    os.kill(pids[stopped], signal.SIGSTOP)
                    began = time.monotonic()
                    err = self.expect_end(out, lambda: process.poll() is not None, began, self.LIMIT_S)
                    self.assertEqual(process.returncode, RUNTIME, err)
                    self.assertRegex(err, rf"rank {stopped} \(.*\) has sent no heartbeat|rank {stopped} is gone")
                    self.assertIn(f"rank {stopped} (pid {pids[stopped]}) was stuck", err.splitlines()[-1])

    def test_a_request_to_stop(self):
        """save_grace_seconds and 30 s later nothing is left."""
        for name, mesh in self.MESHES.items():
            with self.subTest(mesh=name):
                out = f"{name}-asked"
                process, pids = self.start_training(out, self.launcher(), "--save_grace_seconds", "1", *mesh)
                os.kill(pids[1], signal.SIGSTOP)
                process.terminate()
                began = time.monotonic()
                err = self.expect_end(out, lambda: process.poll() is not None, began, 1 + self.LIMIT_S)
                self.assertEqual(process.returncode, RUNTIME, err)
                self.assertRegex(err, r"rank 1 .*no heartbeat")

    def test_calls_that_do_not_return(self):
        """Of the rank that is left: the wait for its GPU, the question whether it is done, NCCL's abort, exit()."""
        for place in ("synchronize", "query", "abort", "exit"):
            with self.subTest(place):
                out, now = f"blocked-{place}", self.folder / f"now-{place}"
                faults = {"FAULT_BLOCK": place, "FAULT_WHEN": now, "FAULT_RANK": 0, "LD_PRELOAD": LIBRARY}
                process, pids = self.start_training(out, self.launcher(), **faults)
                os.kill(pids[1], signal.SIGSTOP)
                now.touch()
                began = time.monotonic()
                err = self.expect_end(out, lambda: process.poll() is not None, began, self.LIMIT_S)
                self.assertEqual(process.returncode, RUNTIME, err)
                self.assertRegex(err, r"rank 1 .*has sent no heartbeat")

    def test_a_request_to_stop_when_no_rank_is_lost(self):
        """One waits for its GPU without end; its heartbeats continue."""
        now = self.folder / "now"
        faults = {"FAULT_BLOCK": "synchronize", "FAULT_WHEN": now, "FAULT_RANK": 0, "LD_PRELOAD": LIBRARY}
        process, _ = self.start_training("waits", self.launcher(), "--save_grace_seconds", "1", **faults)
        now.touch()
        process.terminate()
        err = self.expect_end("waits", lambda: process.poll() is not None, time.monotonic(), 1 + self.LIMIT_S)
        self.assertIn("signal 9 (Killed), from the launcher", err)

    def test_ranks_that_were_all_suspended_continue(self):
        process, _ = self.start_training("suspended", self.launcher())
        metrics = self.folder / "suspended" / "metrics.jsonl"
        process.send_signal(signal.SIGTSTP)
        time.sleep(20)  # longer than a rank may be silent
        before = metrics.read_text().count("\n")
        process.send_signal(signal.SIGCONT)
        continued = time.monotonic()
        self.wait_for(lambda: time.monotonic() > continued + 15, process, "suspended")
        self.assertGreater(metrics.read_text().count("\n"), before + 5)
        process.terminate()
        err = self.expect_end("suspended", lambda: process.poll() is not None, time.monotonic(), self.LIMIT_S)
        self.assertEqual(process.returncode, SIGTERM_SAVED, err)

    @unittest.skipUnless(TORCHRUN, "there is no torchrun")
    def test_under_torchrun(self):
        """The rank that is left ends by itself."""
        for name, mesh in self.MESHES.items():
            with self.subTest(mesh=name):
                out = f"{name}-torchrun"
                words = [*TORCHRUN, "--no-python", "--nproc_per_node", "2", "--master_port", free_port(), PROGRAM]
                process, pids = self.start_training(out, list(map(str, words)), *mesh)
                os.kill(pids[1], signal.SIGSTOP)
                began = time.monotonic()
                err = self.expect_end(out, lambda: not alive(pids[0]), began, self.LIMIT_S)
                self.assertRegex(err, r"rank 1 .*has sent no heartbeat")


if __name__ == "__main__":
    if not gpus(2):
        print("fewer than two GPUs")
        sys.exit(77)
    main()
