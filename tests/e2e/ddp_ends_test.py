"""How runs of several ranks end: signals, ranks that die or hang, the launcher."""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from rank_support import Ranks
from support import (
    OK,
    PROGRAM,
    RUNTIME,
    SIGHUP_SAVED,
    SIGTERM_SAVED,
    TIMEOUT_S,
    USAGE,
    environment,
    main,
    token_rows,
    write_rows,
)

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")


class EndsOfRanks(Ranks):
    def test_a_signal_to_one_rank_stops_and_saves_all(self):
        ranks = self.start_ranks(lambda rank: self.arguments("stopped", 2, 1, "--max_steps", 1000000))
        self.wait_for_steps("stopped", ranks)
        self.expect_all_save_when_one_is_asked_to_stop(ranks)
        self.assertTrue((self.folder / "stopped" / "adapter_model.safetensors").exists())

    def test_a_signal_to_one_rank_in_the_middle_of_an_evaluation(self):
        held_out = write_rows(self.folder / "held_out.jsonl", token_rows(12000))
        ranks = self.start_ranks(
            lambda rank: self.arguments("evaluating", 2, 1, "--eval_file", held_out, "--eval_on_start", "true")
        )
        metrics = self.folder / "evaluating" / "metrics.jsonl"
        self.wait_for(metrics.exists, ranks)
        time.sleep(0.3)
        ranks[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        for rank in ranks:
            err = self.expect_code(rank, SIGTERM_SAVED)
        self.assertLess(time.monotonic() - began, 15)
        self.assertEqual(self.evaluations(self.folder / "evaluating"), [])
        self.assertTrue((self.folder / "evaluating" / "checkpoint-0" / "manifest.json").exists())

    def test_a_killed_rank_is_named(self):
        ranks = self.start_ranks(
            lambda rank: self.arguments("killed", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3)
        )
        metrics = self.folder / "killed" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        time.sleep(2)  # until a heartbeat came from within the steps
        ranks[1].kill()
        began = time.monotonic()
        err = self.expect_code(ranks[0], RUNTIME)
        self.assertRegex(
            err,
            r"rank 1 .*(has sent no heartbeat for 3 s.*at the (gradients|loss) of step|did not come to the (gradients|loss) of step)",
        )
        self.assertLess(time.monotonic() - began, 20)

    def test_a_stopped_rank_is_named(self):
        ranks = self.start_ranks(
            lambda rank: self.arguments("stopped", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 60), size=3
        )
        metrics = self.folder / "stopped" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        ranks[2].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for rank in ranks[:2]:
            err = self.expect_code(rank, RUNTIME)
            self.assertRegex(err, r"rank 2 \(.*\) has sent no heartbeat for 1[2-9] s|rank [01] \(.*\) failed: rank 2")
        self.assertLess(time.monotonic() - began, 30)

    def test_a_stopped_rank_0_is_named(self):
        """It serves the store, which then does not answer."""
        ranks = self.start_ranks(
            lambda rank: self.arguments("stopped0", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 60)
        )
        metrics = self.folder / "stopped0" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        ranks[0].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        err = self.expect_code(ranks[1], RUNTIME)
        self.assertIn("rank 0 is gone", err)
        self.assertLess(time.monotonic() - began, 45)

    def test_a_folder_that_is_taken_has_one_advice(self):
        self.assertEqual(self.launch(1, self.arguments("taken", 4, 2))[0], OK)
        code, err = self.launch(2, self.arguments("taken", 2, 2))
        self.assertEqual(code, USAGE, err)
        self.assertEqual(err.count("overwrite_output_dir true"), 1, err)
        self.assertNotIn("resume_from_checkpoint auto.", err)

    def test_ranks_that_were_all_suspended_continue(self):
        """As by scontrol suspend or docker pause, for longer than a rank may be silent. One that stays so is named."""
        out = self.folder / "suspended"
        ranks = self.start_ranks(
            lambda rank: self.arguments(out.name, 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3)
        )
        metrics = out / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                rank.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(6)
                before = metrics.read_text().count("\n")
        continued = time.monotonic()
        self.wait_for(lambda: time.monotonic() > continued + 4, ranks)  # longer than a rank may be silent
        self.assertGreater(metrics.read_text().count("\n"), before)
        ranks[1].send_signal(signal.SIGSTOP)
        self.expect_ended_by(ranks[0], r"rank 1 \(.*\) (has sent no heartbeat|did not come to)", 30)

    def expect_an_end_although_blocked(self, place):
        """Rank 1 is stopped, and rank 0's main thread never returns from there."""
        now = self.folder / f"now-{place}"
        blocked = {"LD_PRELOAD": LIBRARY, "FAULT_BLOCK": place, "FAULT_WHEN": now, "FAULT_RANK": 0}
        out = self.folder / f"blocked-{place}"
        ranks = self.start_ranks(
            lambda rank: self.arguments(out.name, 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3),
            environments={0: blocked},
        )
        metrics = out / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        ranks[1].send_signal(signal.SIGSTOP)
        now.touch()
        ranks[0].send_signal(signal.SIGTERM)
        self.expect_ended_by(
            ranks[0], r"(?s)rank 1 .*(has sent no heartbeat|did not come).*did not end by itself within 3 s", 30
        )

    @unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
    def test_a_rank_that_does_not_come_back_from_the_device_ends(self):
        self.expect_an_end_although_blocked("wait")

    @unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
    def test_a_rank_that_hangs_at_exit_ends(self):
        self.expect_an_end_although_blocked("exit")

    def test_a_failing_rank_tells_the_others_why(self):
        ranks = self.start_ranks(
            lambda rank: self.arguments(
                "failing",
                2,
                1,
                "--max_steps",
                1000000,
                "--ddp_timeout",
                60,
                *(["--data.train_file", self.folder / "absent.jsonl"] if rank == 1 else []),
            )
        )
        began = time.monotonic()
        err = self.expect_code(ranks[0], RUNTIME)
        self.assertRegex(err, r"rank 1 \(.*\) failed: .*absent.jsonl")
        self.assertLess(time.monotonic() - began, 30)

    def test_a_lost_store_is_said(self):
        ranks = self.start_ranks(lambda rank: self.arguments("lost", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 5))
        metrics = self.folder / "lost" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        ranks[0].kill()
        err = self.expect_code(ranks[1], RUNTIME)
        self.assertIn("rank 0 is gone", err)

    def test_different_configurations_are_refused(self):
        ranks = self.start_ranks(lambda rank: self.arguments("differ", 2, 1, "--learning_rate", 0.001 * (1 + rank)))
        for rank in ranks:
            err = self.expect_code(rank, USAGE)
            self.assertIn("rank 1 was started differently from rank 0", err)
            self.assertIn("learning_rate", err)

    def test_half_an_environment_is_refused(self):
        env = environment(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0)
        self.fail_with(USAGE, "MASTER_ADDR", *self.arguments("half", 2, 1), env=env)

    def start_launcher(self, arguments):
        launcher = subprocess.Popen(
            [PROGRAM, "launch", "--nproc_per_node", "2", *map(str, arguments)],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whoever runs the tests may ignore it
        )
        self.addCleanup(lambda: (launcher.kill(), launcher.wait(), launcher.stderr.close()))
        return launcher

    def test_the_launcher_passes_on_a_request_to_stop(self):
        for number, code in ((signal.SIGTERM, SIGTERM_SAVED), (signal.SIGHUP, SIGHUP_SAVED)):
            with self.subTest(number=number):
                out = self.folder / f"asked{code}"
                launcher = self.start_launcher(self.arguments(out.name, 2, 1, "--max_steps", 1000000))
                metrics = out / "metrics.jsonl"
                self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, [launcher])
                launcher.send_signal(number)
                err = launcher.communicate(timeout=TIMEOUT_S)[1]
                self.assertEqual(launcher.returncode, code, err)
                self.assertEqual(err.count("Stopping after this step"), 2, err)
                self.assertRegex(err, r"\[rank 0\] .*stopped after step")
                self.assertTrue((out / "adapter_model.safetensors").exists())

    def test_the_launcher_names_the_rank_that_died(self):
        launcher = self.start_launcher(self.arguments("died", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3))
        metrics = self.folder / "died" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, [launcher])
        children = [
            int(pid) for pid in pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        ]
        victim = next(pid for pid in children if b"LOCAL_RANK=1\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(victim, signal.SIGKILL)
        err = launcher.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(launcher.returncode, 128 + signal.SIGKILL, err)
        self.assertIn(f"rank 1 (pid {victim}) was ended by signal 9", err)
        self.assertIn("rank 0: exit code 4", err)

    def ranks_of(self, launcher):
        """{rank: pid}"""
        found = {}
        for pid in pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {int(word[5:]): int(pid) for word in words if word.startswith(b"RANK=")}
        return found

    def test_the_launcher_gives_no_grace_before_the_first_step(self):
        launcher = self.start_launcher(self.arguments("early", 2, 1))
        self.wait_for(lambda: len(self.ranks_of(launcher)) == 2, [launcher])
        pids = self.ranks_of(launcher)
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        began = time.monotonic()
        err = launcher.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(launcher.returncode, 128 + signal.SIGKILL, err)
        self.assertLess(time.monotonic() - began, 15, err)

    def test_the_launcher_gives_a_lost_rank_no_grace(self):
        for lost in (0, 1):
            with self.subTest(lost=lost):
                out = f"lost{lost}"
                launcher = self.start_launcher(self.arguments(out, 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3))
                metrics = self.folder / out / "metrics.jsonl"
                self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, [launcher])
                os.kill(self.ranks_of(launcher)[lost], signal.SIGSTOP)
                began = time.monotonic()
                err = launcher.communicate(timeout=TIMEOUT_S)[1]
                self.assertEqual(launcher.returncode, RUNTIME, err)
                self.assertIn(f"rank {lost} (pid", err)
                self.assertIn("sends no heartbeat, as the other ranks report", err)
                self.assertIn("was stuck, and the launcher killed it", err.splitlines()[-1])
                self.assertLess(time.monotonic() - began, 15, err)

    def test_a_request_to_stop_ends_ranks_of_which_one_is_stopped(self):
        launcher = self.start_launcher(self.arguments("asked", 2, 1, "--max_steps", 1000000, "--ddp_timeout", 3))
        metrics = self.folder / "asked" / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, [launcher])
        os.kill(self.ranks_of(launcher)[1], signal.SIGSTOP)
        began = time.monotonic()
        launcher.terminate()
        err = launcher.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(launcher.returncode, RUNTIME, err)
        self.assertIn("stop in order within 49 s, or are killed", err)  # save_grace_seconds, and 24 s to save
        self.assertRegex(err, r"rank 1 .*(no heartbeat|did not come)")
        self.assertLess(time.monotonic() - began, 120, err)


if __name__ == "__main__":
    main()
