"""`unsloth-train launch` at work: exit codes, output, signals, restarts. No engine is needed."""

import os
import re
import signal
import subprocess
import sys
import time

from launch_support import HEAD, LONG_S, Launching, SIGNALLED, WithDriver, alive, state, until
from support import OK, PROGRAM, RUNTIME, main


class ExitCodes(Launching):
    def test_all_fine_says_nothing(self):
        code, out, err = self.launch(3, "print(rank, world)")
        self.assertEqual((code, err), (OK, ""))
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] 0 3", "[rank 1] 1 3", "[rank 2] 2 3"])

    def test_a_failing_rank_is_named(self):
        for code in (2, 3, 4, 1, 77):
            with self.subTest(code=code):
                result, _, err = self.launch(3, f"ready(); os._exit({code} if rank == 1 else 0)")
                self.assertEqual(result, code, err)
                pid = (self.folder / "ready1").read_text()
                self.assertIn(f"unsloth-train launch: rank 1 (pid {pid}) failed with exit code {code}; ranks ", err)
                self.assertIn(": exit code 0", err)

    def test_death_by_a_signal_is_named(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
            with self.subTest(number=number):
                code, _, err = self.launch(
                    2,
                    f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); rank == 1 and os.kill(os.getpid(), {int(number)})",
                )
                self.assertEqual(code, SIGNALLED + number, err)
                self.assertRegex(err, rf"rank 1 \(pid \d+\) was ended by signal {int(number)} \(")

    def test_a_rank_that_noticed_another_s_death_is_not_blamed(self):
        # Rank 0 says "rank 1 is gone" before rank 1 is buried.
        code, _, err = self.launch(
            2, "rank == 0 and os._exit(4); time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
        )
        self.assertEqual(code, SIGNALLED + signal.SIGKILL, err)
        self.assertIn("rank 1 (pid", err.splitlines()[-1])
        self.assertIn("rank 0: exit code 4", err.splitlines()[-1])

    def test_a_parent_that_ignores_its_children_changes_nothing(self):
        code, _, err = self.launch(
            2, "os._exit(3 * rank)", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        )
        self.assertEqual(code, 3, err)

    def test_orderly_stops_keep_their_codes(self):
        for code in (130, 143):
            self.assertEqual(self.launch(2, f"os._exit({code})")[0], code)
            self.assertEqual(
                self.launch(2, f"time.sleep(0.3 * rank); os._exit({code})", "--grace_period", 0.1)[0], code
            )

    def test_the_others_have_their_grace(self):
        # They stop by themselves within it, and their own code is not the launcher's.
        code, _, err = self.launch(
            2, "rank == 1 and os._exit(3); time.sleep(0.5); print('noticed'); os._exit(4)", "--grace_period", 30
        )
        self.assertEqual(code, 3, err)
        self.assertIn("rank 0: exit code 4", err)
        self.assertNotIn("from the launcher", err)

    def test_after_the_grace_they_are_stopped(self):
        began = time.monotonic()
        code, _, err = self.launch(
            2,
            "on(signal.SIGTERM, 143); rank == 1 and (time.sleep(0.3), os._exit(3)); sleep_long()",
            "--grace_period",
            0.5,
        )
        self.assertEqual(code, 3, err)
        self.assertEqual(self.got(0), ["15"])
        self.assertLess(time.monotonic() - began, 20)

    def test_one_that_ignores_sigterm_is_killed(self):
        began = time.monotonic()
        code, _, err = self.launch(
            2,
            "on(signal.SIGTERM, None); rank == 1 and (time.sleep(0.3), os._exit(3)); sleep_long()",
            "--grace_period",
            0.2,
        )
        self.assertEqual(code, 3, err)
        self.assertEqual(self.got(0), ["15"])
        self.assertIn("rank 0: signal 9 (Killed), from the launcher", err)
        self.assertGreater(time.monotonic() - began, 10)

    def test_a_stopped_process_does_not_hold_up_the_end(self):
        code, _, err = self.launch(
            2, "rank == 1 and os.kill(os.getpid(), signal.SIGSTOP); time.sleep(0.5); os._exit(4)", "--grace_period", 0.2
        )
        self.assertEqual(code, RUNTIME, err)
        self.assertIn("rank 0 (pid", err.splitlines()[-1])

    def test_what_a_failed_rank_started_goes_with_it(self):
        code, _, err = self.launch(
            2,
            """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open(os.path.join(sys.argv[1], f"child{rank}"), "w").write(str(child.pid))
os._exit(5)""",
        )
        self.assertEqual(code, 5, err)
        for rank in (0, 1):
            pid = int((self.folder / f"child{rank}").read_text())
            self.assertTrue(until(lambda: not alive(pid), 5), f"{pid} still runs")


