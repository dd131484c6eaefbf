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
            (["--stream without", "--json"], ["--json", "--stream"]),
            (["--max_context is 10", "Raise it, or set a lower --max_new_tokens"], ["--max_context", "10"]),
            (["--max_context 9999", "allows 512", "--rope_scaling"], ["--max_context", "9999"]),
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
