"""What a new user tries first, and what is said then: help where nothing works yet, warnings where something may be wrong."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    PROGRAM,
    RUNTIME,
    SOURCE,
    TEXT_LLAMA,
    USAGE,
    environment,
    main,
    model,
    read_rows,
    write_rows,
)


def chat_model(test):
    """The example's tokenizer with a chat template, and random weights."""
    folder = test.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
    config = folder / "tokenizer_config.json"
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant] {% endif %}"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    return folder


class Quickstart(EndToEnd):
    """A clone in which nothing was built: of the build there is only its result."""

    def test_a_fresh_clone_trains_the_example(self):
        scripts = self.folder / "scripts"
        scripts.mkdir()
        for name in ("quickstart.sh", "lib.sh"):
            shutil.copy(SOURCE / "scripts" / name, scripts)
        (self.folder / "examples").symlink_to(SOURCE / "examples")
        build = scripts / "build.sh"
        build.write_text(f'#!/bin/sh\nmkdir -p build/"$1"\nln -s "{PROGRAM}" build/"$1"/unsloth-train\n')
        build.chmod(0o755)
        steps = ["--training.max_steps", "4", "--training.eval_steps", "2"]
        run = subprocess.run(
            ["bash", scripts / "quickstart.sh", *steps], capture_output=True, text=True, env=environment()
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        for words in ("What the run did", "answer after", "out/legal/adapter_model.safetensors"):
            self.assertIn(words, run.stdout)
        self.assertTrue((self.folder / "out/legal/adapter_model.safetensors").is_file())


class FirstSteps(EndToEnd):
    """Nothing works yet."""

    def text_rows(self, name="rows.jsonl"):
        return write_rows(self.folder / name, [{"text": "The term of this agreement is one year."}] * 4)

    def test_a_configuration_from_standard_input(self):
        result = self.succeed("config", "--config", "/dev/stdin", stdin='{"lora": {"r": 4}}')
        self.assertEqual(json.loads(result.out)["lora"]["r"], 4)
        self.fail_with(USAGE, ["/dev/stdin:1:1", "no valid JSON"], "config", "--config", "/dev/stdin")
        written = self.folder / "run.yaml"
        written.write_text("model:\n  path: m\n")
        result = self.succeed("config", "--config", written)
        self.assertEqual(json.loads(result.out)["model"]["path"], "m")
        self.assertEqual(json.loads(self.succeed("config", written).out)["model"]["path"], "m")
        written.write_text("model:\n\tpath: m\n")
        self.fail_with(USAGE, ["run.yaml:2:", "no valid YAML"], "--config", written)

    def test_configurations_of_other_programs(self):
        theirs = self.folder / "axolotl.yml"
        theirs.write_text(
            f"base_model: {model(TEXT_LLAMA, tokenizer=LEGAL_BASE)}\nadapter: lora\nlora_r: 4\nlora_alpha: 8\n"
            f"lora_target_linear: true\nsequence_len: 32\nlearning_rate: 0.001\nmax_steps: 2\n"
            f"output_dir: {self.folder / 'out'}\ndatasets:\n  - path: {self.text_rows()}\n    type: completion\n"
        )
        run_file = self.folder / "run.json"
        told = self.succeed("import-config", theirs, "--out", run_file, "--strict").err
        self.assertIn("as axolotl 0.19.0: ", told)
        self.assertIn(", 0 not", told)
        self.succeed("--config", run_file, "--device", "cpu", "--dtype", "float32")
        self.assertEqual(len(self.steps(self.folder / "out")), 2)
        written = self.succeed("import-config", theirs).out
        self.assertEqual(json.loads(written), json.loads(run_file.read_text()))
        run_file.write_text("mine")
        flags = ("import-config", theirs, "--out", run_file)
        self.fail_with("output.exists", [f"{run_file} exists", "--force"], *flags)
        self.assertEqual(run_file.read_text(), "mine")
        self.succeed(*flags, "--force")
        self.assertEqual(run_file.read_text(), written)
        theirs.write_text(theirs.read_text() + "early_stopping_patience: 3\n")
        self.succeed("import-config", theirs)
        strict = self.folder / "strict.json"
        self.fail_with(
            USAGE,
            ["not carried over: early_stopping_patience: 3: it follows evaluations during the run, and there are none"],
            "import-config",
            theirs,
            "--strict",
            "--out",
            strict,
        )
        self.assertFalse(strict.exists())

    def test_a_flag_of_help_that_is_misspelt(self):
        self.fail_with(USAGE, ["unknown option --helpp", "Did you mean --help?"], "train", "--helpp")

    def test_binary_files_are_not_shown_raw(self):
        path = self.folder / "binary.json"
        path.write_bytes(b"\x7fELF\x1b[31m\xff\xfe")
        err = self.fail_with(USAGE, ["binary.json:1:1", "\\u007f"], path).err
        self.assertEqual([c for c in err if (c < " " and c != "\n") or c in "\x7f\ufffd"], [], err)
        path.write_bytes(b'{"model": \xff}')
        err = self.fail_with(USAGE, ["binary.json:1:11", "\\xff"], path).err
        self.assertNotIn("\ufffd", err)

    def test_rows_that_are_not_on_this_machine(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.fail_with(
            INPUT,
            ["tatsu-lab/alpaca: no such folder", "HF_HUB_OFFLINE", "hf download --repo-type dataset tatsu-lab/alpaca"],
            *self.train_arguments(base, "tatsu-lab/alpaca"),
        )
        self.fail_with(
            INPUT, ["https://x.y/a.jsonl", "not from a URL"], *self.train_arguments(base, "https://x.y/a.jsonl")
        )

    def test_arrow_files(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        saved = self.folder / "saved"
        saved.mkdir()
        (saved / "data-00000-of-00001.arrow").write_bytes(b"\xff\xff\xff\xff\x10\x00\x00\x00")
        (saved / "state.json").write_text("{}")
        parts = ["Arrow", "not copied as a whole"]
        self.fail_with(INPUT, parts, *self.train_arguments(base, saved))
        self.fail_with(INPUT, parts, *self.train_arguments(base, saved / "data-00000-of-00001.arrow"))

    def test_git_lfs_pointers(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
        rows = self.text_rows()
        for name in ("model.safetensors", "tokenizer.json"):
            folder = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE), name=name.split(".")[0])
            (folder / name).write_text(pointer)
            self.fail_with(INPUT, [name, "Git LFS pointer", "git lfs pull"], *self.train_arguments(folder, rows))
        rows.write_text(pointer)
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.fail_with(INPUT, ["rows.jsonl", "Git LFS pointer"], *self.train_arguments(base, rows))

    def test_an_adapter_is_no_model(self):
        rows = self.rows(4)
        adapter = self.train(model(LLAMA), rows, "--max_steps", "1", out="adapter")
        self.fail_with(
            INPUT,
            ["is a PEFT adapter", f"--model.path {model(LLAMA)} --model.adapter_name_or_path {adapter}"],
            *self.train_arguments(adapter, rows),
        )

    def test_the_advice_after_a_run_without_checkpoints_leads_on(self):
        rows = self.rows(4)
        out = self.train(model(LLAMA), rows, "--max_steps", "1", "--save_steps", "0")
        for wish in ([], ["--resume_from_checkpoint", "auto"]):
            err = self.fail_with(
                USAGE,
                ["holds a run already", "no checkpoint", f"model.adapter_name_or_path {out}"],
                *self.train_arguments(model(LLAMA), rows, "--save_steps", "0", *wish),
            ).err
            self.assertNotIn("resume_from_checkpoint auto", err)
        self.train(
            model(LLAMA), rows, "--adapter_name_or_path", out, "--max_steps", "1", "--save_steps", "0", out="more"
        )

    def test_a_shape_that_is_not_known(self):
        err = self.fail_with(
            USAGE, ["--shape foo", "--model_config"], "init", "--shape", "foo", "--out", self.folder / "m"
        ).err
        self.assertNotIn("config_file", err)

    def test_a_machine_that_others_use(self):
        """Threads that spin while they wait take the CPUs from the threads that they wait for."""
        library = self.folder / "load.so"
        code = '#include <stdlib.h>\nint getloadavg(double* l, int n) { *l = atof(getenv("LOAD")); return n; }\n'
        made = subprocess.run(["c++", "-x", "c", "-shared", "-fPIC", "-o", library, "-"], input=code.encode())
        self.assertEqual(made.returncode, 0)
        arguments = self.train_arguments(model(LLAMA), self.rows(4), "--max_steps", "0")
        for load, more, counts in (
            (500, {}, ["1000"]),
            (0, {}, ["1000", "10000"]),  # the machine may be in use all the same
            (500, {"GOMP_SPINCOUNT": "77"}, ["77"]),
            (500, {"OMP_WAIT_POLICY": "passive"}, ["0"]),
        ):
            env = environment(LD_PRELOAD=library, LOAD=load, OMP_DISPLAY_ENV="VERBOSE", **more)
            told = self.succeed("train", *arguments, env=env).err
            self.assertIn(re.search(r"GOMP_SPINCOUNT = '(\d+)'", told)[1], counts, (load, more))

    def test_generate_to_a_full_device(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("no /dev/full")
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        words = f"generate --model.path {base} --device cpu {' '.join(FP32)} --max_new_tokens 1 --prompt x"
        done = os.system(f"{os.environ['UNSLOTH_TRAIN']} {words} > /dev/full 2> {self.folder / 'err'}")
        self.assertEqual(os.waitstatus_to_exitcode(done), RUNTIME)
        self.assertIn("cannot write to standard output", (self.folder / "err").read_text())


class Warnings(EndToEnd):
    """The run goes on; what may be wrong with it is said."""

    def warnings_of(self, *arguments):
        return self.succeed("train", *self.train_arguments(*arguments, "--max_steps", "2")).err

    def test_a_learning_rate_far_from_the_usual(self):
        told = "learning_rate 0.01 is far from what is usual for a LoRA"
        rows = self.rows(4)
        self.assertIn(told, self.warnings_of(model(LLAMA), rows))
        more = ["--overwrite_output_dir", "true", "--learning_rate", "2e-4"]
        self.assertNotIn("far from what is usual", self.warnings_of(model(LLAMA), rows, *more))

    def test_evaluation_on_the_training_rows(self):
        rows = self.rows(6)
        copy = write_rows(self.folder / "copy.jsonl", read_rows(rows))
        told = "holds the training rows"
        self.assertIn(f"{copy} {told}", self.warnings_of(model(LLAMA), rows, "--eval_file", copy))
        other = self.rows(6, name="other.jsonl", seed=2)
        more = ["--overwrite_output_dir", "true", "--eval_file", other]
        self.assertNotIn(told, self.warnings_of(model(LLAMA), rows, *more))

    def test_alpaca_rows_for_a_chat_model(self):
        folder = chat_model(self)
        rows = write_rows(self.folder / "alpaca.jsonl", [{"instruction": "Name it.", "output": "A lease."}] * 4)
        told = "the model has a chat template"
        self.assertIn(told, self.warnings_of(folder, rows))
        for chosen in ("default", "alpaca"):
            more = ["--overwrite_output_dir", "true", "--template", chosen]
            self.assertNotIn(told, self.warnings_of(folder, rows, *more))

    def test_a_template_nearly_named(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.fail_with(
            USAGE,
            ["there is no chat template 'lama-3'", "Did you mean llama-3?"],
            "generate",
            *["--model.path", base, "--prompt", "x", "--template", "lama-3", "--device", "cpu"],
        )


class Generate(EndToEnd):
    def test_a_prompt_is_a_users_message(self):
        folder = chat_model(self)

        def prompt_ids(*arguments):
            options = ["--device", "cpu", *FP32, "--max_new_tokens", "1", "--json"]
            return json.loads(self.succeed("generate", "--model.path", folder, *options, *arguments).out)["prompt_ids"]

        chat = prompt_ids("--prompt", "What is a lease?")
        self.assertEqual(chat, prompt_ids("--prompt", "[user] What is a lease?[assistant] ", "--raw"))
        self.assertNotEqual(chat, prompt_ids("--prompt", "What is a lease?", "--raw"))
        messages = [{"messages": [{"role": "user", "content": "What is a lease?"}]}]
        self.assertEqual(chat, prompt_ids("--file", write_rows(self.folder / "prompts.jsonl", messages)))


class Readme(EndToEnd):
    """'A real run', as it is written, but for the model's size."""

    def setUp(self):
        super().setUp()
        readme = (SOURCE / "README.md").read_text()
        run_json = re.search(r"`run.json`:\s+```json\n(.*?)```", readme, re.DOTALL).group(1)
        (self.folder / "run.json").write_text(run_json)
        self.commands = re.findall(r"^((?:unsloth-train|hf) (?:.*\\\n)*.*)", readme, re.MULTILINE)
        self.model_path = json.loads(run_json)["model"]["path"]

    def test_its_commands_work_where_they_are_typed(self):
        (self.folder / "examples").symlink_to(SOURCE / "examples")
        place = self.folder / self.model_path
        place.parent.mkdir(parents=True)
        place.symlink_to(model(TEXT_LLAMA | {"max_position_embeddings": 4096}, quantize="nf4", tokenizer=LEGAL_BASE))
        tiny = ["--device", "cpu", "--dtype", "float32"]
        ours = [shlex.split(command.replace("\\\n", ""), comments=True)[1:] for command in self.commands]
        ours = [words for words in ours if words and words[0] in ("run.json", "data", "generate")]
        self.assertEqual([words[0] for words in ours], ["data", "run.json", "run.json", "generate"])
        for words, more in zip(ours, ([], tiny, [*tiny, "--max_steps", "2"], [*tiny, "--max_new_tokens", "2"])):
            self.succeed(*words, *more, cwd=self.folder)
        self.assertTrue((self.folder / "out" / "run1" / "adapter_model.safetensors").exists())

    def test_it_says_where_the_model_comes_from(self):
        self.assertRegex(self.model_path, r"^[\w.-]+/[\w.-]+$")  # an id on the hub
        self.assertRegex((SOURCE / "README.md").read_text(), r"is\s+downloaded\s+on\s+first\s+use")

    def test_commands_assume_the_path_that_is_set(self):
        for page in ("README.md", "docs/get-started/install.md", "docs/get-started/your-data.md"):
            text = (SOURCE / page).read_text()
            self.assertIn('export PATH="$PWD/build/release:$PATH"', text, page)
            self.assertNotIn("build/release/unsloth-train", text, page)

    def test_licences(self):
        self.assertIn("Apache License\n                           Version 2.0", (SOURCE / "LICENSE").read_text())
        notice = (SOURCE / "NOTICE").read_text()
        cmake = (SOURCE / "CMakeLists.txt").read_text()
        names = {
            "nlohmann_json": "nlohmann/json",
            "spdlog": "spdlog",
            "PCRE2": "PCRE2",
            "ZSTD": "Zstandard",
            "ZLIB": "zlib",
            "ICU": "ICU",
            "yaml-cpp": "yaml-cpp",
            "CRYPTO": "OpenSSL",
            "HTTP": "nghttp2",
        }
        found = re.findall(r"(?:find_package|pkg_check_modules)\(([\w-]+)", cmake)
        for package in set(found) - {"PkgConfig", "Threads", "GTest"}:
            self.assertIn(names[package], notice)


if __name__ == "__main__":
    main()
