"""The commands of the pages in docs/, run as they are written: only the models are smaller, and runs shorter.

Each page has a folder of its own, with the files that its text tells to save and two finished runs.
"""

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
    "init --model_config examples": "trains the example's base for minutes",
    "dmesg": "of the system",
    "replay": "anomaly_test",
    "unsloth-train push": "uploads; hub_upload_test",
    "kubectl": "wants a cluster",
    "sbatch": "wants a cluster",
    "unsloth-train serve": "waits for clients; serve_test",
    "unsloth-train sweep": "starts a dozen runs; sweep_test",
    "--image receipts": "wants a model that sees images; vision_test",
}
# Pages without commands that are run: their subject is tested elsewhere, or another page has the commands.
WITHOUT_COMMANDS = {
    "docs/how-to/bad-steps.md",
    "docs/how-to/hugging-face.md",
    "docs/how-to/serve-outputs.md",
    "docs/how-to/serve.md",
    "docs/how-to/sweep.md",
    "docs/how-to/migrate/fsdp-and-deepspeed.md",
    "docs/how-to/migrate/reinforcement-learning.md",
}
PAGES = [
    "docs/get-started/quickstart.md",
    *sorted(page.relative_to(SOURCE).as_posix() for page in (SOURCE / "docs" / "how-to").rglob("*.md")),
    *("docs/concepts/memory-plan.md", "docs/concepts/templates-and-masks.md"),
]
# Of 8 experts, in place of 128.
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
CHAT_TEMPLATE = """{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}{% endfor -%}
{% if add_generation_prompt %}[assistant] {% endif %}"""
# The program as a page's reader has it in the PATH, but that training runs take two steps on the CPU.
SHIM = """#!/bin/bash
case "$1" in
    *.json | --config | train) set -- "$@" --device cpu --dtype float32 $([[ " $* " == *" --max_steps "* ]] || echo --max_steps 2) $(grep -qs load_best "$1" || echo --eval_steps 0) ;;
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


def run_config(out):
    return {
        "model": {"path": "unsloth/Meta-Llama-3.1-8B-bnb-4bit", "max_seq_length": 384},
        "data": {"train_file": "rows.jsonl", "template": "alpaca", "val_size": 8},
        "training": {"output_dir": out, "per_device_train_batch_size": 2},
    }


def saved_files(page):
    """(name, text) of the files that a page tells to save."""
    return re.findall(r"`([\w.-]+\.(?:jsonl?|yaml))`[^`]*?:\s+```\w+\n(.*?)```", (SOURCE / page).read_text(), re.DOTALL)


class Pages(EndToEnd):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="unsloth-docs-")
        cls.addClassCleanup(holder.cleanup)
        cls.shared = pathlib.Path(holder.name)
        (cls.shared / "bin").mkdir()
        shim = cls.shared / "bin" / "unsloth-train"
        shim.write_text(SHIM)
        shim.chmod(0o755)
        cls.prepare_place()

    @classmethod
    def prepare_place(cls):
        """What pages assume: the repository, models of the hub, two finished runs."""
        place = cls.shared / "place"
        place.mkdir()
        for name in ("configs", "docs"):
            (place / name).symlink_to(SOURCE / name)
        # The example has fewer rows here.
        legal = place / "examples" / "legal"
        legal.mkdir(parents=True)
        for file in (SOURCE / "examples" / "legal").iterdir():
            if file.name in ("train.jsonl", "heldout.jsonl"):
                rows = file.read_text().splitlines(keepends=True)
                (legal / file.name).write_text("".join(rows[: 64 if file.name == "train.jsonl" else 32]))
            elif file.name != "out":
                (legal / file.name).symlink_to(file)
        (place / "examples" / "shapes").symlink_to(SOURCE / "examples" / "shapes")
        # As the example's model, but with two layers and Llama 3.1's positions.
        config = json.loads((LEGAL_BASE / "config.json").read_text()) | {"num_hidden_layers": 2}
        config["max_position_embeddings"] = 131072
        llama = model(config, tokenizer=LEGAL_BASE)
        chat = shutil.copytree(llama, cls.shared / "chat")
        (chat / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        models = {
            "unsloth/Meta-Llama-3.1-8B-bnb-4bit": llama,
            "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": chat,
            "unsloth/Meta-Llama-3.1-70B-bnb-4bit": llama,
            "unsloth/Llama-3.2-1B": llama,
            "Qwen/Qwen3-30B-A3B": model(QWEN3_MOE, tokenizer=LEGAL_BASE),
            "models/llama": GOLDEN / "tokenizer" / "llama3_small",
            "models/llama-3.1-8b": LEGAL_BASE,
        }
        for name, folder in models.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).symlink_to(folder)
        (place / "prompts.jsonl").write_text('{"text": "What kind of clause is this?"}\n')
        shutil.copy(legal / "train.jsonl", place / "rows.jsonl")
        for out in ("out/run1", "out/run2"):
            (place / "run.json").write_text(json.dumps(run_config(out)))
            cls.execute(place, "unsloth-train run.json")
        cls.execute(place, "unsloth-train merge --adapter out/run1 --out out/merged")
        cls.execute(
            place,
            "unsloth-train init --model_config examples/shapes/base/config.json --tokenizer examples/shapes/base"
            " --dtype float32 --out Qwen/Qwen2.5-VL-3B-Instruct",
        )
        (place / "run.json").write_text(json.dumps(run_config("out/run3")))

    @classmethod
    def execute(cls, place, command):
        env = environment(
            PATH=f"{cls.shared / 'bin'}:{os.environ['PATH']}", UNSLOTH_TRAIN=PROGRAM, XDG_CACHE_HOME=cls.shared
        )
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=place, env=env, capture_output=True, timeout=TIMEOUT_S
        )
        result = Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        if result.code != OK or any(word in result.err for word in FORBIDDEN):
            raise AssertionError(f"{command}\n{result}")

    def run_page(self, page):
        """The place after the page's commands."""
        place = self.folder / page.replace("/", "-")
        shutil.copytree(self.shared / "place", place, symlinks=True)
        for name, text in saved_files(page):
            (place / name).write_text(text)
        if page == "docs/how-to/migrate/README.md":
            ((_, text),) = saved_files("docs/how-to/migrate/axolotl.md")
            (place / "theirs.yaml").write_text(text)
            (place / "run.json").unlink()  # import-config replaces no file
        if "--out out/merged" in (SOURCE / page).read_text():
            shutil.rmtree(place / "out" / "merged")
        ran = 0
        for commands in blocks(page):
            if not any(word in commands for word in ELSEWHERE):
                self.execute(place, commands)
                ran += 1
        self.assertEqual(ran == 0, page in WITHOUT_COMMANDS, f"{page}: where are its commands?")
        return place

    def test_pages(self):
        for page in PAGES:
            with self.subTest(page=page):
                self.run_page(page)

    def test_the_first_day(self):
        place = self.run_page("docs/get-started/your-data.md")
        for name in ("out/first/report.html", "out/first/adapter_model.safetensors", "out/first.gguf"):
            self.assertTrue((place / name).exists(), name)

    def assert_up_to_date(self, script):
        """The pages that scripts/SCRIPT writes."""
        done = subprocess.run(
            [sys.executable, SOURCE / "scripts" / script, PROGRAM, "--check"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_table_of_cards_is_what_plan_says(self):
        self.assert_up_to_date("configurations_table.py")

    def test_the_memory_plan_is_that_of_the_example(self):
        text = (SOURCE / "docs" / "concepts" / "memory-plan.md").read_text()
        (block,) = re.findall(r"^```\n(  resident\n.*?)^```", text, re.MULTILINE | re.DOTALL)
        config = SOURCE / "examples" / "legal" / "quickstart.json"
        out = ("--output_dir", self.folder / "out", "--device", "cpu", "--max_steps", "0")
        told = self.succeed(config, *out, cwd=SOURCE).err.splitlines()
        for line in block.splitlines():
            printed = re.sub(r"(MiB) {2,}\w.*", r"\1", line)
            self.assertTrue(line == "  ..." or printed in told, f"{printed!r} is not in\n" + "\n".join(told))

    def test_generated_pages_are_what_the_program_prints(self):
        self.assert_up_to_date("reference.py")

    def test_the_index_names_every_page(self):
        """Or the index of a folder of generated pages does."""
        docs = SOURCE / "docs"
        for index in [docs / "README.md", *(docs / "reference").glob("*/README.md")]:
            text = index.read_text()
            pages = {page.relative_to(index.parent).as_posix() for page in index.parent.rglob("*.md")} - {"README.md"}
            if index.parent == docs:
                pages = {
                    page for page in pages if page.count("/") < 2 or page.endswith("README.md") or "migrate" in page
                }
            self.assertEqual({page for page in pages if f"]({page})" not in text}, set(), index)

    def test_how_tos_have_one_configuration_each(self):
        """Those that are about a kind of run."""
        names = [name for page in PAGES for name, _ in saved_files(page) if name.endswith((".json", ".yaml"))]
        self.assertEqual(len(names), len(set(names)), names)
        self.assertGreaterEqual(len(names), 18)

    def test_environment_variables_are_documented(self):
        page = (SOURCE / "docs" / "reference" / "environment.md").read_text()
        sources = "".join(file.read_text() for file in (SOURCE / "src").rglob("*.cpp"))
        names = set(re.findall(r'"((?:UNSLOTH|HF|HUGGING_FACE|XDG|OMP|GOMP|PYTORCH)_[A-Z_]+)"', sources))
        self.assertGreater(len(names), 12)
        self.assertEqual({name for name in names if f"`{name}`" not in page}, set())

    def test_commands_are_of_options_that_exist(self):
        """In sentences, tables and blocks, those that are run elsewhere too: the program knows the command, and each of its options."""
        listed = self.succeed("--help-all").out.split("\nCommands\n")[1].split("\n\n")[0]
        names = re.findall(r"^  ([a-z-]+(?: augment| grpo)?) ", listed, re.MULTILINE)
        options = {name: self.succeed(*name.split(), "--help").out for name in names}
        seen = 0
        for page in sorted((SOURCE / "docs").rglob("*.md")) + sorted(SOURCE.glob("*.md")):
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
        page = (SOURCE / "SECURITY.md").read_text()
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


if __name__ == "__main__":
    main()
