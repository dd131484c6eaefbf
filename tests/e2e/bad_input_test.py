"""What is wrong with the input is said in words: an exit code, what was expected, where, and what to do."""

import json
import os
import pathlib
import resource
import shutil
import signal

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    OK,
    RUNTIME,
    SOURCE,
    TEXT_LLAMA,
    USAGE,
    environment,
    float_bytes,
    floats,
    main,
    model,
    read_safetensors,
    run,
    token_rows,
    write_raw_safetensors,
    write_rows,
    write_safetensors,
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


class Model(EndToEnd):
    def refuse(self, folder, parts, *extra, code=INPUT):
        return self.fail_with(code, parts, *self.train_arguments(folder, self.rows(4), *extra))

    def change_config(self, folder, **changes):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def change_tensors(self, folder, change):
        path = folder / "model.safetensors"
        tensors = read_safetensors(path)
        change(tensors)
        write_safetensors(path, tensors)

    def test_paths(self):
        self.refuse(self.folder / "nothing", ["nothing", "no such file or folder"])
        empty = self.folder / "empty"
        empty.mkdir()
        self.refuse(empty, ["empty", "model.safetensors"])
        result = run(
            *self.train_arguments("someone/no-such-model", self.rows(4)), env=environment(HF_HUB_CACHE=self.folder)
        )
        self.check_words(result)
        self.assertEqual(result.code, INPUT, str(result))
        self.assertIn("hf download someone/no-such-model", result.err)

    def test_a_hub_id_in_the_cache(self):
        snapshot = self.folder / "hub" / "models--someone--tiny" / "snapshots" / "abc"
        snapshot.parent.mkdir(parents=True)
        shutil.copytree(model(LLAMA), snapshot)
        (snapshot.parent.parent / "refs").mkdir()
        (snapshot.parent.parent / "refs" / "main").write_text("abc")
        out = self.train(
            "someone/tiny", self.rows(4), "--max_steps", "1", env=environment(HF_HUB_CACHE=self.folder / "hub")
        )
        self.assertEqual(
            json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"], "someone/tiny"
        )

    def sharded(self):
        folder = self.copied_model(model(LLAMA))
        tensors = read_safetensors(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        weight_map = {}
        for index, part in enumerate((names[:10], names[10:])):
            shard = f"model-{index + 1:05}-of-00002.safetensors"
            write_safetensors(folder / shard, {name: tensors[name] for name in part})
            weight_map |= dict.fromkeys(part, shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder

    def test_shards(self):
        folder = self.sharded()
        rows = self.rows(4)
        self.assertEqual(self.score(folder, rows), self.score(model(LLAMA), rows))
        second = folder / "model-00002-of-00002.safetensors"
        whole = second.read_bytes()
        second.write_bytes(whole[:-100])
        self.refuse(folder, ["model-00002-of-00002.safetensors", "incomplete"])
        second.write_bytes(whole[:5])
        self.refuse(folder, ["model-00002-of-00002.safetensors", "5 bytes"])
        second.unlink()
        self.refuse(folder, ["model-00002-of-00002.safetensors", "shard is missing"])
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../secret.safetensors"}}))
        self.refuse(folder, ["../secret.safetensors", "refused"])

    def test_header_tricks(self):
        source = read_safetensors(model(LLAMA) / "model.safetensors")
        folder = self.copied_model(model(LLAMA))
        path = folder / "model.safetensors"
        name = "model.norm.weight"

        def spoil(change, *parts):
            write_safetensors(path, source, change)
            with self.subTest(parts):
                self.refuse(folder, ["model.safetensors", *parts])
                self.assertEqual(run("inspect", folder).code, INPUT)

        def moved(by):
            return lambda header: header[name].update(data_offsets=[x + by for x in header[name]["data_offsets"]])

        spoil(moved(-4), name, "overlap")
        spoil(moved(1 << 40), name, "beyond")
        spoil(lambda header: header[name].update(shape=[1 << 62, 1 << 62]), name, "overflow")
        spoil(lambda header: header[name].update(shape=[-32]), name, "-32")
        spoil(lambda header: header[name].update(dtype="F33"), name, "F33")
        spoil(lambda header: header[name].update(data_offsets=[9, 2]), name, "reversed")
        spoil(lambda header: header[name].pop("shape"), name, "no shape")
        for header, length, part in (
            (b"{", 1 << 62, "header"),
            (b"{}", 1 << 20, "longer than the file"),
            (b"[]", None, "does not start"),
            (b"{" + b'"a":[' * 90000, None, "header"),
        ):
            write_raw_safetensors(path, header, b"", length)
            with self.subTest(header[:8]):
                self.refuse(folder, ["model.safetensors", part])

    def test_tensors_that_do_not_fit_the_config(self):
        folder = self.copied_model(model(LLAMA))
        path = folder / "model.safetensors"
        whole = path.read_bytes()
        name = "model.layers.1.mlp.up_proj.weight"
        cases = (
            (
                "dtype",
                lambda t: t.update({name: ("F64", [64, 32], bytes(64 * 32 * 8))}),
                [name, "F64", "F32, BF16 or F16"],
            ),
            ("shape", lambda t: t.update({name: ("F32", [32, 64], t[name][2])}), [name, "[64, 32]", "[32, 64]"]),
            ("missing", lambda t: t.pop(name), [name, "missing"]),
            ("unknown", lambda t: t.update({"model.layers.7.extra": ("F32", [1], bytes(4))}), ["model.layers.7.extra"]),
        )
        for word, change, parts in cases:
            with self.subTest(word):
                path.write_bytes(whole)
                self.change_tensors(folder, change)
                self.refuse(folder, parts)
                report = run("inspect", folder)
                self.assertEqual(report.code, INPUT, str(report))
                self.assertIn(parts[0], report.out + report.err)

    def test_damaged_quantisation(self):
        folder = self.copied_model(NF4_MODEL)
        name = next(n for n in read_safetensors(folder / "model.safetensors") if n.endswith("q_proj.weight.absmax"))
        self.change_tensors(folder, lambda t: t.pop(name))
        self.refuse(folder, [name.removesuffix(".absmax")], "--load_in_4bit", "true")
        self.assertEqual(run("inspect", folder).code, INPUT)

    def test_unsupported_architectures_are_refused_by_name(self):
        folder = self.copied_model(model(LLAMA))
        for kind, name in (("mixtral", "MixtralForCausalLM"), ("gpt2", "GPT2LMHeadModel")):
            self.change_config(folder, model_type=kind, architectures=[name])
            self.refuse(folder, [kind, "config.json"])
            self.assertEqual(run("inspect", folder).code, INPUT)

    def test_config_values(self):
        folder = self.copied_model(model(LLAMA))
        self.change_config(folder, hidden_size=0)
        self.refuse(folder, ["config.json", "hidden_size"])
        self.change_config(folder, hidden_size=32, num_attention_heads="four")
        self.refuse(folder, ["config.json", "num_attention_heads"])
        (folder / "config.json").unlink()
        self.refuse(folder, ["config.json"])

    def test_full_training_of_a_four_bit_checkpoint(self):
        result = self.refuse(NF4_MODEL, ["4-bit"], "--finetuning_type", "full", code=USAGE)
        self.assertIn("full", result.err)

    def test_a_tokenizer_that_is_not_there(self):
        rows = write_rows(self.folder / "text.jsonl", [{"text": "Some words."}])
        self.fail_with(INPUT, ["tokenizer.json", "input_ids"], *self.train_arguments(model(LLAMA), rows))
        self.fail_with(
            INPUT, ["tokenizer.json"], "generate", "--model.path", model(LLAMA), "--prompt", "x", "--device", "cpu"
        )

    def test_a_tokenizer_that_is_too_large(self):
        folder = model(TEXT_LLAMA | {"vocab_size": 100}, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "text.jsonl", [{"text": "Some words."}])
        self.fail_with(INPUT, ["vocabulary", "99"], *self.train_arguments(folder, rows))


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


class Output(EndToEnd):
    def test_a_folder_below_a_file(self):
        (self.folder / "file").write_text("")
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file" / "out")],
            *self.train_arguments(model(LLAMA), self.rows(4), out="file/out"),
        )
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file")],
            "init",
            "--model_config",
            model(LLAMA) / "config.json",
            "--out",
            self.folder / "file" / "m",
        )
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file")],
            "score",
            "--model.path",
            model(LLAMA),
            "--train_file",
            self.rows(4),
            "--out",
            self.folder / "file" / "s.jsonl",
            "--device",
            "cpu",
        )

    def limited(self, size):
        """A limit on the size of files stands for a full disk: the program must not die of SIGXFSZ."""

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return limit

    def test_no_room_for_the_adapter(self):
        result = self.fail_with(
            RUNTIME,
            ["adapter_model.safetensors"],
            *self.train_arguments(model(LLAMA), self.rows(4)),
            preexec=self.limited(8192),
        )
        self.assertIn("File too large", result.err)
        names = [p.name for p in (self.folder / "out").iterdir()]
        self.assertNotIn("adapter_model.safetensors", names)
        self.assertEqual([n for n in names if ".tmp-" in n], [])

    def test_init_does_not_replace_a_model(self):
        there = self.copied_model(model(LLAMA), "there")
        before = {p.name: p.read_bytes() for p in there.iterdir()}
        make = ["init", "--model_config", model(LLAMA) / "config.json", "--seed", "8", "--out"]
        for folder in (there, self.folder / "weights"):
            folder.mkdir(exist_ok=True)
            (folder / "model.safetensors").write_bytes(before["model.safetensors"])
            self.fail_with(USAGE, ["holds a model already", "Name another folder"], *make, folder)
        self.assertEqual({p.name: p.read_bytes() for p in there.iterdir()}, before)
        (self.folder / "empty").mkdir()
        self.succeed(*make, self.folder / "empty")

    def test_init_does_not_mix_with_an_adapter(self):
        out = self.train(model(LLAMA), self.rows(4), "--save_steps", "0")
        (out / "adapter_model.safetensors").rename(out / "adapter_model.bin")
        before = sorted(p.name for p in out.iterdir())
        self.fail_with(USAGE, "holds a run", "init", "--model_config", model(LLAMA) / "config.json", "--out", out)
        self.assertEqual(sorted(p.name for p in out.iterdir()), before)

    def test_what_a_command_reads_is_not_written_over(self):
        rows, base = self.rows(4), model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        link = self.folder / "link"
        link.symlink_to(rows)
        questions = write_rows(self.folder / "questions.jsonl", [{"prompt": "a", "completion": "b"}] * 2)
        config = self.folder / "axolotl.yaml"
        config.write_text("base_model: x\nadapter: lora\nmicro_batch_size: 2\n")
        common = ["--device", "cpu", *FP32, "--model.path", base]
        for file, arguments in (
            (rows, ["score", *common, "--data.train_file", rows, "--out", link]),
            (rows, ["score", *common, "--data.train_file", link, "--out", self.folder / "s", "--logits", rows]),
            (
                questions,
                ["evaluate", *common, "--eval_file", questions, "--metric", "exact_match", "--answers", questions],
            ),
            (config, ["import-config", config, "--out", config]),
        ):
            before = file.read_bytes()
            self.fail_with(USAGE, ["is the file that", "Name another file"], *arguments)
            self.assertEqual(file.read_bytes(), before)
        self.assertFalse((self.folder / "s").exists())

    def test_init_takes_another_number_of_layers(self):
        self.succeed(
            *("init", "--model_config", model(LLAMA) / "config.json", "--layers", "5", "--quantize", "nf4"),
            *("--out", self.folder / "five"),
        )
        self.assertEqual(json.loads((self.folder / "five" / "config.json").read_text())["num_hidden_layers"], 5)
        self.succeed("inspect", self.folder / "five")
        self.fail_with(USAGE, "layers", "init", "--shape", "llama-2-7b", "--layers", "-1", "--out", self.folder / "m")

    def test_an_earlier_adapter_survives_a_failed_save(self):
        rows = self.rows(4)
        out = self.train(model(LLAMA), rows)
        before = (out / "adapter_model.safetensors").read_bytes()
        self.fail_with(
            RUNTIME,
            ["adapter_model.safetensors"],
            *self.train_arguments(model(LLAMA), rows, "--seed", "5", "--overwrite_output_dir", "true"),
            preexec=self.limited(8192),
        )
        self.assertEqual((out / "adapter_model.safetensors").read_bytes(), before)

    def test_no_room_for_other_files(self):
        self.fail_with(
            RUNTIME, ["File too large"], *self.train_arguments(model(LLAMA), self.rows(4)), preexec=self.limited(64)
        )
        self.fail_with(
            RUNTIME,
            ["File too large"],
            "init",
            "--model_config",
            model(LLAMA) / "config.json",
            "--out",
            self.folder / "m",
            preexec=self.limited(8192),
        )
        self.assertFalse((self.folder / "m").exists(), "what failed leaves no folder")
        self.fail_with(
            RUNTIME,
            ["File too large"],
            "score",
            "--model.path",
            model(LLAMA),
            "--train_file",
            self.rows(8),
            "--out",
            self.folder / "s",
            "--logits",
            self.folder / "l",
            "--device",
            "cpu",
            preexec=self.limited(8192),
        )

    def test_a_full_device(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("no /dev/full")
        done = os.system(f"{os.environ['UNSLOTH_TRAIN']} config > /dev/full 2> {self.folder / 'err'}")
        self.assertEqual(os.waitstatus_to_exitcode(done), RUNTIME)
        self.assertIn("standard output", (self.folder / "err").read_text())


class NotFinite(EndToEnd):
    def poisoned(self, name, value):
        folder = self.copied_model(model(LLAMA))
        path = folder / "model.safetensors"
        tensors = read_safetensors(path)
        dtype, shape, data = tensors[name]
        values = floats(data)
        values[0] = value
        tensors[name] = (dtype, shape, float_bytes(values))
        write_safetensors(path, tensors)
        return folder

    def test_the_run_stops_naming_step_rows_and_layer(self):
        folder = self.poisoned("model.layers.1.mlp.down_proj.weight", float("nan"))
        self.fail_with(
            RUNTIME,
            [
                "step 1",
                "layer 1, output of its MLP",
                "Rows of the step: 0, 1, 2, 3",
                "adapter",
                str(self.folder / "out"),
                "tensor 'model.layers.1.mlp.down_proj.weight' holds a value that is not finite: nan at row 0",
            ],
            *self.train_arguments(
                folder,
                self.rows(8),
                "--shuffle",
                "false",
                "--per_device_train_batch_size",
                "2",
                "--gradient_accumulation_steps",
                "2",
            ),
        )
        for _, _, data in read_safetensors(self.folder / "out" / "adapter_model.safetensors").values():
            self.assertTrue(all(x == x for x in floats(data)))
        self.assertEqual(json.loads((self.folder / "out" / "trainer_state.json").read_text())["global_step"], 0)

    def test_the_last_good_adapter_is_kept(self):
        # Only token 100 has a poisoned embedding: the third step meets it.
        folder = self.copied_model(model(LLAMA))
        tensors = read_safetensors(folder / "model.safetensors")
        dtype, shape, data = tensors["model.embed_tokens.weight"]
        values = floats(data)
        values[100 * 32] = float("inf")
        tensors["model.embed_tokens.weight"] = (dtype, shape, float_bytes(values))
        write_safetensors(folder / "model.safetensors", tensors)
        rows = write_rows(
            self.folder / "r.jsonl",
            [
                {"input_ids": [5, 6, 7, 8]},
                {"input_ids": [9, 10, 11]},
                {"input_ids": [5, 100, 6]},
                {"input_ids": [7, 8, 9]},
            ],
        )
        one = [
            "--shuffle",
            "false",
            "--per_device_train_batch_size",
            "1",
            "--gradient_accumulation_steps",
            "1",
            "--lr_scheduler_type",
            "constant",
        ]
        self.fail_with(
            RUNTIME, ["step 3", "Rows of the step: 2\n"], *self.train_arguments(folder, rows, "--max_steps", "4", *one)
        )
        good = self.train(model(LLAMA), rows, "--max_steps", "2", *one, out="good")
        self.assertEqual(
            (self.folder / "out" / "adapter_model.safetensors").read_bytes(),
            (good / "adapter_model.safetensors").read_bytes(),
        )
        self.assertEqual(len(self.steps(self.folder / "out")), 2)

    FLOAT16 = ["--dtype", "float16", "--load_in_4bit", "false", "--device", "cpu"]

    def refused_in_float16(self, base, code, says):
        """By score, evaluate and generate; `says` of each of them."""
        rows, scores = self.rows(4, vocab=50), self.folder / "scores.jsonl"
        prompts = write_rows(self.folder / "prompts.jsonl", [{"text": "a"}])
        loads = ["--model.path", base, *self.FLOAT16]
        self.fail_with(code, says[0], "score", *loads, "--data.train_file", rows, "--out", scores)
        self.assertFalse(scores.exists())
        self.fail_with(code, says[1], "evaluate", *loads, "--eval_file", rows)
        self.fail_with(code, says[2], "generate", *loads, "--file", prompts, "--max_new_tokens", "2")

    def with_row(self, name, values_of_row):
        """A model of the text tokenizer whose first row of a matrix has these values."""
        base = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
        tensors = read_safetensors(base / "model.safetensors")
        dtype, shape, data = tensors[name]
        values = floats(data)
        for i, value in enumerate(values_of_row):
            values[i] = value
        tensors[name] = (dtype, shape, float_bytes(values))
        write_safetensors(base / "model.safetensors", tensors)
        return base

    def test_a_weight_that_is_too_large_for_float16(self):
        name = "model.layers.1.mlp.down_proj.weight"
        base = self.with_row(name, [0.5, -70000.0])
        says = f"'{name}' holds -70000 at row 0, column 1, which is too large for float16"
        arguments = self.train_arguments(base, self.rows(8, vocab=50), "--dtype", "float16", "--max_steps", "10")
        self.fail_with(RUNTIME, ["step 1: the loss is not finite", says], *arguments)
        self.refused_in_float16(base, INPUT, [says] * 3)
        self.score(base, self.rows(4, vocab=50))  # fp32 holds it

    def test_activations_that_are_too_large_for_float16(self):
        base = self.with_row("model.layers.0.mlp.up_proj.weight", [60000.0] * 32)
        arguments = self.train_arguments(base, self.rows(8, vocab=50), "--dtype", "float16", "--max_steps", "10")
        failed = self.fail_with(RUNTIME, ["step 1: the loss is not finite", "layer 0"], *arguments)
        self.assertNotIn("too large", failed.err)
        says = ["the log-probability of token 1 is not finite", "the rows' loss is not finite", "logit"]
        self.refused_in_float16(base, RUNTIME, says)

    def test_float16_goes_on_where_gradients_alone_overflow(self):
        base = self.with_row("lm_head.weight", [40.0] * 32)
        extra = ["--dtype", "float16", "--max_steps", "12", "--per_device_train_batch_size", "1"]
        arguments = self.train_arguments(base, self.rows(8, vocab=50), *extra, "--gradient_accumulation_steps", "1")
        result = self.succeed("train", *arguments)
        self.assertIn(
            "gradients overflowed at loss scale 65536; the update was skipped, the scale is now 32768", result.err
        )
        self.assertLess(result.err.count("gradients overflowed"), 12)
        self.assertEqual(len(self.steps(self.folder / "out")), 12)

    def test_a_base_of_preferences_names_the_tensor(self):
        name = "model.layers.1.mlp.down_proj.weight"
        base = self.with_row(name, [float("inf")])
        rows = write_rows(self.folder / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
        arguments = self.train_arguments(base, rows, "--objective", "dpo")
        self.fail_with(RUNTIME, ["the reference's log-probabilities are not finite", name], *arguments)

    def refused_everywhere(self, name, place, base, adapter=None):
        """generate, score and inspect name the tensor and the place, whatever they are asked."""
        parts = [name, "not finite", place]
        loads = ["--model.path", base, "--device", "cpu", *(["--adapter_name_or_path", adapter] if adapter else [])]
        prompts = write_rows(self.folder / "prompts.jsonl", [{"text": "a"}])
        self.fail_with(INPUT, parts, "generate", *loads, "--file", prompts, "--max_new_tokens", "2")
        rows, scores = self.rows(2, vocab=50), self.folder / "scores.jsonl"
        self.fail_with(INPUT, parts, "score", *loads, "--data.train_file", rows, "--out", scores)
        self.assertFalse(scores.exists())
        inspected = run("inspect", adapter or base)
        self.assertNotEqual(inspected.code, OK)
        for part in parts:
            self.assertIn(part, inspected.out + inspected.err)

    def test_generate_score_and_inspect_name_the_tensor(self):
        base = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
        name = "model.layers.1.mlp.down_proj.weight"
        tensors = read_safetensors(base / "model.safetensors")
        dtype, shape, data = tensors[name]
        values = floats(data)
        values[3 * shape[1] + 2] = float("inf")
        tensors[name] = (dtype, shape, float_bytes(values))
        write_safetensors(base / "model.safetensors", tensors)
        self.refused_everywhere(name, "row 3, column 2", base)

    def test_generate_score_and_inspect_name_the_adapters_tensor(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        adapter = self.train(base, self.rows(8, vocab=50))
        tensors = read_safetensors(adapter / "adapter_model.safetensors")
        name = next(name for name in sorted(tensors) if "layers.0" in name and "lora_B" in name)
        dtype, shape, data = tensors[name]
        values = floats(data)
        values[1] = float("nan")
        tensors[name] = (dtype, shape, float_bytes(values))
        write_safetensors(adapter / "adapter_model.safetensors", tensors)
        self.refused_everywhere(name, "row 0, column 1", base, adapter)


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
