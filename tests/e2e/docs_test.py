"""The commands of the pages in docs/, run as they are written: only the models are smaller, and runs shorter."""

import json
import pathlib
import re
import shlex

from support import *

# What is not run here, with the reason.
ELSEWHERE = {
    "scripts/": "builds; quickstart and test.sh are run by continuous integration itself",
    "docker": "wants a daemon",
    "--nnodes": "wants two machines; launch_test starts ranks as two machines do",
    "bench": "measures a GPU",
    "gsm8k": "measures a GPU",
    "--rope_scaling": "wants a model with more positions than the example's; plan_test",
    "export PATH": "the shell's path is set already",
    "launch": "launch_test",
    "make_rows.py": "examples/legal/check_rows.py and its own tests",
    "init --model_config examples": "trains the example's base for minutes",
    "dmesg": "of the system",
    "replay": "anomaly_test",
}
# The program as a page's reader has it in the PATH, but that training runs take two steps on the CPU.
SHIM = """#!/bin/bash
case "$1" in
    *.json | --config | train) set -- "$@" --device cpu --dtype float32 $([[ " $* " == *" --max_steps "* ]] || echo --max_steps 2) --eval_steps 0 ;;
    generate) set -- "$@" --device cpu --dtype float32 --max_new_tokens 2 ;;
    score | evaluate | prune) set -- "$@" --device cpu --dtype float32 ;;
esac
exec "$UNSLOTH_TRAIN" "$@"
"""


def blocks(page):
    """Of a page's shell blocks the commands, each as it would be typed."""
    text = (SOURCE / page).read_text()
    for lang, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if lang not in ("", "bash", "sh"):
            continue
        prompts = re.findall(r"^\$ (?!cat )((?:.*\\\n)*.*)", body, re.MULTILINE)  # with their output around them
        if prompts:
            yield "\n".join(prompts)
        elif "unsloth-train" in body:
            yield body


