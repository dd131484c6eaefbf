"""`unsloth-train launch` and signals."""

import os
import signal
import subprocess
import sys
import time

from launch_support import HEAD, Launching, SIGNALLED, WithDriver, alive, state, until
from support import OK, PROGRAM, RUNTIME, main


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


if __name__ == "__main__":
    main()
