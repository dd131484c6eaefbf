"""The wheel that scripts/wheel.sh makes: its name, contents and RECORD, and the program after pip installed it."""

import base64
import email
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from support import GOLDEN, LEGAL_BASE, PROGRAM, SOURCE, TIMEOUT_S, EndToEnd, environment, main, token_rows, write_rows

sys.path.insert(0, str(SOURCE / "scripts"))

import pack_wheel

BUILD = pathlib.Path(PROGRAM).parent
DEPS = SOURCE / ".deps" / "venv"


class Tag(unittest.TestCase):
    """The policy that follows from what objdump says."""

    TEXT = """
Dynamic Section:
  NEEDED               libyaml-cpp.so.0.7
  NEEDED               libc.so.6
  RPATH                $ORIGIN

Version definitions:
1 0x01 0x0d1c7d85 libother.so
2 0x00 0x0d1c7d85 GLIBC_2.99

Version References:
  required from libstdc++.so.6:
    0x0297f870 0x00 06 GLIBCXX_{}
    0x0bafd173 0x00 09 CXXABI_1.3.13
  required from libc.so.6:
    0x09691974 0x00 02 GLIBC_{}
    0x0d696914 0x00 03 GLIBC_2.4
"""

    def policy(self, glibc, glibcxx, more=""):
        libraries, versions = pack_wheel.needs_of(self.TEXT.format(glibcxx, glibc) + more)
        self.assertEqual(libraries, {"libyaml-cpp.so.0.7", "libc.so.6"})
        return pack_wheel.oldest_policy(versions)

    def test_the_newest_symbol_decides(self):
        self.assertEqual(self.policy("2.17", "3.4.29"), 34)
        self.assertEqual(self.policy("2.35", "3.4.29"), 35)
        self.assertEqual(self.policy("2.4", "3.4.30"), 35)
        self.assertEqual(self.policy("2.38", "3.4.30"), 38)
        self.assertEqual(self.policy("2.4", "3.4.29", "    0x0 0x00 05 GLIBC_ABI_DT_RELR\n"), 36)
        with self.assertRaises(SystemExit):
            self.policy("2.35", "3.4.99")


