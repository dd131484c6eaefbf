"""`unsloth-train doctor`: what it prints of this machine, and when it says that something is broken."""

import json
import os
import pathlib
import shutil
import subprocess

from launch_support import Launching, WithDriver
from support import FORBIDDEN, PROGRAM, RUNTIME, TIMEOUT_S, environment, main


class Machine(Launching):
    def doctor(self, *arguments, program=PROGRAM, env=None, **more):
        done = subprocess.run(
            [program, "doctor", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=env or environment(),
            **more,
        )
        for word in FORBIDDEN:
            self.assertNotIn(word, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done

    def test_it_describes_this_machine(self):
        out = self.doctor("--output_dir", self.folder / "not" / "yet").stdout
        for line in (
            r"ok +unsloth-train +\d+\.\d+\.\d+, compiler ",
            rf"CPUs +\d+ online, {len(os.sched_getaffinity(0))} allowed",
            r"memory +[\d.]+ GiB, ",
            rf"output_dir +{self.folder}: ",
            r"/dev/shm +",
            r"open files +",
            r"(?m)^libraries$",
            r"(?m)^\d+ broken, \d+ to look at$",
            r"paste the output of: unsloth-train doctor --report$",
        ):
            self.assertRegex(out, line)

    def test_kernels_and_disk_are_tried(self):
        out = self.doctor("--output_dir", self.folder, "--device", "cpu").stdout
        self.assertRegex(out, r"its rate +writes \d+ MB/s, reads \d+ MB/s")
        self.assertRegex(
            out, r"ok +self-test +.*\n +\d+ rounds of matrix product, RMS norm, SwiGLU, attention.*: right"
        )
        self.assertEqual(os.listdir(self.folder), [])

    def test_json(self):
        done = self.doctor("--json")
        report = json.loads(done.stdout)
        names = {(finding["check"], finding["name"]): finding for finding in report["findings"]}
        self.assertEqual(names["system", "unsloth-train"]["verdict"], "ok")
        self.assertEqual(report["broken"], sum(f["verdict"] == "broken" for f in report["findings"]))
        self.assertEqual(report["warnings"], sum(f["verdict"] == "warn" for f in report["findings"]))
        self.assertEqual(done.returncode, RUNTIME if report["broken"] else 0)

    def test_a_block_for_a_report(self):
        home = self.folder / "home-of-someone"
        home.mkdir()
        env = environment(HOME=home, HF_HOME=home / "cache", UNSLOTH_SECRET="0123456789abcdef")
        done = self.doctor("--report", "--device", "cpu", "--output_dir", home / "client" / "out", env=env)
        lines = done.stdout.splitlines()
        self.assertEqual((lines[0], lines[-1]), ("```text", "```"))
        self.assertRegex(lines[1], r"^unsloth-train \d+\.\d+\.\d+, .*LibTorch ")
        for line in (
            r"(?m)^operating system: ",
            r"(?m)^memory: [\d.]+ GiB, ",
            r"(?m)^output_dir: ~: [\d.]+ \wi?B free of ",
            r"(?m)^(BROKEN: )?driver: ",
            r"(?m)^loaded: .*libunsloth_engine\.so",
            r"(?m)^HF_HOME: ~/…$",
            r"(?m)^UNSLOTH_SECRET: \*\*\*$",
        ):
            self.assertRegex(done.stdout, line)
        for secret in ("home-of-someone", "client", "0123456789abcdef"):
            self.assertNotIn(secret, done.stdout)
        self.fail_with("option.conflict", ["--report"], "doctor", "--report", "--json")

    def test_a_missing_engine_is_broken(self):
        alone = self.folder / "alone"
        alone.mkdir()
        for name in ("unsloth-train", "libunsloth_base.so"):
            shutil.copy(pathlib.Path(PROGRAM).parent / name, alone)
        done = self.doctor(program=alone / "unsloth-train")
        self.assertEqual(done.returncode, RUNTIME)
        self.assertRegex(
            done.stdout,
            r"BROKEN +engine +the engine .*libunsloth_engine\.so is missing\n +-> It belongs next to the executable",
        )

    def test_a_folder_that_cannot_be_written_is_broken(self):
        folder = self.folder / "locked"
        folder.mkdir(mode=0o555)
        if os.access(folder, os.W_OK):
            folder = pathlib.Path("/proc/self")  # root may write anywhere else
        done = self.doctor("--output_dir", folder)
        self.assertEqual(done.returncode, RUNTIME)
        self.assertRegex(done.stdout, r"BROKEN +output_dir ")

    def test_forgotten_variables_are_named(self):
        out = self.doctor(env=environment(NCCL_P2P_DISABLE=1, https_proxy="http://me:secret@proxy:1")).stdout
        self.assertRegex(out, r"warn +NCCL_P2P_DISABLE +1\n +-> ")
        self.assertIn("http://***@proxy:1", out)
        self.assertNotIn("secret", out)

    def test_small_limits_are_named(self):
        import resource

        out = self.doctor(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))).stdout
        self.assertRegex(out, r"warn +open files +256 \(hard 256\)\n +-> .*ulimit -n")

    def test_a_gpu_that_is_asked_for_and_not_there(self):
        if any(name.startswith("nvidia") for name in os.listdir("/dev")):
            self.skipTest("there is one")
        done = self.doctor("--device", "cuda")
        self.assertEqual(done.returncode, RUNTIME)
        self.assertRegex(done.stdout, r"BROKEN +driver +none")


class Driver(WithDriver):
    def test_the_doctor_shows_them(self):
        done = subprocess.run(
            [PROGRAM, "doctor"], capture_output=True, text=True, timeout=TIMEOUT_S, env=self.with_driver()
        )
        for line in (
            r"ok +driver +580\.1\.2, supports CUDA 13\.0 \(.*libnvidia-ml\.so\.1\)",
            r"ok +GPU 0 +Test GPU, 80\.0 GiB, 0 B in use, 0000:18:00\.0",
            r"warn +GPU 1 +Test GPU, 80\.0 GiB, 32\.0 GiB in use, 0000:19:00\.0",
            r"warn +between GPUs +GPU 0: X SYS\n +GPU 1: SYS X",
            r"ok +visible to a run +2 of 2",
            r"ok +health GPU 0 +under load 40 C, 123 of 700 W, 1500 of 1980 MHz\n +ECC on, 0 uncorrected errors since the driver was loaded, 3 ever",
            r"warn +health GPU 1 +under load 40 C, .*, slowed by power cap, slowed by heat \(hardware\)\n",
        ):
            self.assertRegex(done.stdout, line)
        # The ranks of the sums are started, and find that the driver is made of paper.
        self.assertRegex(done.stdout, r"BROKEN +sums of all GPUs +.*hardware\.device cuda: ")
        self.assertEqual(done.returncode, RUNTIME)

    def test_the_doctor_refuses_an_old_driver(self):
        self.build(12040)
        done = subprocess.run(
            [PROGRAM, "doctor"], capture_output=True, text=True, timeout=TIMEOUT_S, env=self.with_driver()
        )
        self.assertEqual(done.returncode, RUNTIME)
        self.assertRegex(done.stdout, r"BROKEN +driver +580\.1\.2, supports CUDA 12\.4")
        self.assertIn("driver 580 or newer", done.stdout)


if __name__ == "__main__":
    main()
