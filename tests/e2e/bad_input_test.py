"""What is wrong with the input is said in words: an exit code, what was expected, where, and what to do."""

import json
import pathlib

from support import (
    EndToEnd,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    SOURCE,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    run,
    token_rows,
    write_rows,
)


class Configuration(EndToEnd):
    def config(self, **sections):
        path = self.folder / "config.json"
        path.write_text(json.dumps(sections))
        return path

    def test_missing_or_malformed_config(self):
        self.fail_with(USAGE, "nowhere.json", "--config", self.folder / "nowhere.json")
        broken = self.folder / "broken.json"
        broken.write_text('{"model": {"path": "x",}}')
        self.fail_with(USAGE, "broken.json", "--config", broken)

    def test_unknown_options_with_a_suggestion(self):
        self.fail_with(
            USAGE, ["lora.lora_alhpa", "lora_alpha", "config.json"], "--config", self.config(lora={"lora_alhpa": 3})
        )
        self.fail_with(USAGE, ["learning-rat", "learning_rate"], "--learning-rat", "0.1")
        self.fail_with(USAGE, ["lr", "learning_rate"], "--lr", "0.1")
        self.fail_with(USAGE, ["trian", "train"], "trian", "--config", "x")

    def test_wrong_types_and_ranges(self):
        self.fail_with(USAGE, ["lora.r", "sixteen"], "--config", self.config(lora={"r": "sixteen"}))
        self.fail_with(USAGE, ["data.shuffle"], "--config", self.config(data={"shuffle": 3}))
        self.fail_with(USAGE, ["--r", "0"], "--r", "0")
        self.fail_with(USAGE, ["max_steps", "many"], "--max_steps", "many")
        self.fail_with(USAGE, ["target_modules", "q_prj", "q_proj"], "--target_modules", "q_prj")
        self.fail_with(USAGE, ["dtype", "float8"], "--dtype", "float8")
        self.fail_with(USAGE, ["learning_rate"], "--learning_rate")

    def test_contradictions(self):
        self.fail_with(USAGE, ["eval_steps", "eval_file"], "--eval_steps", "2")
        self.fail_with(USAGE, ["full", "load_in_4bit"], "--finetuning_type", "full", "--load_in_4bit", "true")

    def test_a_missing_path_or_file_option(self):
        self.fail_with(USAGE, "model.path", "--train_file", self.rows(2))
        self.fail_with(
            USAGE,
            "data.train_file",
            "--model.path",
            model(LLAMA),
            "--output_dir",
            self.folder / "out",
            "--device",
            "cpu",
        )

    def test_kernels_of_another_device(self):
        common = ["--model.path", model(LLAMA), "--train_file", self.rows(2), "--output_dir", self.folder / "out"]
        common += ["--device", "cpu", "--dtype", "float32"]
        self.fail_with(USAGE, ["hardware.kernels", "libary", "auto"], *common, "--hardware.kernels", "libary")
        table = self.folder / "kernels.json"
        table.write_text((SOURCE / "cards" / "h200.json").read_text())
        self.fail_with(USAGE, ["hardware.kernels", "NVIDIA H200", "cpu"], *common, "--hardware.kernels", table)
        table.write_text(table.read_text().replace('"op":"lora_dy"', '"op":"lora"'))
        self.fail_with(INPUT, ["kernels.json", "op", "lora_dy"], *common, "--hardware.kernels", table)
        self.fail_with(USAGE, ["tune", "GPU"], "tune", "--model.path", model(LLAMA), "--device", "cpu")

    def test_a_gpu_that_is_not_there(self):
        if pathlib.Path("/dev/nvidiactl").exists() or pathlib.Path("/dev/dxg").exists():
            self.skipTest("this machine has a GPU")
        for device in ("cuda", "cuda:1"):
            self.fail_with(
                USAGE,
                ["hardware.device", device],
                "--model.path",
                model(LLAMA),
                "--train_file",
                self.rows(2),
                "--output_dir",
                self.folder / "out",
                "--hardware.device",
                device,
            )


