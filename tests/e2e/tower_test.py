"""Adapters in a tower over images (lora.vision): runs from files, resumed, on several ranks, merged and continued."""

import json
import struct

import vision_test
from rank_support import Ranks
from support import OK, main, read_rows, write_rows

TOWER = ("--lora.vision", "true", "--r", 4, "--data.shuffle", "false", "--optim", "adamw_torch")


def names_of(adapter):
    data = (adapter / "adapter_model.safetensors").read_bytes()
    return set(json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])) - {"__metadata__"}


def weights_of(folder):
    return (folder / "adapter_model.safetensors").read_bytes()


class Tower(vision_test.Seeing, Ranks):
    def run_on(self, folder, rows, *more, out):
        return self.train(folder, rows, *TOWER, "--max_steps", 6, "--save_steps", 3, *more, out=out)

    def test_runs_resume_merge_and_continue(self):
        for name in ("qwen3_vl", "qwen2_5_vl", "mllama"):
            with self.subTest(name):
                folder, _, rows, _ = self.family(name)
                out = self.run_on(folder, rows, out=name + "-out")
                of_tower = [one for one in names_of(out) if ".language_model." not in one]
                self.assertGreater(len(of_tower), len(names_of(out)) / 3)
                self.resumes(folder, rows, out, name)
                self.merges(folder, rows, out, name)
                self.continues(folder, rows, out, name)

    def resumes(self, folder, rows, out, name):
        again = self.run_on(folder, rows, "--resume_from_checkpoint", out / "checkpoint-3", out=name + "-again")
        for file in sorted((out / "checkpoint-6").glob("*.safetensors")):
            self.assertEqual((again / "checkpoint-6" / file.name).read_bytes(), file.read_bytes(), file)
        self.assertEqual(weights_of(again), weights_of(out))

    def merges(self, folder, rows, out, name):
        merged = self.folder / name / "merged"
        self.succeed("merge", "--adapter", out, "--base", folder, "--out", merged, "--dtype", "fp32", "--verify", rows)
        with_adapter = self.score(folder, rows, "--adapter_name_or_path", out)
        for one, other in zip(self.score(merged, rows), with_adapter, strict=True):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-4)

    def continues(self, folder, rows, out, name):
        on = self.train(folder, rows, "--adapter_name_or_path", out, "--max_steps", 2, out=name + "-on")
        self.assertEqual(names_of(on), names_of(out))
        self.assertNotEqual(weights_of(on), weights_of(out))

    def test_ranks_have_the_losses_of_one(self):
        slices = ("--zero_stage", 2)
        for name in ("qwen3_vl", "mllama"):
            folder, _, rows, _ = self.family(name)
            seen = [row for row in read_rows(rows) if row.get("images")]
            texts = [row for row in read_rows(rows) if not row.get("images")]
            (a, b, c, d), (t, u) = seen[:4], texts[:2]
            write_rows(rows, [a, b, t, u, c, t, d, u] * 2)
            self.expect_losses_of_one(name, folder, rows, TOWER, (), slices)
        self.expect_losses_of_one("mllama", folder, rows, ("--lora.vision", "false", *TOWER[2:]), slices)

    def expect_losses_of_one(self, name, folder, rows, options, *forms):
        """Of two ranks. In half of the steps one of them sees texts alone."""
        runs = []
        for number, (size, more) in enumerate(((1, ()), *((2, form) for form in forms))):
            out = f"{name}-{len(forms)}-{number}"
            arguments = self.train_arguments(
                folder, rows, *options, "--max_steps", 4, "--per_device_train_batch_size", 4 // size,
                "--gradient_accumulation_steps", 1, "--device", "cpu", *more, out=out,
            )  # fmt: skip
            code, err = self.launch(size, arguments)
            self.assertEqual(code, OK, err)
            runs.append(self.steps(self.folder / out))
        for run, form in zip(runs[1:], forms):
            for got, expected in zip(run, runs[0], strict=True):
                with self.subTest(name=name, options=options, form=form, step=got["step"]):
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=2e-5 * expected["loss"])
                    self.assertAlmostEqual(got["grad_norm"], expected["grad_norm"], delta=1e-3 * expected["grad_norm"])

    def test_refused_by_name(self):
        folder, _, rows, _ = self.family("qwen2_5_vl")

        def refused(error, words, *more, rows=rows):
            self.fail_with(error, words, "train", *self.train_arguments(folder, rows, *TOWER, *more))

        refused("option.conflict", ["lora.vision", "use_dora"], "--use_dora", "true")
        refused("option.unsupported", ["lora_dropout", "lora.vision"], "--lora_dropout", 0.1)
        refused("option.unsupported", ["serve_grid", "lora.vision"], "--serve_grid", "q8_0")
        texts = [{"messages": [{"role": "user", "content": "red"}, {"role": "assistant", "content": "blue"}]}] * 8
        refused("option.no-effect", "lora.vision", rows=write_rows(rows.with_name("texts.jsonl"), texts))


if __name__ == "__main__":
    main()
