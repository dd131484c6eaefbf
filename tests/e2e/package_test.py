"""What comes with the program: build facts, manual page, completions, and the package that scripts/package.sh makes, run in a root file
system that holds glibc and nothing else. The last wants root or user namespaces, and is skipped without."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from hub_server import Hub, Repository
from rank_support import free_port
from support import GOLDEN, LEGAL_BASE, PROGRAM, SOURCE, TIMEOUT_S, EndToEnd, environment, main, token_rows, write_rows

BUILD = pathlib.Path(PROGRAM).parent
GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libutil.so.1")
# A root of its own: what is mounted there goes away with the namespace.
ENTER = 'mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift && exec chroot "$root" "$@"'


def namespaces():
    """How a root file system of one's own is entered here, or None."""
    for way in (["unshare", "--mount"], ["unshare", "--mount", "--user", "--map-root-user"]):
        try:
            if subprocess.run([*way, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
                return way
        except FileNotFoundError:
            return None
    return None


WAY = namespaces()


class Descriptions(EndToEnd):
    def test_the_version_and_the_build(self):
        lines = self.succeed("--version").out.splitlines()
        self.assertRegex(lines[0], r"^unsloth-train \d+\.\d+\.\d+$")
        facts = dict(line.split(maxsplit=1) for line in lines[1:])
        self.assertRegex(facts["LibTorch"], r"^\d+\.\d+")
        self.assertIn("compiler", facts)

    def test_the_manual_page(self):
        page = self.succeed("config", "--man").out
        for words in (r"\-\-training.learning_rate", ".SS launch", r"\-\-nproc_per_node", ".SH EXIT STATUS"):
            self.assertIn(words, page)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-ww", "-z", "-Kutf8"], input=page, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def complete(self, *words):
        """What bash offers behind these words."""
        script = self.folder / "completion"
        script.write_text(self.succeed("config", "--completion", "bash").out)
        quoted = " ".join(f"'{word}'" for word in words)
        code = f". {script}; COMP_WORDS=(unsloth-train {quoted}); COMP_CWORD={len(words)}; _unsloth_train; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-uc", code], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_completion(self):
        self.assertIn("generate", self.complete("gen"))
        self.assertEqual(self.complete("train", "--learning_r"), ["--learning_rate"])
        self.assertEqual(self.complete("train", "--training.learning_r"), ["--training.learning_rate"])
        self.assertIn("--nproc_per_node", self.complete("launch", "--npr"))
        self.assertIn("cosine", self.complete("run.json", "--lr_scheduler_type", ""))
        self.assertEqual(self.complete("--dtype", "fl"), ["float32", "float16"])
        self.assertEqual(self.complete("quantize", "--type", "n"), ["nf4"])
        self.assertEqual(self.complete("data", "augment", "--thes"), ["--thesaurus"])
        self.assertEqual(self.complete("probe", "grpo", "--log"), ["--log_level"])
        for shell, words in (("zsh", "bashcompinit"), ("fish", "-l learning_rate")):
            self.assertIn(words, self.succeed("config", "--completion", shell).out)


@unittest.skipUnless(WAY, "neither root nor user namespaces")
@unittest.skipUnless(shutil.which("objdump") and (SOURCE / ".deps" / "venv").exists(), "not set up by scripts/setup.sh")
class Package(EndToEnd):
    def setUp(self):
        super().setUp()
        # Beside the build, so that LibTorch's libraries are linked, not copied.
        holder = tempfile.TemporaryDirectory(prefix="package-test-", dir=BUILD)
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        made = subprocess.run(
            ["scripts/package.sh", "--build", BUILD, "--folder", self.folder / "dist"],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        (self.package,) = (self.folder / "dist").iterdir()
        self.root = self.folder / "root"
        for folder in ("proc", "dev", "tmp", "opt", "lib64", "lib/x86_64-linux-gnu"):
            (self.root / folder).mkdir(parents=True)
        system = pathlib.Path("/lib/x86_64-linux-gnu")
        for name in GLIBC:
            if (system / name).exists():
                shutil.copy(system / name, self.root / "lib/x86_64-linux-gnu")
        shutil.copy("/lib64/ld-linux-x86-64.so.2", self.root / "lib64")
        self.package = self.package.rename(self.root / "opt" / self.package.name)
        self.program = f"/opt/{self.package.name}/bin/unsloth-train"

    def inside(self, *arguments, code=0, stdin="", **variables):
        done = subprocess.run(
            [*WAY, "sh", "-c", ENTER, "sh", self.root, self.program, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={"PATH": os.environ["PATH"], "HOME": "/tmp", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def test_it_runs_in_an_empty_root_file_system(self):
        self.assertIn("unsloth-train ", self.inside("--version"))
        shutil.copytree(LEGAL_BASE, self.root / "tmp" / "base")
        write_rows(self.root / "tmp" / "rows.jsonl", token_rows(8))
        ids = json.loads(self.inside("tokenize", "--tokenizer", "/tmp/base", stdin='{"text": "a contract"}\n'))["ids"]
        self.assertTrue(ids)
        if (BUILD / "libunsloth_parquet.so").exists():
            shutil.copy(GOLDEN / "data" / "rows.arrow", self.root / "tmp")
            data = self.inside(
                "data",
                "--json",
                "--model.path",
                "/tmp/base",
                "--train_file",
                "/tmp/rows.arrow",
                "--format",
                "tokenized",
                "--columns",
                '{"input_ids": "ids"}',
                "--skip_bad_rows",
                "true",
            )
            self.assertEqual(json.loads(data)["train"]["read"], 600)
        # LibTorch, CUDA's libraries and all that they ask for.
        run = ["train", "--model.path", "/tmp/base", "--train_file", "/tmp/rows.jsonl", "--output_dir", "/tmp/out"]
        if (BUILD / "libunsloth_prometheus.so").exists():
            run += ["--report_to", "prometheus", "--metrics_port", free_port()]
        self.inside(*run, "--max_steps", "1", "--device", "cpu", "--dtype", "float32", "--load_in_4bit", "false")
        self.assertTrue((self.root / "tmp" / "out" / "adapter_model.safetensors").exists())
        # libcurl, from a hub on this machine.
        with Hub({"some-org/tiny": Repository({p.name: p.read_bytes() for p in LEGAL_BASE.iterdir()})}) as hub:
            self.inside("inspect", "some-org/tiny", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
        for name in ("LICENSE", "NOTICE"):
            self.assertTrue((self.package / "licenses" / name).exists())
        self.assertGreater(len(list((self.package / "licenses").iterdir())), 10)
        # Made on Debian 12 it runs on Ubuntu 22.04, whose C library is older, by that one's libstdc++.
        if os.confstr("CS_GNU_LIBC_VERSION") == "glibc 2.36":
            files = [f for f in (self.package / "lib").iterdir() if f.is_file()]
            symbols = subprocess.run(["objdump", "-T", *files], capture_output=True, text=True).stdout
            asked = {tuple(map(int, v)) for v in re.findall(r"\(GLIBC_(\d+)\.(\d+)", symbols)}
            self.assertLessEqual(max(asked), (2, 35))
            self.assertNotIn("GLIBCXX_3.4.31", symbols)
        systems = self.root / "usr" / "lib" / "x86_64-linux-gnu"
        systems.parent.mkdir(parents=True)
        (self.package / "lib" / "gcc").rename(systems)
        self.inside("--version")
        # Nothing of the machine that made it.
        for library in (self.package / "lib").glob("libunsloth_*.so"):
            paths = subprocess.run(
                ["readelf", "-d", library], capture_output=True, text=True, env=environment(LC_ALL="C")
            ).stdout
            self.assertNotIn(str(SOURCE), paths)


if __name__ == "__main__":
    main()
