"""What a hurried user types: the message says what was meant, or where to look, and nothing is taken without a word."""

import json
import re

from support import EndToEnd, FP32, INPUT, LEGAL_BASE, LLAMA, RUNTIME, USAGE, main, model, write_rows

ROWS = [{"instruction": "What is it?", "output": "A clause."}, {"instruction": "What else?", "output": "A contract."}]


class Paths(EndToEnd):
    def test_a_slip_in_a_path(self):
        rows = write_rows(self.folder / "train.jsonl", ROWS)
        meant = f"Did you mean {rows}?"
        self.fail_with(INPUT, meant, *self.train_arguments(LEGAL_BASE, self.folder / "trian.jsonl"))
        self.fail_with(INPUT, "Did you mean " + str(LEGAL_BASE), *self.train_arguments(str(LEGAL_BASE)[:-1], rows))
        self.fail_with(
            INPUT,
            f"Did you mean {LEGAL_BASE / 'tokenizer.json'}?",
            *("tokenize", "--tokenizer", LEGAL_BASE.parent / "bsae" / "tokenizer.json"),
        )
        config = self.folder / "first.json"
        config.write_text("{}")
        self.fail_with(USAGE, "Did you mean first.json?", "frist.json", cwd=self.folder)
        self.fail_with(USAGE, f"current folder, {self.folder}", "nothing_like_it.yaml", cwd=self.folder)

    def test_a_slip_that_looks_like_a_repository(self):
        (self.folder / "out").mkdir()
        (self.folder / "out" / "first").mkdir()
        self.fail_with(
            INPUT,
            ["Did you mean out/first?", "hf download out/frist"],
            *("generate", "--model.path", LEGAL_BASE, "--adapter_name_or_path", "out/frist", "--prompt", "p"),
            cwd=self.folder,
        )

    def test_a_pattern_that_nothing_matches(self):
        write_rows(self.folder / "a.jsonl", ROWS)
        arguments = self.train_arguments(LEGAL_BASE, "*.parquet")
        self.fail_with(INPUT, ["no file matches", f"current folder, {self.folder}"], *arguments, cwd=self.folder)

    def test_where_nothing_can_be_written(self):
        rows = write_rows(self.folder / "train.jsonl", ROWS)
        out = self.folder / "no" / "where" / "run.json"
        theirs = self.folder / "theirs.yaml"
        theirs.write_text("base_model: models/llama\nadapter: qlora\n")
        result = self.fail_with(
            RUNTIME,
            [f"cannot create {out}: ", f"There is no folder {self.folder / 'no'}. Create it (mkdir -p {out.parent})"],
            *("import-config", theirs, "--out", out),
        )
        self.assertNotIn(".tmp-", result.err)
        (self.folder / "taken").write_text("")
        self.fail_with(
            RUNTIME,
            ["training.output_dir", "A file of that name is in the way"],
            *self.train_arguments(LEGAL_BASE, rows, out="taken"),
        )
        self.fail_with(
            USAGE,
            ["the run would write over", "which data.train_file names"],
            *self.train_arguments(LEGAL_BASE, rows, out="train.jsonl"),
        )