class Output(Launching):
    def test_lines_are_whole_and_named(self):
        code, out, err = self.launch(
            3,
            """
letter = "abc"[rank]
for i in range(200):
    print(letter * (1 + i * 37 % 5000), flush=i % 7 == 0)
    print(letter.upper() * 50, file=sys.stderr, flush=True)
sys.stdout.write(letter * 30); sys.stdout.flush(); time.sleep(0.3); sys.stdout.write(letter * 40 + "\\n" + letter)""",
        )
        self.assertEqual(code, OK, err)
        for text, letters in ((out, "abc"), (err, "ABC")):
            self.assertTrue(text.endswith("\n"))
            lines = text.splitlines()
            self.assertEqual(len(lines), 3 * (202 if letters == "abc" else 200))
            for line in lines:
                match = re.fullmatch(r"\[rank ([012])\] (.)\2*", line)
                self.assertIsNotNone(match, line[:200])
                self.assertEqual(match[2], letters[int(match[1])])
        for rank, letter in enumerate("abc"):
            mine = [line for line in out.splitlines() if line.startswith(f"[rank {rank}]")]
            self.assertEqual(
                [len(line) - len("[rank 0] ") for line in mine], [1 + i * 37 % 5000 for i in range(200)] + [70, 1]
            )

    def test_both_streams_into_one_file(self):
        with open(self.folder / "log", "wb") as log:
            done = subprocess.run(
                self.command(
                    2,
                    """
for i in range(300): print("o" * 6000, flush=True); print("e" * 6000, file=sys.stderr, flush=True)""",
                ),
                stdout=log,
                stderr=log,
                timeout=LONG_S,
            )
        self.assertEqual(done.returncode, OK)
        lines = (self.folder / "log").read_text().splitlines()
        self.assertEqual(len(lines), 1200)
        for line in lines:
            self.assertRegex(line, r"^\[rank [01]\] (o{6000}|e{6000})$")

    def test_an_endless_line_is_cut(self):
        code, out, err = self.launch(1, "sys.stdout.write('x' * (5 << 19)); sys.stdout.write('\\nend\\n')")
        self.assertEqual(code, OK, err)
        self.assertEqual([len(line) - len("[rank 0] ") for line in out.splitlines()], [1 << 20, 1 << 20, 1 << 19, 3])

    def test_a_line_is_shown_before_the_rank_ends(self):
        process, _ = self.start(
            1,
            "print('first', flush=True); sys.stdout.write('part'); sys.stdout.flush(); ready(); on(15, 143); sleep_long()",
        )
        self.assertEqual(process.stdout.readline(), b"[rank 0] first\n")
        process.terminate()
        self.assertEqual(self.finish(process)[1], "[rank 0] part\n")

    def test_prefix(self):
        self.assertEqual(
            self.launch(
                1,
                "print('x')",
                "--nnodes",
                2,
                "--node_rank",
                1,
                "--master_addr",
                "host",
                "--prefix",
                "<{rank}.{local_rank}> ",
            )[1],
            "<1.0> x\n",
        )
        self.assertEqual(self.launch(1, "print('x')", "--prefix", "")[1], "x\n")

    def test_silent_shows_rank_0_as_it_is(self):
        code, out, err = self.launch(3, "print(rank); sys.stderr.write(f'e{rank}'); sys.stdin.read()", "--silent")
        self.assertEqual((code, out, err), (OK, "0\n", "e0"))

    def test_silent_shows_the_last_lines_of_a_rank_that_failed(self):
        code, out, err = self.launch(
            2, "[print(f'line {i}', file=sys.stderr) for i in range(100)] and rank and os._exit(3)", "--silent"
        )
        self.assertEqual(code, 3)
        self.assertIn("the last lines of rank 1 on stderr:\n  [rank 1] line 60\n", err)
        self.assertIn("[rank 1] line 99\n", err)
        self.assertNotIn("[rank 1] line 59\n", err)

    def test_a_reader_that_goes_away_does_not_end_the_run(self):
        process, _ = self.start(
            2,
            "ready(); [print('x' * 1000, flush=True) for _ in range(2000)]; open(os.path.join(sys.argv[1], f'done{rank}'), 'w')",
        )
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        self.assertEqual(process.wait(timeout=LONG_S), OK)
        self.assertTrue((self.folder / "done0").exists() and (self.folder / "done1").exists())

    def test_a_reader_that_does_not_read_does_not_hold_up_signals(self):
        process, pids = self.start(2, "on(signal.SIGTERM, 143); ready()\nwhile True: print('x' * 10000, flush=True)")
        time.sleep(0.5)  # by now every buffer between the ranks and this test is full
        process.terminate()
        self.assertTrue(until(lambda: all(self.got(rank) for rank in range(2)), 20))
        self.assertTrue(until(lambda: not any(alive(pid) for pid in pids), 20))
        self.assertEqual(self.finish(process)[0], 143)


