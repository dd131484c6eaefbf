"""Steps that are not finite, and spikes: what a run writes of them, what replay finds, and that a run goes on."""

import json
import math
import unittest

from rank_support import Ranks
from support import (
    INPUT,
    LLAMA,
    OK,
    RUNTIME,
    float_bytes,
    floats,
    main,
    model,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
)

DEEP = LLAMA | {"num_hidden_layers": 6}
ONE_ROW = ["--shuffle", "false", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"]


class Anomalies(Ranks):
    def spoil(self, folder, file, name, index, value):
        tensors = read_safetensors(folder / file)
        dtype, shape, data = tensors[name]
        values = floats(data)
        values[index] = value
        tensors[name] = (dtype, shape, float_bytes(values))
        write_safetensors(folder / file, tensors)

    def anomaly(self, step, out="out"):
        return json.loads((self.folder / out / "anomalies" / f"step-{step}.json").read_text())

    def replay(self, step, out="out"):
        """What it finds; the run's folder is left as it was."""
        folder = self.folder / out
        content = lambda: {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        before = content()
        result = self.succeed("replay", folder / "anomalies" / f"step-{step}.json", "--json")
        self.assertEqual(content(), before)
        return json.loads(result.out)

    # --- what is not finite ---

    def test_a_weight_of_a_middle_layer(self):
        base = self.copied_model(model(DEEP))
        self.spoil(base, "model.safetensors", "model.layers.3.mlp.up_proj.weight", 70, math.nan)
        arguments = self.train_arguments(base, self.rows(8), "--seed", "17")
        file = self.folder / "out" / "anomalies" / "step-1.json"
        self.fail_with(RUNTIME, ["step 1", "layer 3, output of its MLP", f"replay {file}"], *arguments)
        anomaly = self.anomaly(1)
        self.assertEqual((anomaly["kind"], anomaly["step"], anomaly["seed"]), ("not_finite", 1, 17))
        self.assertEqual((anomaly["loss"], anomaly["ranks"][0]["layer"]), (None, 3))
        self.assertEqual(len(anomaly["ranks"][0]["rows"]), 8)
        found = self.replay(1)
        self.assertEqual((found["from"], found["finite"], found["layer"]), ("the beginning", False, 3))
        self.assertEqual(found["module"]["name"], "model.layers.3.mlp.up_proj")
        self.assertEqual(found["loss"], "nan")
        outputs = {layer["name"]: layer["largest_output"] for layer in found["layers"]}
        self.assertEqual([name for name in outputs], [f"layers.{i}" for i in range(6)])
        self.assertTrue(all(outputs[f"layers.{i}"] > 0 for i in range(3)), outputs)
        self.assertEqual([outputs[f"layers.{i}"] for i in range(3, 6)], ["nan"] * 3)
        text = self.succeed("replay", file).out
        self.assertIn("the first value that is not finite is in the output of model.layers.3.mlp.up_proj", text)

    def test_an_adapter_of_a_middle_layer(self):
        base, rows = model(DEEP), self.rows(8)
        adapter = self.train(base, rows, "--max_steps", "1", out="before")
        name = next(
            n
            for n in read_safetensors(adapter / "adapter_model.safetensors")
            if "layers.2.self_attn.q_proj.lora_B" in n
        )
        self.spoil(adapter, "adapter_model.safetensors", name, 3, math.inf)
        says = ["layer 2", f"tensor '{name}' holds a value that is not finite: inf at row 0, column 3"]
        self.fail_with(RUNTIME, says, *self.train_arguments(base, rows, "--adapter_name_or_path", adapter))
        found = self.replay(1)
        self.assertEqual((found["layer"], found["module"]["name"]), (2, "model.layers.2.self_attn.q_proj"))

    def test_values_too_large_to_be_squared(self):
        """A run that diverged: each value is finite, and so are loss and gradient, but no norm's sum of squares is."""
        rows = self.rows(16)
        wild = ["--learning_rate", "1", "--weight_decay", "1e7", "--lr_scheduler_type", "constant", "--max_steps", "4"]
        for dtype, full in (("float32", False), ("bfloat16", True)):
            with self.subTest(dtype=dtype, full=full):
                out = f"{dtype}-{full}"
                more = ["--dtype", dtype, *(["--finetuning_type", "full"] if full else [])]
                arguments = self.train_arguments(model(DEEP), rows, *wild, *more, out=out)
                said = self.fail_with(
                    RUNTIME, ["too large to be squared in 32 bits (loss ", "has diverged"], *arguments
                )
                self.assertNotIn("gradient is not finite", said.err)
                (file,) = (self.folder / out / "anomalies").iterdir()
                anomaly = json.loads(file.read_text())
                self.assertIn(f"(loss {anomaly['loss']:.4g}, gradient norm {anomaly['grad_norm']:.4g})", said.err)
                found = self.replay(anomaly["step"], out=out)
                place = anomaly["ranks"][0]["place"]
                self.assertEqual((found["finite"], found["module"], found["place"]), (False, None, place))
                self.assertEqual(found["layer"], anomaly["ranks"][0]["layer"])
                text = self.succeed("replay", file).out
                self.assertIn(f"too large to be squared in 32 bits at: {place}", text)
                self.assertIn("has diverged", text)
                self.assertNotIn("doctor", text)

    def rows_with_one_bad(self, count, place):
        base = self.copied_model(model(DEEP))
        self.spoil(base, "model.safetensors", "model.embed_tokens.weight", 100 * 32, math.inf)
        rows = [{"input_ids": [3 + (i * 7 + t) % 90 for t in range(6)]} for i in range(count)]
        rows[place]["input_ids"][2] = 100
        return base, write_rows(self.folder / "rows.jsonl", rows)

    def test_from_the_last_checkpoint_and_by_rows(self):
        base, rows = self.rows_with_one_bad(16, 7)
        extra = ["--shuffle", "false", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1"]
        extra += ["--max_steps", "8", "--save_steps", "2", "--lora.lora_dropout", "0.1"]
        self.fail_with(RUNTIME, "step 4", *self.train_arguments(base, rows, *extra))
        self.assertEqual(self.anomaly(4)["ranks"][0]["rows"], [6, 7])
        found = self.replay(4)
        self.assertEqual((found["from"], found["steps_between"]), ("checkpoint-2", 1))
        self.assertEqual((found["module"]["name"], found["layer"]), ("model.embed_tokens", None))
        self.assertEqual([row["row"] for row in found["rows"]], [7, 6])
        self.assertEqual(found["rows"][0]["loss"], "nan")
        self.assertGreater(found["rows"][1]["loss"], 0)

    def test_two_ranks(self):
        base, rows = self.rows_with_one_bad(16, 7)
        extra = ["--shuffle", "false", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"]
        extra += ["--max_steps", "8", "--save_steps", "2"]
        code, err = self.launch(2, self.train_arguments(base, rows, *extra))
        self.assertEqual(code, RUNTIME, err)
        ranks = self.anomaly(4)["ranks"]
        self.assertEqual(sorted(row for rank in ranks for row in rank["rows"]), [6, 7])
        self.assertEqual([rank["place"] is not None for rank in ranks], [7 in rank["rows"] for rank in ranks])
        found = self.replay(4)
        self.assertEqual((found["from"], found["module"]["name"]), ("checkpoint-2", "model.embed_tokens"))
        self.assertEqual([row["row"] for row in found["rows"]], [7, 6])

    def test_what_is_no_anomaly(self):
        file = self.folder / "step-1.json"
        for text in ("[]", "{", '{"kind": "flood"}', '{"kind": "spike", "step": "one"}'):
            file.write_text(text)
            self.fail_with(INPUT, str(file), "replay", file)
        base = self.copied_model(model(DEEP))
        self.spoil(base, "model.safetensors", "model.layers.3.mlp.up_proj.weight", 70, math.nan)
        run("train", *self.train_arguments(base, self.rows(8)))
        alone = self.folder / "alone" / "anomalies" / "step-1.json"
        alone.parent.mkdir(parents=True)
        alone.write_bytes((self.folder / "out" / "anomalies" / "step-1.json").read_bytes())
        self.fail_with(INPUT, "run_config.json", "replay", alone)

    # --- spikes ---

    SPIKE = 45  # step whose rows have one target: its gradient's norm is several times that of the others

    def spiky(self, copies=1):
        rows = [{"input_ids": list(range(10, 22)), "labels": list(range(10, 22))} for _ in range(60 * copies)]
        for row in rows[(self.SPIKE - 1) * copies : self.SPIKE * copies]:
            row["labels"] = [-100] * 11 + [77]
        rows = write_rows(self.folder / "rows.jsonl", rows)
        return [*ONE_ROW, "--max_steps", "60", "--learning_rate", "1e-4", "--lr_scheduler_type", "constant"], rows

    def test_a_spike_is_skipped_and_training_goes_on(self):
        extra, rows = self.spiky()
        base = model(LLAMA)
        off = self.steps(self.train(base, rows, *extra, out="off"))
        never = self.steps(self.train(base, rows, *extra, "--skip_on_spike", "1000000", out="never"))
        on = self.steps(self.train(base, rows, *extra, "--skip_on_spike", "6", "--save_steps", "40"))
        losses = lambda steps: [step["loss"] for step in steps]
        norms = lambda steps: [step["grad_norm"] for step in steps]
        self.assertEqual((losses(never), norms(never)), (losses(off), norms(off)))
        self.assertEqual(losses(on)[: self.SPIKE], losses(off)[: self.SPIKE])
        self.assertNotEqual(losses(on)[self.SPIKE :], losses(off)[self.SPIKE :])
        self.assertEqual([s["skipped_steps"] for s in on], [0] * (self.SPIKE - 1) + [1] * (60 - self.SPIKE + 1))
        self.assertEqual(self.summary(self.folder / "out")["skipped_steps"], 1)
        self.assertNotIn("skipped_steps", off[0])
        # The step before it and the one behind see the same weights, and the same row.
        self.assertEqual(losses(on)[self.SPIKE], losses(self.steps(self.folder / "out"))[self.SPIKE])

        anomaly = self.anomaly(self.SPIKE)
        self.assertEqual((anomaly["kind"], anomaly["ranks"][0]["rows"]), ("spike", [self.SPIKE - 1]))
        self.assertGreater(anomaly["grad_norm"], anomaly["grad_norm_limit"])
        self.assertEqual(anomaly["grad_norm"], on[self.SPIKE - 1]["grad_norm"])
        found = self.replay(self.SPIKE)
        self.assertEqual((found["from"], found["finite"], found["layer"]), ("checkpoint-40", True, None))
        self.assertEqual((found["loss"], found["grad_norm"]), (anomaly["loss"], anomaly["grad_norm"]))

        # What a spike is measured by is in the checkpoint.
        again = ["--skip_on_spike", "6", "--resume_from_checkpoint", self.folder / "out" / "checkpoint-40"]
        resumed = self.steps(self.train(base, rows, *extra, *again, out="resumed"))
        self.assertEqual(losses(resumed), losses(on)[40:])

    def test_ranks_skip_a_spike_together(self):
        extra, rows = self.spiky(copies=2)
        code, err = self.launch(2, self.train_arguments(model(LLAMA), rows, *extra, "--skip_on_spike", "6"))
        self.assertEqual(code, OK, err)  # they compare their values at the end
        self.assertIn(f"step {self.SPIKE} is a spike", err)
        ranks = self.anomaly(self.SPIKE)["ranks"]
        self.assertEqual(
            sorted(row for rank in ranks for row in rank["rows"]), [2 * self.SPIKE - 2, 2 * self.SPIKE - 1]
        )
        steps = self.steps(self.folder / "out")
        self.assertEqual([s["step"] for s in steps if s["skipped_steps"] == 1][0], self.SPIKE)
        self.assertEqual(steps[-1]["step"], 60)
        times = steps[-1]["rank_work_ms"]
        self.assertEqual(len(times), 2)
        self.assertTrue(all(0 < ms < 60000 for ms in times), times)

    # --- norms of layers ---

    def test_norms_of_layers(self):
        extra = ["--logging_steps", "2", "--layer_norms", "--max_steps", "4", "--max_grad_norm", "0.001"]
        out = self.train(model(DEEP), self.rows(16), *extra, "--modules_to_save", "embed_tokens,lm_head")
        steps = self.steps(out)
        self.assertEqual([s["step"] for s in steps], [2, 4])
        names = [f"grad_norm/{name}" for name in ["embed_tokens", *(f"layers.{i}" for i in range(6)), "head"]]
        for step in steps:
            self.assertEqual([key for key in step if key.startswith("grad_norm/")], names)
            whole = math.sqrt(sum(step[name] ** 2 for name in names))
            self.assertAlmostEqual(whole, step["grad_norm"], delta=1e-5 * step["grad_norm"])
        self.assertFalse(
            [key for s in self.steps(self.train(model(DEEP), self.rows(16), out="without")) for key in s if "/" in key]
        )


if __name__ == "__main__":
    main()