class Outputs(EndToEnd):
    """A file that is not empty is replaced with --force alone."""

    def refuse_then_force(self, option, file, *arguments):
        file.write_text("precious")
        says = [f"{file} exists", f"Give --force to replace it, or another name with {option}."]
        self.fail_with("output.exists", says, *arguments, option, file)
        self.assertEqual(file.read_text(), "precious")
        self.succeed(*arguments, option, file, "--force")
        self.assertNotEqual(file.read_bytes(), b"precious")
        file.write_text("")  # as mktemp makes it
        self.succeed(*arguments, option, file)
        self.assertNotEqual(file.read_bytes(), b"")

    def test_files_that_exist(self):
        rows = write_rows(self.folder / "rows.jsonl", ROWS)
        base = ["--model.path", LEGAL_BASE, "--template", "alpaca"]
        arguments = self.train_arguments(LEGAL_BASE, rows, "--max_steps", 1, "--template", "alpaca")
        self.succeed(*arguments)
        out = self.folder / "written"
        self.refuse_then_force("--out", out, "score", *base, "--train_file", rows)
        scored = ["evaluate", *base, "--eval_file", rows, "--metric", "exact_match", "--max_new_tokens", "2"]
        self.refuse_then_force("--answers", out, *scored)
        self.refuse_then_force("--out", out, "data", "augment", "--in", rows, "--swap_rate", "0.5")
        self.refuse_then_force("--out", out, "report", self.folder / "out")
        self.refuse_then_force("--svg", out, "report", self.folder / "out")
        self.refuse_then_force("--svg", out, "plan", *arguments)

    def test_the_page_in_the_runs_own_folder_is_made_again(self):
        rows = write_rows(self.folder / "rows.jsonl", ROWS)
        self.succeed(*self.train_arguments(LEGAL_BASE, rows, "--max_steps", 1, "--template", "alpaca"))
        for _ in range(2):
            self.succeed("report", self.folder / "out")

    def test_one_file_for_two_options(self):
        theirs = self.folder / "theirs.yaml"
        theirs.write_text("base_model: models/llama\nadapter: qlora\n")
        says = f"--out {theirs} is the file that FILE names"
        self.fail_with("output.same-file", says, "import-config", theirs, "--out", theirs, "--force")