class ThreadsOfTheDriver(WithDriver):
    def test_they_do_not_swallow_the_end_of_ranks(self):
        for _ in range(3):
            began = time.monotonic()
            self.assertEqual(self.launch(2, "os._exit(0)", env=self.with_driver())[0], 0)
            self.assertLess(time.monotonic() - began, 20)

    def test_they_do_not_swallow_a_request_to_stop(self):
        process, pids = self.start(2, "on(signal.SIGTERM, 143); ready(); sleep_long()", env=self.with_driver())
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 143, err)
        self.assertEqual([self.got(0), self.got(1)], [["15"]] * 2)
        self.assertFalse(any(alive(pid) for pid in pids))


class Signals(Launching):
    def test_requests_to_stop_reach_every_rank_once(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number=number):
                process, pids = self.start(2, f"on({int(number)}, {SIGNALLED + number}); ready(); sleep_long()")
                process.send_signal(number)
                code, _, err = self.finish(process)
                self.assertEqual(code, SIGNALLED + number, err)
                self.assertEqual([self.got(0), self.got(1)], [[str(int(number))]] * 2)
                self.assertIn(f"signal {int(number)}", err)
                self.assertFalse(any(alive(pid) for pid in pids))
                for file in self.folder.iterdir():
                    file.unlink()

    def test_a_key_press_reaches_every_rank_once(self):
        # The terminal signals the whole foreground group; ranks are not in it.
        process, _ = self.start(
            2, "on(signal.SIGINT, None); on(signal.SIGTERM, 130); ready(); sleep_long()", start_new_session=True
        )
        os.killpg(process.pid, signal.SIGINT)
        self.assertTrue(until(lambda: all(self.got(rank) for rank in range(2))))
        time.sleep(0.3)
        self.assertEqual([self.got(0), self.got(1)], [["2"]] * 2)
        for rank in range(2):
            os.kill(int((self.folder / f"ready{rank}").read_text()), signal.SIGTERM)
        self.assertEqual(self.finish(process)[0], 130)

    def test_usr1_is_passed_on_and_nothing_else(self):
        process, _ = self.start(2, "on(signal.SIGUSR1, None); on(signal.SIGTERM, 143); ready(); sleep_long()")
        for count in (1, 2):
            process.send_signal(signal.SIGUSR1)
            self.assertTrue(until(lambda: all(len(self.got(rank)) == count for rank in range(2))))
        self.assertIsNone(process.poll())
        process.terminate()
        self.assertEqual(self.finish(process)[0], 143)

    def test_finishing_after_a_request_is_success(self):
        process, _ = self.start(
            2,
            "on(signal.SIGTERM, None); ready()\nwhile not os.path.exists(os.path.join(sys.argv[1], f'got{rank}')): time.sleep(0.02)",
        )
        process.terminate()
        self.assertEqual(self.finish(process)[0], OK)

    def test_a_failure_while_stopping_is_the_exit_code(self):
        process, _ = self.start(2, "on(signal.SIGTERM, 4 if rank else 143); ready(); sleep_long()")
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, RUNTIME, err)
        self.assertIn("rank 1 (pid", err)

    def test_a_rank_that_dies_of_the_request_is_no_failure(self):
        process, _ = self.start(2, "ready(); sleep_long()")
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 143, err)
        self.assertIn("stopped by signal 15", err)

    def test_the_second_request_leaves_at_once(self):
        process, pids = self.start(2, "on(signal.SIGTERM, None); on(signal.SIGINT, None); ready(); sleep_long()")
        process.terminate()
        self.assertTrue(until(lambda: all(self.got(rank) == ["15"] for rank in range(2))))
        time.sleep(0.4)
        self.assertIsNone(process.poll(), "one request must not end ranks that go on")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        code, _, err = self.finish(process)
        self.assertEqual(code, 130, err)
        self.assertLess(time.monotonic() - began, 5)
        self.assertFalse(any(alive(pid) for pid in pids))

    def test_the_same_request_twice_at_once_is_one(self):
        process, _ = self.start(2, "on(signal.SIGTERM, None); ready(); time.sleep(1.5); os._exit(143)")
        began = time.monotonic()
        process.terminate()
        time.sleep(0.02)
        process.terminate()
        if time.monotonic() - began > 0.15:
            self.skipTest("this machine is too busy to send two signals at once")
        code, _, err = self.finish(process)
        self.assertEqual(code, 143, err)
        self.assertNotIn("from the launcher", err)

    def test_a_killed_launcher_leaves_nothing(self):
        process, pids = self.start(3, "[on(s, None) for s in (1, 2, 15)]; ready(); sleep_long()")
        process.kill()
        process.wait()
        self.assertTrue(until(lambda: not any(alive(pid) for pid in pids), 10), "ranks outlived the launcher")

    def test_ctrl_z_suspends_the_ranks_too(self):
        process, pids = self.start(2, "on(signal.SIGTERM, 143); ready(); sleep_long()")
        process.send_signal(signal.SIGTSTP)
        self.assertTrue(until(lambda: all(state(pid) == "T" for pid in [process.pid, *pids])))
        process.send_signal(signal.SIGCONT)
        self.assertTrue(until(lambda: not any(state(pid) == "T" for pid in [process.pid, *pids])))
        process.terminate()
        self.assertEqual(self.finish(process)[0], 143)

    def test_nohup_is_kept(self):
        process, _ = self.start(
            1, "ready(); time.sleep(1)", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
        )
        process.send_signal(signal.SIGHUP)
        code, _, err = self.finish(process)
        self.assertEqual((code, err), (OK, ""))

    def behind_a_shell(self, code):
        """A launcher of one rank behind a shell, which dies of the request at once."""
        script = self.folder / "rank.sh"
        script.write_text(f'#!/bin/sh\n\'{sys.executable}\' -I -S -c "$1" "$2"\nexit $?\n')
        script.chmod(0o755)
        process = subprocess.Popen(
            [PROGRAM, "launch", "--nproc_per_node", "1", "--program", script, HEAD + code, self.folder],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close(), process.stdout.close()))
        self.assertTrue(until(lambda: (self.folder / "ready0").exists() and (self.folder / "ready0").read_text()))
        return process, int((self.folder / "ready0").read_text())

    def test_a_rank_behind_a_shell_may_save(self):
        process, pid = self.behind_a_shell(
            "on(15, None); ready()\nwhile not os.path.exists(os.path.join(sys.argv[1], 'got0')): time.sleep(0.02)\ntime.sleep(1); print('saved')"
        )
        process.terminate()
        code, out, err = self.finish(process)
        self.assertEqual((code, out), (143, "[rank 0] saved\n"), err)
        self.assertEqual(self.got(0), ["15"])
        self.assertFalse(alive(pid))

    def test_a_second_request_reaches_behind_a_shell_too(self):
        process, pid = self.behind_a_shell("on(15, None); ready(); sleep_long()")
        process.terminate()
        self.assertTrue(until(lambda: self.got(0)))
        time.sleep(0.4)
        process.terminate()
        self.assertEqual(self.finish(process)[0], 143)
        self.assertTrue(until(lambda: not alive(pid), 5))