class Pages(EndToEnd):
    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        shim = self.folder / "bin" / "unsloth-train"
        shim.write_text(SHIM)
        shim.chmod(0o755)
        self.place = self.folder / "place"
        self.place.mkdir()
        for name in ("examples", "configs", "docs"):
            (self.place / name).symlink_to(SOURCE / name)
        models = {
            "unsloth/Meta-Llama-3.1-8B-bnb-4bit": LEGAL_BASE,
            "models/llama": GOLDEN / "tokenizer" / "llama3_small",
            "models/llama-3.1-8b": LEGAL_BASE,
        }
        for name, folder in models.items():
            (self.place / name).parent.mkdir(exist_ok=True)
            (self.place / name).symlink_to(folder)
        (self.place / "prompts.jsonl").write_text('{"text": "What kind of clause is this?"}\n')

    def execute(self, command):
        env = environment(
            PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}", UNSLOTH_TRAIN=PROGRAM, XDG_CACHE_HOME=self.folder
        )
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self.place, env=env, capture_output=True, timeout=TIMEOUT_S
        )
        result = Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        self.check_words(result)
        self.assertEqual(result.code, OK, f"{command}\n{result}")

    def run_json(self, out):
        config = {
            "model": {"path": "examples/legal/base", "max_seq_length": 384},
            "data": {"train_file": "rows.jsonl", "template": "alpaca", "val_size": 8},
            "training": {"output_dir": out, "per_device_train_batch_size": 2},
        }
        (self.place / "run.json").write_text(json.dumps(config))
        rows = (SOURCE / "examples" / "legal" / "train.jsonl").read_text().splitlines(keepends=True)
        (self.place / "rows.jsonl").write_text("".join(rows[:64]))

    def finished_runs(self):
        for out in ("out/run1", "out/run2"):
            self.run_json(out)
            self.execute("unsloth-train run.json")
        self.run_json("out/run3")

    def run_page(self, page, least):
        ran = 0
        for commands in blocks(page):
            if not any(word in commands for word in ELSEWHERE):
                self.execute(commands)
                ran += 1
        self.assertGreaterEqual(ran, least, f"{page}: where are its commands?")

    def test_the_first_day(self):
        text = (SOURCE / "docs" / "first-day.md").read_text()
        (config,) = re.findall(r"`first.json`:\s+```json\n(.*?)```", text, re.DOTALL)
        (self.place / "first.json").write_text(config)
        self.run_page("docs/first-day.md", 7)
        for name in ("out/first/report.html", "out/first/adapter_model.safetensors", "out/first.gguf"):
            self.assertTrue((self.place / name).exists(), name)

    def test_the_table_of_cards_is_what_plan_says(self):
        done = subprocess.run(
            [sys.executable, SOURCE / "scripts" / "configurations_table.py", PROGRAM, "--check"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_hyperparameters_and_symptoms(self):
        self.finished_runs()
        self.run_page("docs/hyperparameters.md", 1)
        self.run_page("docs/troubleshooting.md", 8)

    def test_the_guide(self):
        self.finished_runs()
        (self.place / "thesaurus.json").write_text(
            re.search(r"^\$ cat thesaurus.json\n(.*)", (SOURCE / "docs" / "guide.md").read_text(), re.MULTILINE).group(
                1
            )
        )
        # The guide merges further down than it exports.
        self.execute("unsloth-train merge --adapter out/run1 --base examples/legal/base --out out/merged")
        for name in ("out/run1", "unsloth/Meta-Llama-3.1-8B-bnb-4bit"):
            self.assertTrue((self.place / name).exists())
        self.run_page("docs/guide.md", 6)

    def test_the_guides_memory_plan_is_that_of_the_example(self):
        text = (SOURCE / "docs" / "guide.md").read_text()
        (block,) = re.findall(r"^```\n(  resident\n.*?)^```", text, re.MULTILINE | re.DOTALL)
        config = SOURCE / "examples" / "legal" / "quickstart.json"
        out = ("--output_dir", self.folder / "out", "--device", "cpu", "--max_steps", "0")
        told = self.succeed(config, *out, cwd=SOURCE).err.splitlines()
        for line in block.splitlines():
            printed = re.sub(r"(MiB) {2,}\w.*", r"\1", line)
            self.assertTrue(line == "  ..." or printed in told, f"{printed!r} is not in\n" + "\n".join(told))

    def test_the_index_names_every_page(self):
        index = (SOURCE / "docs" / "README.md").read_text()
        pages = {page.name for page in (SOURCE / "docs").glob("*.md")} - {"README.md"}
        self.assertEqual({page for page in pages if f"]({page})" not in index}, set())

    def test_pruning(self):
        self.run_page("docs/pruning.md", 1)
        self.assertTrue((self.place / "out" / "healed" / "model.safetensors").exists())

    def test_rewards(self):
        self.run_page("docs/rewards.md", 1)

    def test_moving(self):
        self.run_json("out/run1")
        (self.place / "theirs.yaml").write_text(
            "base_model: examples/legal/base\nsequence_len: 384\nadapter: lora\nlora_r: 8\nlora_alpha: 16\n"
            "datasets:\n  - path: examples/legal/train.jsonl\n    type: alpaca\noutput_dir: out/moved\n"
        )
        self.run_page("docs/moving.md", 1)

    def test_commands_are_of_options_that_exist(self):
        """In sentences, tables and blocks, those that are run elsewhere too: the program knows the command, and each of its options."""
        listed = self.succeed("--help-all").out.split("\nCommands\n")[1].split("\n\n")[0]
        names = re.findall(r"^  ([a-z-]+(?: augment| grpo)?) ", listed, re.MULTILINE)
        options = {name: self.succeed(*name.split(), "--help").out for name in names}
        seen = 0
        for page in sorted((SOURCE / "docs").glob("*.md")) + [SOURCE / "README.md"]:
            codes = re.findall(r"`(unsloth-train [^`]*)`", page.read_text().replace("\n", " "))
            for block in blocks(page):
                codes += re.findall(r"^unsloth-train .*", block.replace("\\\n", " "), re.MULTILINE)
            for code in codes:
                words = shlex.split(code.split("<")[0].replace("…", ""), comments=True)[1:]
                first = words[0] if words and not words[0].startswith("-") and "." not in words[0] else "train"
                first = " ".join(words[:2]) if " ".join(words[:2]) in names else first
                self.assertIn(first, names, f"{page.name}: {code}")
                commands = {first, *set(words).intersection(names)} | ({"train"} if first == "launch" else set())
                text = "".join(options[name] for name in commands)
                for flag in re.findall(r" --([\w.]+)", " " + " ".join(words)):
                    if flag not in ("help", "help-all", "version", "config"):
                        self.assertTrue(flag.rpartition(".")[2] in text, f"{page.name}: {code}: {flag}")
                seen += 1
        self.assertGreater(seen, 60)
        readme = (SOURCE / "README.md").read_text()
        self.assertEqual([name for name in names if name not in ("train", "help") and f"`{name}" not in readme], [])

    def test_each_promise_of_security_md_has_a_test(self):
        """promises.json names them by how a sentence begins, as FILE:WORDS-IN-IT; none: the sentence promises nothing."""
        promises = json.loads((SOURCE / "tests" / "e2e" / "promises.json").read_text())
        page = (SOURCE / "docs" / "security.md").read_text()
        for title, tests in promises.items():
            (body,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
            blocks = [re.sub(r"\s+", " ", b).strip().removeprefix("- ") for b in re.split(r"\n\n|\n(?=- )", body)]
            sentences = [s for b in blocks for s in re.split(r"(?<=\.)\s+(?=[A-Z`*])", b) if s]
            for sentence in sentences:
                with self.subTest(sentence=sentence):
                    self.assertEqual(sum(map(sentence.startswith, tests)), 1)
            for begin, places in tests.items():
                with self.subTest(begin=begin):
                    self.assertEqual(sum(s.startswith(begin) for s in sentences), 1)
                    for place in places:
                        file, _, words = place.partition(":")
                        self.assertIn(words, (SOURCE / "tests" / file).read_text())

    def test_links_lead_somewhere(self):
        def anchor(heading):
            return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

        for page in sorted((SOURCE / "docs").glob("*.md")) + [SOURCE / "README.md"]:
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if "://" in target:
                    continue
                path, _, name = target.partition("#")
                goal = (page.parent / path).resolve() if path else page
                self.assertTrue(goal.exists(), f"{page.name}: {target}")
                if name:
                    text = goal.read_text()
                    anchors = [anchor(heading) for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
                    anchors += re.findall(r'<a id="([^"]+)"', text)
                    self.assertIn(name, anchors, f"{page.name}: {target}")


if __name__ == "__main__":
    main()