class OtherFiles(EndToEnd):
    def test_a_model_where_an_adapter_belongs(self):
        says = ["is a model, not a PEFT adapter", "training.output_dir"]
        self.fail_with(INPUT, says, "merge", "--adapter", LEGAL_BASE, "--out", self.folder / "merged")
        self.fail_with(
            INPUT, says, "generate", "--model.path", LEGAL_BASE, "--adapter_name_or_path", LEGAL_BASE, "--prompt", "p"
        )
        self.fail_with(
            INPUT,
            "no adapter_config.json: it is empty",
            "merge",
            "--adapter",
            self.folder,
            "--out",
            self.folder / "merged",
        )

    def test_a_gguf_file_as_base(self):
        gguf = self.folder / "model.gguf"
        gguf.write_bytes(b"GGUF")
        says = ["is a GGUF file", "Name the folder that it was made of"]
        self.fail_with(INPUT, says, "generate", "--model.path", gguf, "--prompt", "p")

    def test_spreadsheets_and_pdfs_as_rows(self):
        for name, begin, says in (
            ("t.xlsx", b"PK\x03\x04", "save the sheet as CSV"),
            ("t.pdf", b"%PDF-1.7", "is a PDF"),
        ):
            (self.folder / name).write_bytes(begin + b"\x00" * 64)
            self.fail_with(INPUT, says, *self.train_arguments(LEGAL_BASE, self.folder / name))

    def test_texts_where_rows_of_json_belong(self):
        self.fail_with(
            INPUT,
            ["line 1: expected a JSON object", '{"text": "…"}'],
            *("tokenize", "--tokenizer", LEGAL_BASE),
            stdin="hello\n",
        )
        self.fail_with(
            INPUT, "no tokenizer.json or tokenizer.model: it is empty", "tokenize", "--tokenizer", self.folder
        )
        says = "model.safetensors: is no tokenizer.json"
        self.fail_with(INPUT, says, "tokenize", "--tokenizer", LEGAL_BASE / "model.safetensors")
        (self.folder / "tokenizer.json").write_text("{}")
        says = ["no config.json: it holds tokenizer.json", "Download or copy"]
        self.fail_with(INPUT, says, "plan", "--model.path", self.folder, "--gpu", "H200")

    def test_a_runs_folder_where_an_anomaly_belongs(self):
        self.fail_with(INPUT, ["is a folder", "RUN/anomalies/step-N.json"], "replay", self.folder)

    def test_files_of_another_kind_than_the_command_takes(self):
        rows = write_rows(self.folder / "rows.jsonl", ROWS)
        self.fail_with("model.wrong-file-format", "`unsloth-train data` shows rows", "inspect", rows)
        utf16 = self.folder / "utf16.jsonl"
        utf16.write_bytes(rows.read_text().encode("utf-16-le"))
        self.fail_with("data.unsupported-file", "iconv -f UTF-16LE", *self.train_arguments(LEGAL_BASE, utf16))
        (self.folder / "none").mkdir()
        init = ("init", "--shape", "llama-15m", "--out", self.folder / "made", "--tokenizer")
        self.fail_with("tokenizer.not-found", "neither tokenizer.json nor", *init, self.folder / "none")
        self.fail_with("tokenizer.not-found", "no such tokenizer", *init, self.folder / "nowhere")
        checkpoint = self.folder / "run" / "checkpoint-2"
        checkpoint.mkdir(parents=True)
        for command in ("watch", "report"):
            self.fail_with("run.no-metrics", f"checkpoint of the run in {self.folder / 'run'}", command, checkpoint)
        root = ("serve", "--model.path", LEGAL_BASE, "--adapter_root", self.folder / "nowhere", "--port", 0)
        self.fail_with(USAGE, "there is no such folder", *root)

    def test_help_fits_100_columns(self):
        for arguments in (["--help-all"], ["serve", "--help"], ["bench", "--help"]):
            for line in self.succeed(*arguments).out.splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_prompts_from_standard_input(self):
        arguments = ("generate", "--model.path", LEGAL_BASE, *FP32, "--max_new_tokens", 2, "--json", "--file")
        prompts = self.folder / "prompts.txt"
        prompts.write_text("What kind of clause is this?")
        read = self.succeed(*arguments, "-", stdin=prompts.read_text())
        self.assertEqual(read.out, self.succeed(*arguments, prompts).out)

    def test_configurations_that_import_config_does_not_read(self):
        ours, zero = self.folder / "ours.json", self.folder / "ds.json"
        ours.write_text(json.dumps({"model": {"path": "models/llama"}}))
        zero.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
        self.fail_with(
            USAGE, ["a configuration of this program already", f"unsloth-train {ours}"], "import-config", ours
        )
        self.fail_with(USAGE, ["DeepSpeed", "docs/how-to/migrate/fsdp-and-deepspeed.md"], "import-config", zero)

    def test_a_peers_file_run_directly(self):
        axolotl, factory = self.folder / "axolotl.yml", self.folder / "sft.yaml"
        axolotl.write_text("base_model: m\nadapter: lora\nmicro_batch_size: 2\ndatasets:\n- {path: a, type: alpaca}\n")
        factory.write_text("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: a\n")
        for file, whose in ((axolotl, "axolotl"), (factory, "LLaMA-Factory")):
            for command in ([], ["data"], ["plan"], ["launch", "--nproc_per_node", "2"]):
                says = [f"seems to be a configuration of {whose}", f"unsloth-train import-config {file} --out run.json"]
                result = self.fail_with(USAGE, says, *command, file)
                self.assertLess(len(result.err.splitlines()), 4, result.err)

    def test_rows_without_the_verdict_of_kto(self):
        rows = write_rows(self.folder / "train.jsonl", ROWS)
        self.fail_with(
            INPUT,
            ["no verdict", "kto", '"label"'],
            *self.train_arguments(LEGAL_BASE, rows, "--objective", "kto", "--template", "alpaca"),
        )