class Restarts(Launching):
    COUNT = """
n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(os.path.join(sys.argv[1], f"starts{rank}"), "a") as file: file.write(os.environ["TORCHELASTIC_RESTART_COUNT"] + "/" + os.environ["TORCHELASTIC_MAX_RESTARTS"] + "\\n")
"""

    def starts(self, rank):
        return (self.folder / f"starts{rank}").read_text().split()

    def test_all_ranks_start_again_until_it_works(self):
        code, _, err = self.launch(2, self.COUNT + "rank == 1 and n < 2 and os._exit(4)", "--max_restarts", 3)
        self.assertEqual(code, OK, err)
        self.assertEqual([self.starts(0), self.starts(1)], [["0/3", "1/3", "2/3"]] * 2)
        self.assertIn("restart 1 of 3", err)
        self.assertIn("restart 2 of 3", err)

    def test_the_last_failure_counts(self):
        code, _, err = self.launch(2, self.COUNT + "os._exit(4 if n == 0 else 9)", "--max_restarts", 1)
        self.assertEqual(code, 9, err)
        self.assertEqual(self.starts(0), ["0/1", "1/1"])

    def test_mistakes_of_the_user_are_not_repeated(self):
        for wrong in (2, 3):
            self.assertEqual(self.launch(2, self.COUNT + f"os._exit({wrong})", "--max_restarts", 3)[0], wrong)
        self.assertEqual(self.starts(0), ["0/3"] * 2)

    def test_a_request_to_stop_is_not_a_failure(self):
        process, _ = self.start(2, self.COUNT + "on(15, 4); ready(); sleep_long()", "--max_restarts", 3)
        process.terminate()
        self.assertEqual(self.finish(process)[0], 4)
        self.assertEqual(self.starts(0), ["0/3"])

    def test_without_the_option_there_is_none(self):
        self.assertEqual(self.launch(2, self.COUNT + "os._exit(4)")[0], 4)
        self.assertEqual(self.starts(1), ["0/0"])


if __name__ == "__main__":
    main()