class Rows(EndToEnd):
    def refuse(self, lines, parts, *extra, base=None):
        rows = write_rows(self.folder / "bad.jsonl", lines)
        return self.fail_with(INPUT, parts, *self.train_arguments(base or model(LLAMA), rows, *extra))

    def test_each_bad_row_by_file_and_line(self):
        good = {"input_ids": [5, 6, 7]}
        for bad, *parts in (
            ('{"input_ids": [1, 2', "JSON"),
            ("[1, 2]", "object"),
            ({"input_ids": [5, 128]}, "128", "vocabulary"),
            ({"input_ids": [5, -1]}, "-1"),
            ({"input_ids": [5, 4.5]}, "integer"),
            ({"input_ids": []}, "input_ids"),
            ({"input_ids": "five"}, "input_ids"),
            ({"input_ids": [5, 6], "labels": [5]}, "labels"),
            ({"input_ids": [5, 6], "labels": [5, 999]}, "labels", "999"),
            ({"input_ids": [5, 6], "labels": [-100, -100]}, "label"),
            ({"input_ids": [5, 6], "position_ids": [1, 0, 2]}, "position_ids"),
            ({"input_ids": [5, 6, 7], "position_ids": [0, 2, 1]}, "position_ids"),
            ({"input_ids": [5, 6], "position_ids": [0, 64]}, "64"),
            ({"text": "other"}, "input_ids"),
        ):
            with self.subTest(bad):
                self.refuse([good, good, bad, good], ["bad.jsonl:3", *parts])

    def test_longer_than_the_model_allows(self):
        self.refuse([{"input_ids": [5] * 65}], ["bad.jsonl:1", "64"])

    def test_nothing_to_train_on(self):
        self.refuse([], ["bad.jsonl"])
        self.refuse([{"input_ids": [5, 6, 7], "labels": [-100] * 3}] * 2, ["bad.jsonl", "label"])
        self.refuse([{"question": "x", "answer": "y"}], ["bad.jsonl:1", "question", "data.columns"])
        self.refuse(
            [{"prompt": "x", "chosen": "y", "rejected": "z"}],
            ["preference"],
            base=model(TEXT_LLAMA, tokenizer=LEGAL_BASE),
        )
        self.fail_with(INPUT, ["nothing.jsonl"], *self.train_arguments(model(LLAMA), self.folder / "nothing.jsonl"))
        self.fail_with(INPUT, [str(self.folder)], *self.train_arguments(model(LLAMA), self.folder))

    def test_skipped_rows_are_counted(self):
        lines = token_rows(4) + ['{"input_ids": [1, 2', {"input_ids": [999]}] + token_rows(2, seed=5)
        rows = write_rows(self.folder / "bad.jsonl", lines)
        result = self.succeed(
            "train",
            *self.train_arguments(
                model(LLAMA),
                rows,
                "--skip_bad_rows",
                "true",
                "--num_train_epochs",
                "1",
                "--per_device_train_batch_size",
                "1",
                "--gradient_accumulation_steps",
                "1",
            ),
        )
        self.assertIn("2 ", result.err)
        self.assertIn("skip", result.err)
        self.assertEqual(len(self.steps(self.folder / "out")), 6)
        all_bad = write_rows(self.folder / "worse.jsonl", ['{"input_ids": [1', '{"input_ids": [2'])
        self.fail_with(
            INPUT,
            ["worse.jsonl"],
            *self.train_arguments(
                model(LLAMA), all_bad, "--skip_bad_rows", "true", "--format", "tokenized", out="other"
            ),
        )

    def test_text_forms(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.refuse([{"text": "a"}, {"text": 5}], ["bad.jsonl:2", "text"], base=base)
        self.refuse([{"instruction": "a", "output": "b"}, {"instruction": "a"}], ["bad.jsonl:2", "output"], base=base)
        self.refuse([{"messages": [{"role": "user"}]}], ["bad.jsonl:1", "content"], "--template", "alpaca", base=base)
        self.refuse(
            [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
            ["chatml", "<|im_start|>"],
            "--template",
            "chatml",
            base=base,
        )
        self.fail_with(
            USAGE,
            ["no-such"],
            *self.train_arguments(base, write_rows(self.folder / "t.jsonl", [{"text": "a"}]), "--template", "no-such"),
        )

    def test_other_kinds_of_file(self):
        for name, content, word in (
            ("a.parquet", b"PAR1....", "Parquet"),
            ("a.json", b'[{"input_ids": [5, 6]}', "array"),
            ("a.zip", b"PK\x03\x04", "zip"),
            ("a.gz", b"\x1f\x8b..", "gzip"),
        ):
            path = self.folder / name
            path.write_bytes(content)
            self.fail_with(INPUT, [name, word], *self.train_arguments(model(LLAMA), path))

    def test_bytes_that_are_not_utf8(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        path = self.folder / "latin.jsonl"
        path.write_bytes(b'{"text": "a law"}\n{"text": "caf\xe9"}\n')
        self.fail_with(INPUT, ["latin.jsonl:2", "UTF-8", "invalid_utf8"], *self.train_arguments(base, path))
        result = self.succeed(
            "train", *self.train_arguments(base, path, "--invalid_utf8", "replace", "--max_steps", "1")
        )
        self.assertIn("latin.jsonl:2", result.err)

    def test_nothing_stays_in_the_cache(self):
        rows = write_rows(self.folder / "bad.jsonl", token_rows(50) + ['{"input_ids": [1, 2'])
        cache = self.folder / "cache"
        self.fail_with(INPUT, ["bad.jsonl:51"], *self.train_arguments(model(LLAMA), rows, "--cache_dir", cache))
        self.assertEqual([file.name for file in cache.iterdir() if not file.name.endswith(".lock")], [])


class Adapter(EndToEnd):
    def test_of_another_shape_or_kind(self):
        rows = self.rows(4)
        adapter = self.train(model(LLAMA), rows, "--max_steps", "1", out="adapter")
        other = model(LLAMA | {"intermediate_size": 96})
        self.fail_with(
            INPUT,
            ["adapter_model.safetensors", "up_proj"],
            *self.train_arguments(other, rows, "--adapter_name_or_path", adapter),
        )
        self.fail_with(
            INPUT,
            ["adapter_model.safetensors", "up_proj"],
            "score",
            "--model.path",
            other,
            "--adapter_name_or_path",
            adapter,
            "--train_file",
            rows,
            "--out",
            self.folder / "s",
            "--device",
            "cpu",
        )
        config = adapter / "adapter_config.json"
        text = config.read_text()
        config.write_text(text.replace('"use_dora": false', '"use_dora": true'))
        self.fail_with(
            INPUT,
            ["adapter_model.safetensors", "lora_magnitude_vector"],
            *self.train_arguments(model(LLAMA), rows, "--adapter_name_or_path", adapter),
        )
        config.write_text(text.replace('"LORA"', '"LOHA"'))
        self.fail_with(
            INPUT,
            ["adapter_config.json", "peft_type"],
            *self.train_arguments(model(LLAMA), rows, "--adapter_name_or_path", adapter),
        )
        config.write_text(text)
        weights = adapter / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-50])
        self.fail_with(
            INPUT,
            ["adapter_model.safetensors"],
            *self.train_arguments(model(LLAMA), rows, "--adapter_name_or_path", adapter),
        )
        self.assertEqual(run("inspect", adapter).code, INPUT)
        self.fail_with(
            INPUT,
            ["nowhere"],
            *self.train_arguments(model(LLAMA), rows, "--adapter_name_or_path", self.folder / "nowhere"),
        )


class Commands(EndToEnd):
    def test_missing_arguments(self):
        self.fail_with(USAGE, "out", "score", "--model.path", model(LLAMA), "--train_file", self.rows(2))
        self.fail_with(USAGE, "prompt", "generate", "--model.path", model(LLAMA))
        self.fail_with(USAGE, "shape", "init", "--out", self.folder / "m")
        self.fail_with(USAGE, ["llama-9", "llama-3.1-8b"], "init", "--shape", "llama-9", "--out", self.folder / "m")
        self.fail_with(USAGE, "DIR", "inspect")
        self.fail_with(INPUT, "nothing", "inspect", self.folder / "nothing")
        self.fail_with(INPUT, "nothing", "tokenize", "--tokenizer", self.folder / "nothing")

    def test_tokenize_rows(self):
        self.fail_with(INPUT, "2", "tokenize", "--tokenizer", LEGAL_BASE, stdin='{"text": "a"}\n{"text": 5}\n')
        self.fail_with(INPUT, "1", "tokenize", "--tokenizer", LEGAL_BASE, "--decode", stdin='{"ids": ["a"]}\n')

    def test_generate_beyond_the_model(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.fail_with(
            USAGE,
            ["512", "max_new_tokens"],
            "generate",
            "--model.path",
            base,
            "--prompt",
            "x",
            "--max_new_tokens",
            "600",
            "--device",
            "cpu",
        )
        rows = write_rows(self.folder / "prompts.jsonl", [{"text": "a"}, {"words": "b"}])
        self.fail_with(INPUT, "prompts.jsonl:2", "generate", "--model.path", base, "--file", rows, "--device", "cpu")


if __name__ == "__main__":
    main()
