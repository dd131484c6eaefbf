"""`unsloth-train launch` at work: exit codes, output, signals, restarts. No engine is needed."""

import re
import signal
import subprocess
import time

from launch_support import LONG_S, Launching, SIGNALLED, alive, until
from support import OK, RUNTIME, main


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
