"""Numbers that are not finite: where they come from, and what stays of a run."""

import json

from support import (
    EndToEnd,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    OK,
    RUNTIME,
    TEXT_LLAMA,
    float_bytes,
    floats,
    main,
    model,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
)


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


if __name__ == "__main__":
    main()
