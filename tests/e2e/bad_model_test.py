"""What is wrong with a model is said in words."""

import json
import shutil

from support import (
    EndToEnd,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    TEXT_LLAMA,
    USAGE,
    environment,
    main,
    model,
    read_safetensors,
    run,
    write_raw_safetensors,
    write_rows,
    write_safetensors,
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


if __name__ == "__main__":
    main()