class Options(EndToEnd):
    def test_lists_and_objects_as_other_programs_take_them(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(2))
        self.fail_with(USAGE, "--target_modules A,B,C", *arguments, "--target_modules", "q_proj", "v_proj")
        self.fail_with(USAGE, """--rope_scaling '{"key": "value"}'""", *arguments, "--rope_scaling", "yarn")

    def test_options_of_other_programs_and_commands(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(2))
        for theirs, says in (
            ("--sequence_len", "Did you mean --model.max_seq_length?"),
            ("--dataset_name", "Did you mean --data.train_file?"),
            ("--nproc_per_node", "launch (--nproc_per_node)"),
            ("--gpus", "launch (--nproc_per_node)"),
            ("--prompt", "generate (--prompt)"),
        ):
            self.fail_with(USAGE, says, *arguments, theirs, "2")

    def test_options_that_a_command_does_not_read(self):
        words = ["evaluate", "--model.path", model(LLAMA), "--eval_file", self.rows(2), "--lora.r", "4"]
        self.fail_with(USAGE, ["evaluate does not read lora.r", "unsloth-train help evaluate"], *words)
        listed = self.succeed("evaluate", "--help").out
        self.assertIn("--data.eval_file", listed)
        self.assertNotIn("--lora.r ", listed)
        self.assertLess(len(listed), 0.5 * len(self.succeed("train", "--help").out))

    def test_values_of_other_programs(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(2))
        result = self.fail_with(USAGE, "There is neither a critic nor a judge", *arguments, "--objective", "ppo")
        self.assertNotIn("orpo?", result.err)

    def test_patterns_that_match_nothing(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(2), "--max_steps", "0")
        says = "lora.rank_pattern: 'qproj' matches no module of this model"
        self.fail_with(USAGE, says, *arguments, "--rank_pattern", '{"qproj": 8}')
        says = "lora.alpha_pattern: 'o_proj' matches modules without an adapter"
        self.fail_with(USAGE, says, *arguments, "--alpha_pattern", '{"o_proj": 8}', "--target_modules", "q_proj")

    def test_a_variable_that_the_template_does_not_read(self):
        template = self.folder / "t.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<t>{% endif %}")
        talk = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}]
        words = ["data", "--model.path", LEGAL_BASE, "--train_file", write_rows(self.folder / "t.jsonl", talk)]
        words += ["--template", template, "--chat_template_kwargs"]
        slip = self.succeed(*words, '{"enable_thinkng": true}').err
        self.assertIn("does not read enable_thinkng; Did you mean enable_thinking?", slip)
        self.assertNotIn("does not read", self.succeed(*words, '{"enable_thinking": true}').err)

    def test_a_mistake_in_a_template_is_found_before_rows_are_read(self):
        template = self.folder / "t.jinja"
        template.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
        rows = self.rows(2)  # of tokens, which no template renders
        source = json.dumps([{"path": str(rows), "template": str(template)}])
        for words in (["--train_file", rows, "--template", template], ["--datasets", source]):
            for command in (["train", "--max_steps", "0", "--device", "cpu"], ["plan", "--gpu_memory", "24GiB"]):
                says = [f"chat template {template}, line 2, column 14: unexpected '}}'"]
                self.fail_with("template.failed", says, *command, "--model.path", LEGAL_BASE, *words)
        words = ["--model.path", LEGAL_BASE, "--template", "{{ messages[0 }}", "--gpu_memory", "24GiB"]
        self.fail_with("template.failed", ["of the configuration, line 1, column 15: "], "plan", *words)

    def test_numbers_that_no_run_can_have(self):
        base = self.train_arguments(model(LLAMA), self.rows(2))
        for option in ("--r", "--per_device_train_batch_size", "--gradient_accumulation_steps", "--warmup_steps"):
            self.fail_with(USAGE, [option.lstrip("-"), "<= 1000000"], *base, option, str(10**18))

    def test_options_that_would_do_nothing(self):
        base = ("generate", "--model.path", LEGAL_BASE, "--prompt", "p")
        self.fail_with(USAGE, ["--n only applies with --temperature", "0.7"], *base, "--n", "3")
        self.fail_with(USAGE, ["--top_p", "only applies with --temperature"], *base, "--top_p", "0.9")
        self.fail_with(USAGE, "--prompt, --file or --chat", "generate", "--model.path", LEGAL_BASE)
        idle = self.succeed(
            *self.train_arguments(model(LLAMA), self.rows(2), "--max_steps", "0"),
            *("--max_memory_gib", "0.001", "--zero_stage", "3"),
        )
        for option in ("training.max_memory_gib", "distributed.zero_stage 3"):
            self.assertIn(f"W {option} has no effect", idle.err)

    def test_a_warmup_longer_than_the_run(self):
        done = self.succeed(*self.train_arguments(model(LLAMA), self.rows(4), "--warmup_steps", "100"))
        self.assertIn("W training.warmup_steps is 100, and the run has 3 steps", done.err)

    def test_twenty_rows_with_the_defaults(self):
        given = ("--model.path", model(LLAMA), "--train_file", self.rows(20), "--device", "cpu", *FP32)
        for out, more in (("tried", ["--max_steps", "0"]), ("trained", [])):
            done = self.succeed(*given, "--output_dir", self.folder / out, *more)
            self.assertIn(
                "W training.warmup_steps is 5, and the run has 3 steps: the learning rate never reaches 0.0002, it is "
                "8e-05 at most; 5 to 10 % of the steps are usual: --warmup_steps 0",
                done.err,
            )
        rates = [step["learning_rate"] for step in self.steps(self.folder / "trained")]
        self.assertEqual([round(rate, 12) for rate in rates], [0, 4e-5, 8e-5])
        quiet = self.succeed(*given, "--output_dir", self.folder / "quiet", "--warmup_steps", "0")
        self.assertNotIn(" W ", quiet.err)

    def test_steps_and_rows_for_a_longer_run(self):
        held_out = self.rows(6, name="eval.jsonl", seed=2)
        told = self.succeed(
            *self.train_arguments(model(LLAMA), self.rows(20), "--eval_file", held_out, "--max_steps", "3"),
            *("--eval_steps", "50", "--early_stopping_patience", "2", "--save_steps", "100", "--logging_steps", "10"),
            *("--gradient_accumulation_steps", "16"),
        ).err
        for words in (
            "training.eval_steps is 50, and the run has 3 steps",
            "training.early_stopping_patience is 2, and 0 evaluations come before the run's end",
            "training.save_steps is 100, and the run has 3 steps",
            "training.logging_steps is 10, and the run has 3 steps",
            "make steps of 32 rows, and there are 20",
        ):
            self.assertRegex(told, f" W .*{re.escape(words)}")
        few = self.train_arguments(model(LLAMA), self.rows(20), "--num_train_epochs", "0.05", out="few")
        self.assertIn(
            "W training.num_train_epochs is 0.05: the run has 1 step, which sees 8 of 20 rows", self.succeed(*few).err
        )

    def test_memory_without_a_unit_and_a_shape_with_a_slip(self):
        self.fail_with(USAGE, "--gpu_memory 24GiB", "plan", "--model.path", "llama-3.1-8b", "--gpu_memory", "24")
        self.fail_with(INPUT, ["or llama-3.1-8b?", "qwen3-14b"], "plan", "--model.path", "llama-3-8b", "--gpu", "H100")

    def test_answers_that_are_empty(self):
        rows = write_rows(self.folder / "train.jsonl", [*ROWS, {"instruction": "And this?", "output": ""}])
        says = "1 of 3 rows have an answer that is empty"
        self.assertIn(
            says,
            self.succeed("data", "--model.path", LEGAL_BASE, "--train_file", rows, "--template", "alpaca").out,
        )
        done = self.succeed(*self.train_arguments(LEGAL_BASE, rows, "--template", "alpaca", "--max_steps", "0"))
        self.assertIn(says, done.err)


if __name__ == "__main__":
    main()
