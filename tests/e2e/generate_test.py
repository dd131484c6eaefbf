"""What hurried users do with generate and evaluate: each slip is told with what to do, and what was answered is kept."""

import json
import signal
import subprocess
import time
import unittest

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    PROGRAM,
    RUNTIME,
    SIGINT_SAVED,
    TEXT_LLAMA,
    TIMEOUT_S,
    USAGE,
    environment,
    main,
    model,
    read_rows,
    write_rows,
)


class Slips(EndToEnd):
    def generate(self, *arguments):
        return ("generate", "--model.path", model(TEXT_LLAMA, tokenizer=LEGAL_BASE), "--device", "cpu", *arguments)

    def test_options_that_make_no_sense(self):
        for told, words in (
            (["--n", ">= 1"], ["--n", "0"]),
            (["--stop", "an empty text"], ["--stop", ""]),
            (["--temperature", ">= 0"], ["--temperature", "-1"]),
            (["--seed", "expected an integer"], ["--seed", "text"]),
            (["--stream cannot be combined with --json"], ["--json", "--stream"]),
            (["--max_model_len is 10", "Raise it, or set a lower --max_new_tokens"], ["--max_context", "10"]),
            (["--max_model_len 9999", "allows 512", "--rope_scaling"], ["--max_context", "9999"]),
            (["allows 512", "lower --max_new_tokens"], ["--max_new_tokens", "600"]),
        ):
            with self.subTest(told):
                self.fail_with(USAGE, told, *self.generate("--prompt", "x", *words))

    def test_a_cache_without_room_says_how_much_there_must_be(self):
        bytes_by_type = []
        for dtype in ("auto", "fp8"):
            asked = self.generate("--prompt", "x", *FP32, "--max_new_tokens", "40", "--kv_cache_dtype", dtype)
            failed = self.fail_with(USAGE, ["holds 0 tokens", "at least"], *asked, "--kv_memory", "1KB")
            (least,) = [word for before, word in zip(failed.err.split(), failed.err.split()[1:]) if before == "give"]
            self.succeed(*asked, "--kv_memory", least)
            self.fail_with(USAGE, ["at least"], *asked, "--kv_memory", int(least) - 1)
            bytes_by_type.append(int(least))
        self.assertLess(3 * bytes_by_type[1], bytes_by_type[0], "of fp32 a quarter, and a byte a head")

    def test_files(self):
        for name, text in (("empty", ""), ("blank", "\n \n")):
            file = self.folder / f"{name}.jsonl"
            file.write_text(text)
            self.fail_with(INPUT, ["the file is empty", '{"text"'], *self.generate("--file", file))
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "a"}, {"text": "word " * 600}, {"text": "b"}])
        self.fail_with(USAGE, ["prompt 2 of", "allows 512"], *self.generate("--file", rows))

    def test_conversations_that_the_template_does_not_write(self):
        template = self.folder / "users.jinja"
        template.write_text("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
        talk = [{"role": "user", "content": "The price"}]
        asked = ("--template", template, *FP32, "--max_new_tokens", "2", "--file")
        for row, told in (
            ({"messages": [{"role": "critic", "content": "Be nicer."}] + talk}, "messages[0].content (role critic)"),
            ({"system": "Be brief.", "messages": talk}, "messages[0].content (role system)"),
        ):
            rows = write_rows(self.folder / "rows.jsonl", [{"messages": talk}, row])
            self.fail_with(INPUT, ["rows.jsonl:2", "writes nothing of", told], *self.generate(*asked, rows))
        self.succeed(*self.generate(*asked, write_rows(self.folder / "rows.jsonl", [{"messages": talk}])))

    def test_a_conversation_may_begin_on_the_command_line(self):
        chat = self.generate("--chat", *FP32, "--max_new_tokens", "4")
        self.assertEqual(self.succeed(*chat, "--prompt", "a", stdin="b\n").out, self.succeed(*chat, stdin="a\nb\n").out)
        self.assertEqual(self.succeed(*chat, stdin="").out, "")

    def test_an_adapter_of_another_base(self):
        adapter = self.train(model(LLAMA), self.rows(4), "--max_steps", "1", out="adapter")
        base = model(TEXT_LLAMA | {"hidden_size": 64}, tokenizer=LEGAL_BASE)
        told = "The adapter must have been trained on this base"
        words = ("--model.path", base, "--device", "cpu")
        self.fail_with(INPUT, told, "generate", *words, "--adapter_name_or_path", adapter, "--prompt", "x")
        file = write_rows(self.folder / "prompts.jsonl", [{"text": "x", "adapter": "a"}])
        self.fail_with(INPUT, told, "generate", *words, "--adapter", f"a={adapter}", "--file", file)

    def test_what_evaluate_finds_out_before_it_works(self):
        asked = ("evaluate", "--model.path", model(LLAMA), "--eval_file", self.rows(2), "--device", "cpu")
        self.fail_with(USAGE, "needs --answer_regex", *asked, "--metric", "regex")
        self.fail_with(USAGE, ["--answer_regex", "missing closing"], *asked, "--metric", "regex", "--answer_regex", "(")


class AfterTraining(EndToEnd):
    """What the run was trained with holds for its result, unless flags say otherwise."""

    CHATS = [{"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "A."}]} for n in "ab"]

    def base(self):
        return model(TEXT_LLAMA, tokenizer=LEGAL_BASE)

    def trained(self, rows, *extra, base=None, out="out"):
        rows = write_rows(self.folder / f"{out}.jsonl", rows * 4)
        return self.train(base or self.base(), rows, "--max_steps", "2", *extra, out=out)

    def generate(self, *arguments):
        """The answer as an object, and what was said."""
        words = ("--device", "cpu", "--max_new_tokens", "4", "--json", *arguments)
        done = self.succeed("generate", *words)
        return json.loads(done.out), done.err

    def test_precision_type_and_template(self):
        out = self.trained(self.CHATS, "--template", "zephyr")
        adapter = ("--model.adapter_name_or_path", out)
        explicit = (*adapter, *FP32, "--template", "zephyr")
        says = f"as {out / 'run_config.json'} says (flags win): model.load_in_4bit false, model.dtype float32, data.template zephyr"
        taken, told = self.generate(*adapter, "--prompt", "a?")
        expected, quiet = self.generate(*explicit, "--prompt", "a?")
        self.assertEqual(taken, expected)
        self.assertIn(says, told)
        self.assertNotIn("flags win", quiet)
        _, told = self.generate(*adapter, "--prompt", "a?", "--load_in_4bit", "true", "--dtype", "bfloat16")
        self.assertIn("(flags win): data.template zephyr\n", told)
        self.assertIn("14 linears in 4 bit (nf4) while loading", told)

        rows = self.folder / "out.jsonl"
        scores = [self.folder / "one.jsonl", self.folder / "two.jsonl"]
        for words, file in ((adapter, scores[0]), (explicit, scores[1])):
            self.succeed("score", *words, "--device", "cpu", "--train_file", rows, "--out", file)
        self.assertEqual(*map(read_rows, scores))
        results = [
            self.succeed("evaluate", *words, "--device", "cpu", "--eval_file", rows, "--json").out
            for words in (adapter, explicit)
        ]
        self.assertEqual(*results)

        checkpoint = self.generate("--model.adapter_name_or_path", out / "checkpoint-2", "--prompt", "a?")[0]
        self.assertEqual(checkpoint, expected)
        (out / "run_config.json").write_text('{"model": {"no_such": 1}}')
        _, told = self.generate(*adapter, "--prompt", "a?")
        self.assertIn("W what the run was trained with is not known", told)

    def test_models_made_of_the_result(self):
        out = self.trained(self.CHATS, "--template", "zephyr")
        merged, quantised = self.folder / "merged", self.folder / "quantised"
        self.succeed("merge", "--adapter_name_or_path", out, "--out", merged, "--no_verify")
        self.succeed("quantize", "--model.path", merged, "--out", quantised)
        for folder in (merged, quantised):
            taken, told = self.generate("--model.path", folder, "--prompt", "a?")
            explicit = ("--load_in_4bit", "false", "--dtype", "float32", "--template", "zephyr")
            self.assertEqual(taken, self.generate("--model.path", folder, *explicit, "--prompt", "a?")[0])
            self.assertIn("data.template zephyr", told)
            self.assertIn("4 bit (nf4) as stored" if folder == quantised else "fp32 as stored", told)

    def test_the_configuration_of_a_run_means_its_result(self):
        rows = self.CHATS
        first = self.trained(rows, "--template", "zephyr", "--save_steps", "0", out="first")
        more = ("--learning_rate", "0.1", "--model.adapter_name_or_path", first, "--template", "zephyr")
        out = self.trained(rows, *more, "--save_steps", "1")
        file = out / "run_config.json"
        answer, told = self.generate(file, "--prompt", "a?")
        self.assertEqual(answer, self.generate("--model.adapter_name_or_path", out, "--prompt", "a?")[0])
        self.assertIn(f"its adapter is taken, --model.adapter_name_or_path {out}", told)
        for given, same in ((first, ["--model.adapter_name_or_path", first]), ("null", ["--model.path", self.base()])):
            of_file = self.generate(file, "--prompt", "a?", "--model.adapter_name_or_path", given)[0]
            self.assertEqual(of_file, self.generate(*same, *FP32, "--template", "zephyr", "--prompt", "a?")[0])
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (out / name).unlink()
        saved = out / "checkpoint-2" / "run_config.json"
        self.fail_with(INPUT, ["left no adapter", str(saved)], "generate", file, "--prompt", "a?")
        self.assertEqual(self.generate(saved, "--prompt", "a?")[0], answer)

        config = self.folder / "run.json"
        config.write_text(json.dumps({"model": {"path": str(self.base())}, "training": {"output_dir": str(first)}}))
        _, told = self.generate(config, "--prompt", "a?")
        self.assertIn(f"--model.adapter_name_or_path {first} takes it", told)

    def test_a_fully_trained_model(self):
        out = self.trained(self.CHATS, "--finetuning_type", "full", "--template", "zephyr")
        expected = self.generate("--model.path", out, *FP32, "--template", "zephyr", "--prompt", "a?")[0]
        self.assertEqual(self.generate("--model.path", out, "--prompt", "a?")[0], expected)
        answer, told = self.generate(out / "run_config.json", "--prompt", "a?")
        self.assertEqual(answer, expected)
        self.assertIn(f"its model is taken, --model.path {out}", told)

    def test_prompts_are_put_as_the_rows_were(self):
        """Where no template was named: rows of the run have a form all the same."""
        chatty = self.copied_model(self.base(), "chatty")
        config = chatty / "tokenizer_config.json"
        template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant] "
        config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
        alpaca = [{"instruction": "a?", "output": "A."}]
        for name, base, rows, words in (
            ("chats", self.base(), self.CHATS, ["--template", "alpaca"]),  # what auto is for this tokenizer
            ("chatty alpaca", chatty, alpaca, ["--template", "alpaca"]),
            ("chatty text", chatty, [{"text": "The term."}], ["--raw"]),
        ):
            with self.subTest(name):
                out = self.trained(rows, base=base, out=name)
                adapter = ("--model.adapter_name_or_path", out)
                taken, told = self.generate(*adapter, "--prompt", "a?")
                self.assertEqual(
                    taken["prompt_ids"], self.generate(*adapter, *words, "--prompt", "a?")[0]["prompt_ids"]
                )
                file = write_rows(self.folder / "prompts.jsonl", [{"prompt": "a?"}])
                self.assertEqual(self.generate(*adapter, "--file", file)[0], taken)

    def test_rows_of_prompts_go_through_the_template(self):
        file = write_rows(self.folder / "prompts.jsonl", [{"prompt": "a?"}])
        named = ("--model.path", self.base(), *FP32, "--template", "zephyr")
        answer = self.generate(*named, "--file", file)[0]
        self.assertEqual(answer, self.generate(*named, "--prompt", "a?")[0])
        write_rows(file, [{"text": "a?"}])
        self.assertEqual(self.generate(*named, "--file", file)[0], self.generate(*named, "--raw", "--prompt", "a?")[0])

    def test_a_conversation_by_a_template_that_nobody_named(self):
        guess = "W chat template alpaca is a guess"
        chat = ("generate", "--model.path", self.base(), "--device", "cpu", *FP32, "--chat", "--max_new_tokens", "2")
        self.assertIn(guess, self.succeed(*chat, stdin="a\n").err)
        self.assertNotIn(guess, self.succeed(*chat, "--template", "alpaca", stdin="a\n").err)
        out = self.trained(self.CHATS, "--template", "zephyr")
        told = self.succeed(*chat, "--adapter_name_or_path", out, stdin="a\n").err
        self.assertIn("I chat template zephyr", told)

    def test_adapters_that_were_trained_differently(self):
        one = self.trained(self.CHATS, out="one")
        rows = self.folder / "one.jsonl"
        again = self.train_arguments(self.base(), rows, "--adapter_name_or_path", one, "--max_steps", "0", out="on")
        told = "W the adapter {} was trained with {}; this run has other values"
        self.assertNotIn("this run has other values", self.succeed(*again).err)
        for more, had in (("--load_in_4bit", "model.load_in_4bit false"), ("--template=zephyr", "data.template auto")):
            self.assertIn(told.format(one, had), self.succeed(*again, more).err)
        other = self.trained(self.CHATS, "--load_in_4bit", "true", out="other")
        file = write_rows(self.folder / "prompts.jsonl", [{"text": "a", "adapter": "other"}])
        several = ("--adapter", f"one={one}", "--adapter", f"other={other}", "--file", file)
        told = self.generate(*several)[1]
        self.assertIn("model.load_in_4bit false", told)
        self.assertIn("W adapter other was trained with model.load_in_4bit true", told)


class Stopping(EndToEnd):
    def start(self, *arguments, **options):
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, env=environment(), text=True, **options
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stderr.close)
        return process

    def generate(self, count, *arguments):
        file = write_rows(self.folder / "prompts.jsonl", [{"text": "The price"}] * count)
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        words = ("--model.path", base, "--device", "cpu", *FP32, "--file", file, "--max_new_tokens", "60")
        # Likelier than the token that ends a text, so that answers are long.
        return ("generate", *words, "--max_rows", "1", "--logit_bias", '{"1": -1000}', *arguments)

    def test_what_was_answered_is_there_when_it_is_stopped(self):
        process = self.start(*self.generate(5000, "--json"), stdout=subprocess.PIPE)
        with process.stdout:
            lines = [process.stdout.readline() for _ in range(2)]
            process.send_signal(signal.SIGINT)
            lines += process.stdout.readlines()
        told = process.stderr.read()
        self.assertEqual(process.wait(TIMEOUT_S), SIGINT_SAVED, told)
        self.assertIn(f"{len(lines)} of 5000 answers were printed", told)
        self.assertLess(len(lines), 5000)
        self.assertEqual({len(json.loads(line)["ids"]) for line in lines}, {60})

    def test_an_output_that_cannot_be_written_ends_the_work(self):
        with open("/dev/full", "w") as full:
            process = self.start(*self.generate(5000), stdout=full)
        self.assertEqual(process.wait(TIMEOUT_S), RUNTIME)
        self.assertIn("cannot write to standard output", process.stderr.read())

    def test_a_reader_who_has_seen_enough_ends_it_quietly(self):
        process = self.start(*self.generate(5000), stdout=subprocess.PIPE)
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(TIMEOUT_S), -signal.SIGPIPE)
        self.assertNotIn("error", process.stderr.read())
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        words = ("--model.path", base, "--device", "cpu", *FP32)
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is one year."}] * 8)
        for command in (
            ("generate", *words, "--prompt", "The price", "--stream"),
            ("generate", *words, "--prompt", "The price", "--json"),
            ("evaluate", *words, "--eval_file", rows),
            ("data", "--model.path", base, "--train_file", rows),
            ("tokenize", "--tokenizer", base),
            ("config", "--schema"),
            ("plan", "--model.path", "llama-3.1-8b", "--gpu", "H100"),
        ):
            with self.subTest(command[0]):
                with open(rows) as lines:
                    process = self.start(*command, stdin=lines, stdout=subprocess.PIPE)
                process.stdout.close()
                told = process.stderr.read()
                self.assertEqual(process.wait(TIMEOUT_S), -signal.SIGPIPE, told)
                self.assertNotIn("error", told)

    def test_no_result_is_lost_where_standard_output_cannot_be_written(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is one year."}] * 8)
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        for command in (
            ("evaluate", "--model.path", base, "--device", "cpu", *FP32, "--eval_file", rows),
            ("plan", "--model.path", "llama-3.1-8b", "--gpu", "H100"),
        ):
            with open("/dev/full", "w") as full:
                process = self.start(*command, stdout=full)
            told = process.stderr.read()
            self.assertEqual(process.wait(TIMEOUT_S), RUNTIME, told)
            self.assertIn("cannot write to standard output", told)

    def test_an_evaluation_can_be_stopped(self):
        rows = [{"input_ids": [5, 7, 40, 6], "labels": [-100, -100, 40, 6]}] * 4000
        file = write_rows(self.folder / "rows.jsonl", rows)
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        words = ("--model.path", base, "--device", "cpu", *FP32, "--eval_file", file, "--metric", "exact_match")
        process = self.start("evaluate", *words, "--max_new_tokens", "400", stdout=subprocess.PIPE)
        end = time.monotonic() + TIMEOUT_S
        while not self.catches(process.pid, signal.SIGINT) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        with process.stdout:
            self.assertEqual(process.stdout.read(), "", "no figure of a part of the rows")
        told = process.stderr.read()
        self.assertEqual(process.wait(TIMEOUT_S), SIGINT_SAVED, told)
        self.assertIn("stopped before all", told)

    @staticmethod
    def catches(pid, number):
        try:
            with open(f"/proc/{pid}/status") as status:
                (mask,) = [line.split()[1] for line in status if line.startswith("SigCgt")]
        except (OSError, ValueError):
            return False
        return bool(int(mask, 16) >> (number - 1) & 1)


if __name__ == "__main__":
    main()
