"""Rows with images: a small Qwen3-VL, Qwen2.5-VL and Llama 3.2 Vision are trained, scored and merged from files alone, as
transformers and PEFT did; what does not go with images is refused by name."""

import json
import lzma
import shutil

from support import GOLDEN, LEGAL_BASE, EndToEnd, main, read_rows, write_rows

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "mllama")


def plain_copy(source, target):
    """The files of a folder, .xz files expanded."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".xz":
            (target / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        elif file.is_file():
            shutil.copy(file, target)
    return target


class Vision(EndToEnd):
    def family(self, name):
        """Its model with a tokenizer, the adapter that a reference run began with, that run's rows and its metrics."""
        root = self.folder / name
        plain_copy(GOLDEN / "families" / name / "model", root / "model")
        plain_copy(GOLDEN / "images" / name / "saved", root / "model")
        adapter = plain_copy(GOLDEN / "families" / name / "lora" / "initial", root / "adapter")
        lora = plain_copy(GOLDEN / "families" / name / "lora", root)
        shutil.copytree(GOLDEN / "images" / "images", root / "images")
        return root / "model", adapter, lora / "rows.jsonl", json.loads((lora / "metrics.json").read_text())

    def reference_run(self, folder, adapter, rows, *more, out="out"):
        return self.train(
            folder, rows, "--adapter_name_or_path", adapter, "--per_device_train_batch_size", 2,
            "--gradient_accumulation_steps", 2, "--max_steps", 8, "--learning_rate", 0.001, "--lr_scheduler_type",
            "cosine", "--warmup_steps", 2, "--weight_decay", 0.01, "--data.shuffle", "false", "--optim", "adamw_torch",
            *more, out=out,
        )  # fmt: skip

    def test_a_run_on_images_is_the_references(self):
        for name in FAMILIES:
            folder, adapter, rows, metrics = self.family(name)
            out = self.reference_run(
                folder, adapter, rows, "--data.eval_file", rows, "--eval_steps", 4, out=name + "-out"
            )
            steps = self.steps(out)
            self.assertEqual(len(steps), 8)
            for got, expected in zip(steps, metrics["steps"]):
                self.assertAlmostEqual(got["loss"], expected["loss"], delta=metrics["tolerance"]["loss_max_abs"])
            first, last = self.evaluations(out)
            self.assertLess(last["eval_loss"], first["eval_loss"])

    def test_scores_and_merges_see_the_images(self):
        for name in ("qwen3_vl", "mllama"):
            with self.subTest(name):
                self.score_and_merge(name)

    def score_and_merge(self, name):
        folder, adapter, rows, _ = self.family(name)
        with_adapter = self.score(folder, rows, "--adapter_name_or_path", adapter)
        merged = self.folder / name / "merged"
        self.succeed(
            "merge", "--adapter", adapter, "--base", folder, "--out", merged, "--dtype", "fp32", "--verify", rows
        )
        self.assertTrue((merged / "processor_config.json").is_file())
        self.assertTrue((merged / "chat_template.jinja").is_file())
        for one, other in zip(with_adapter, self.score(merged, rows, name="merged.jsonl"), strict=True):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-4)
        # Images change places: the rows' losses tell.
        given = read_rows(rows)[:2]
        images = [row["images"] for row in given]
        swapped = [row | {"images": other} for row, other in zip(given, images[::-1])]
        swapped = self.score(merged, write_rows(rows.with_name("swapped.jsonl"), swapped), name="swapped.jsonl")
        for one, other in zip(with_adapter, swapped):
            self.assertGreater(abs(one["loss"] - other["loss"]), 1e-3)

    def test_refused_by_name(self):
        folder, adapter, rows, _ = self.family("qwen3_vl")
        arguments = self.train_arguments(folder, rows, "--max_steps", 1)
        self.fail_with(
            "option.unsupported", ["eval_metric", "images"], "train", *arguments, "--data.eval_file", rows,
            "--eval_steps", 1, "--eval_metric", "exact_match",
        )  # fmt: skip
        self.fail_with("option.unsupported", "lora.vision", "train", *arguments, "--lora.vision", "true")
        self.fail_with(
            "image.text-model", "image", "train", *self.train_arguments(LEGAL_BASE, rows, "--data.template", "chatml")
        )
        self.fail_with(
            "export.unsupported", "sees images", "export", "gguf", "--model", folder, "--out", self.folder / "m.gguf"
        )
        folder, adapter, rows, _ = self.family("mllama")
        arguments = self.train_arguments(folder, rows, "--max_steps", 1)
        self.fail_with("option.unsupported", "lora.use_dora", "train", *arguments, "--use_dora", "true")
        self.fail_with(
            "export.unsupported", "sees images", "export", "gguf", "--model", folder, "--out", self.folder / "l.gguf"
        )


if __name__ == "__main__":
    main()