@unittest.skipUnless(shutil.which("objdump") and DEPS.exists(), "not set up by scripts/setup.sh")
class Wheel(EndToEnd):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="wheel-test-", dir=BUILD)
        cls.addClassCleanup(holder.cleanup)
        cls.out = pathlib.Path(holder.name)
        made = subprocess.run(
            ["scripts/wheel.sh", "--build", BUILD, "--level", "0", cls.out / "dist"],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        (cls.wheel,) = (cls.out / "dist").iterdir()

    def test_contents(self):
        with zipfile.ZipFile(self.wheel) as archive:
            contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
            executable = {entry.filename for entry in archive.infolist() if entry.external_attr >> 16 & 0o111}
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout.split()[1]
        info = f"unsloth_train-{version}.dist-info"
        tag = re.fullmatch(rf"unsloth_train-{version}-(py3-none-manylinux_2_\d\d_x86_64)\.whl", self.wheel.name)[1]
        self.assertIn(f"Tag: {tag}\n", contents[f"{info}/WHEEL"].decode())
        if os.confstr("CS_GNU_LIBC_VERSION") == "glibc 2.36":  # of Debian 12; gcc 12's library decides
            self.assertIn("manylinux_2_35", tag)
        self.assertEqual(executable, {"unsloth_train/lib/unsloth-train"})

        record = [line.rsplit(",", 2) for line in contents[f"{info}/RECORD"].decode().splitlines()]
        self.assertEqual([name for name, _, _ in record], list(contents))
        for name, digest, size in record:
            if name == f"{info}/RECORD":
                continue
            data = contents[name]
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            self.assertEqual((digest, size), (f"sha256={sha}", str(len(data))), name)

        metadata = email.message_from_bytes(contents[f"{info}/METADATA"])
        torch = re.search(
            r"^  LibTorch +(\S+)", subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout, re.M
        )
        self.assertEqual((metadata["Name"], metadata["Version"]), ("unsloth_train", version))
        self.assertIn(f"torch=={torch[1]}", metadata.get_all("Requires-Dist"))
        for name in metadata.get_all("License-File"):
            self.assertIn(f"{info}/licenses/{name}", contents)
        # A text for each library of the distribution; what pip or the system brings is not inside.
        libraries = {
            name.rpartition("/")[2] for name in contents if re.match(r"unsloth_train/lib/lib(?!unsloth)", name)
        }
        self.assertTrue(
            {"libyaml-cpp.so.0.7", "libpcre2-8.so.0"} <= libraries or not os.path.exists("/etc/debian_version")
        )
        self.assertEqual(
            {name for name in libraries if re.match(r"lib(torch|c10|cu|nccl|arrow|stdc|gcc_s|c\.)(?!rl)", name)}, set()
        )
        self.assertGreater(len(metadata.get_all("License-File")), 10)
        # Nothing of the machine that made it.
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(
                self.folder, [name for name in contents if name.startswith("unsloth_train/lib/libunsloth_")]
            )
        for folder, expected in ((BUILD, True), (self.folder / "unsloth_train" / "lib", False)):
            paths = subprocess.run(
                ["readelf", "-d", *folder.glob("libunsloth_*.so")], capture_output=True, text=True
            ).stdout
            self.assertIs("/.deps/venv/" in paths, expected)

    def install(self):
        """An environment with the wheel and, as links, the packages that pip would get."""
        venv = self.out / "venv"
        subprocess.run([DEPS / "bin" / "python", "-m", "venv", "--without-pip", venv], check=True)
        (site,) = venv.glob("lib/python3*/site-packages")
        theirs = DEPS / site.relative_to(venv)
        for name in ("torch", "nvidia", "pyarrow"):
            (site / name).symlink_to((theirs / name).resolve())
        before = set(venv.rglob("*"))
        self.pip(venv, "install", "--no-deps", "--no-index", "--no-compile", self.wheel)
        return venv, site, before

    def pip(self, venv, *arguments):
        done = subprocess.run(
            [DEPS / "bin" / "python", "-m", "pip", "--python", venv / "bin" / "python", "--quiet", *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_installed(self, command, *arguments, code=0, **variables):
        """With nothing of this process' environment, from another folder."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        done = subprocess.run(
            [command, *map(str, arguments)],
            cwd=self.folder,
            env={"HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_installed(self):
        venv, site, before = self.install()
        program = venv / "bin" / "unsloth-train"
        plain = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
        self.assertEqual(self.run_installed(program, "--version"), plain)
        self.assertEqual(self.run_installed(venv / "bin" / "python", "-m", "unsloth_train", "--version"), plain)
        self.assertIn("--port", self.run_installed(program, "serve", "--help"))
        self.assertTrue((venv / "share" / "man" / "man1" / "unsloth-train.1").exists())

        rows = write_rows(self.folder / "rows.jsonl", token_rows(8))
        words = ["--model.path", LEGAL_BASE, "--train_file", rows, "--device", "cpu", "--dtype", "float32"]
        self.assertIn("GiB", self.run_installed(program, "plan", *words, "--output_dir", "out"))
        # The program itself: its run path leads to LibTorch and CUDA, before what the user has in LD_LIBRARY_PATH.
        (self.folder / "libcudart.so.13").write_text("no library")
        inner = site / "unsloth_train" / "lib" / "unsloth-train"
        self.run_installed(
            inner, "train", *words, "--output_dir", "out", "--max_steps", "2", LD_LIBRARY_PATH=str(self.folder)
        )
        self.assertTrue((self.folder / "out" / "adapter_model.safetensors").exists())
        if (BUILD / "libunsloth_parquet.so").exists():
            told = self.run_installed(
                program, "data", "--json", "--model.path", LEGAL_BASE, "--train_file", GOLDEN / "data" / "rows.parquet",
                "--format", "tokenized", "--columns", '{"input_ids": "ids"}', "--skip_bad_rows", "true",
            )  # fmt: skip
            self.assertIn('"read": 600', told)
        self.check_other_places(program, site, words)

        self.pip(venv, "uninstall", "--yes", "unsloth_train")
        left = {path.relative_to(venv).as_posix() for path in set(venv.rglob("*")) - before}
        self.assertLessEqual(left, {"share", "share/man", "share/man/man1"})  # empty

    def check_other_places(self, program, site, words):
        """LibTorch elsewhere in Python's path; another one; none."""
        elsewhere = self.out / "elsewhere"  # a folder that they can be renamed to
        elsewhere.mkdir()
        for name in ("torch", "nvidia", "pyarrow"):
            (site / name).rename(elsewhere / name)
        self.assertIn("needs torch", self.run_installed(program, "plan", *words, code=4))
        self.assertIn("GiB", self.run_installed(program, "plan", *words, PYTHONPATH=str(elsewhere)))
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text("__version__ = '2.10.0+cu128'\n")
        told = self.run_installed(program, "--version", code=4)
        self.assertIn("is 2.10.0+cu128", told)
        self.assertIn("python -m pip install", told)
        shutil.rmtree(site / "torch")


if __name__ == "__main__":
    main()
