"""The program on two and four GPUs: data parallel, and a model that ranks share.

Skipped where there are too few.
"""

import json
import math
import sys
import unittest

from gpu_support import ADAPTER, HYBRID, ON_HOST, OnGpu, gpus, ids
from support import OK, RUNTIME, SIGTERM_SAVED, main, model, write_rows


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoRanks(OnGpu):
    RANKS = 2

    def check_as_alone(self, tolerance, *extra):
        """RANKS ranks with a row each against one process with as many rows."""
        words = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch", *extra]
        self.succeed(*self.arguments("alone", *words, "--per_device_train_batch_size", str(self.RANKS)))
        code, err = self.launch(self.RANKS, *self.arguments("together", *words, "--per_device_train_batch_size", "1"))
        self.assertEqual(code, OK, err)
        alone, together = (self.steps(self.folder / out) for out in ("alone", "together"))
        self.assertEqual(len(together), 6)
        for got, expected in zip(together, alone):
            self.assertEqual((got["tokens"], got["trained_tokens"]), (expected["tokens"], expected["trained_tokens"]))
            self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
            self.assertAlmostEqual(
                got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
            )
        return err

    def test_adapters(self):
        self.check_as_alone(1e-4, "--dtype", "float32")

    def check_split(self, kind, dtype, tolerance):
        """Two micro-batches a step, so that sums come back to what left before."""
        words = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch", "--dtype", dtype, *kind]
        words += ["--gradient_accumulation_steps", "2"]
        self.succeed(*self.arguments("alone", *words, "--per_device_train_batch_size", str(self.RANKS)))
        alone = self.steps(self.folder / "alone")
        on_host = ["--offload_optimizer", "cpu"]
        self.succeed(*self.arguments("host", *words, *on_host, "--per_device_train_batch_size", str(self.RANKS)))
        runs = {"one process on the host": self.folder / "host"}
        for number, form in enumerate(
            (["--zero_stage", "2"], ["--zero_stage", "3"], ["--zero_stage", "3", *on_host], on_host)
        ):
            out = f"form{number}"
            code, err = self.launch(
                self.RANKS,
                *self.arguments(out, *words, *form, "--per_device_train_batch_size", "1", "--save_steps", "3"),
            )
            self.assertEqual(code, OK, f"{form}: {err}")
            runs[" ".join(form)] = self.folder / out
        for name, folder in runs.items():
            for got, expected in zip(self.steps(folder), alone, strict=True):
                self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"], msg=name)
                self.assertAlmostEqual(
                    got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"], msg=name
                )
        code, err = self.launch(
            self.RANKS, *self.arguments("rest", *words, "--zero_stage", "3", "--per_device_train_batch_size", "1",
                                        "--resume_from_checkpoint", self.folder / "form1" / "checkpoint-3"),
        )  # fmt: skip
        self.assertEqual(code, OK, err)
        whole = self.steps(self.folder / "form1")[3:]
        self.assertEqual([s["loss"] for s in self.steps(self.folder / "rest")], [s["loss"] for s in whole])

    def test_full_training_is_split(self):
        self.check_split(["--finetuning_type", "full"], "float32", 1e-4)

    def test_full_training_in_bfloat16_is_split(self):
        self.check_split(["--finetuning_type", "full"], "bfloat16", 5e-3)

    def test_adapters_are_split(self):
        self.check_split(["--modules_to_save", "lm_head"], "float32", 1e-4)

    def test_buckets_beside_the_backward_pass(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--ddp_bucket_cap_mb", "1")

    def test_half_precision(self):
        self.check_as_alone(5e-3, "--dtype", "float16")

    def test_full_training(self):
        self.check_as_alone(1e-3, "--dtype", "float32", "--finetuning_type", "full")

    def test_packing(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--packing", "true", "--max_seq_length", "96")

    def test_offloaded_activations(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--gradient_checkpointing", "mlp+offload")

    def test_layers_in_host_memory(self):
        err = self.check_as_alone(1e-4, "--dtype", "float32", "--device_map", ON_HOST)
        self.assertIn("in host memory, once for all processes with this base", err)
        self.assertNotIn("could share is this one's own", err)

    def test_going_on(self):
        """Bit for bit, with dropout and 8-bit moments."""
        words = ["--lora.lora_dropout", "0.1", "--r", "16", "--max_steps", "8"]
        for name, more in (("adapter", []), ("full", ["--finetuning_type", "full"])):
            if more:
                words = ["--max_steps", "8"]
            file = "model.safetensors" if more else ADAPTER
            with self.subTest(name):
                for out, extra in (
                    (f"{name}-whole", ["--save_steps", "3"]),
                    (f"{name}-rest", ["--resume_from_checkpoint", self.folder / f"{name}-whole" / "checkpoint-3"]),
                ):
                    code, err = self.launch(self.RANKS, *self.arguments(out, *words, *more, *extra))
                    self.assertEqual(code, OK, err)
                whole, rest = (self.folder / f"{name}-{part}" for part in ("whole", "rest"))
                self.assertEqual(
                    [(s["loss"], s["grad_norm"]) for s in self.steps(rest)],
                    [(s["loss"], s["grad_norm"]) for s in self.steps(whole)[3:]],
                )
                self.assertEqual((rest / file).read_bytes(), (whole / file).read_bytes())

    def test_one_rank_s_nan_stops_all_before_the_update(self):
        base = self.poisoned(math.nan)
        rows = self.poison_row(3 * self.RANKS + 1)  # of the second rank in step 4
        words = ["--lr_scheduler_type", "constant", "--per_device_train_batch_size", "1", "--logging_steps", "1"]
        code, err = self.launch(self.RANKS, *self.arguments("good", *words, "--max_steps", "3", base=base, rows=rows))
        self.assertEqual(code, OK, err)
        code, err = self.launch(
            self.RANKS, *self.arguments("spoiled", *words, "--max_steps", "8", base=base, rows=rows)
        )
        self.assertEqual(code, RUNTIME, err)
        self.assertIn("step 4: the", err)
        self.assertRegex(err, r"Rank 1: First seen at: the embeddings")
        self.assertEqual(
            (self.folder / "spoiled" / ADAPTER).read_bytes(), (self.folder / "good" / ADAPTER).read_bytes()
        )
        self.assertEqual(len(self.steps(self.folder / "spoiled")), 3)

    def test_one_rank_s_overflow_is_skipped_by_all(self):
        """float16: the scale is halved, and the run goes on as one process would."""
        base = self.poisoned(math.inf)
        rows = self.poison_row(2 * self.RANKS + 1, count=8 * self.RANKS)
        words = [
            "--dtype",
            "float16",
            "--max_steps",
            "8",
            "--learning_rate",
            "0.001",
            "--lr_scheduler_type",
            "constant",
        ]
        losses = []
        for ranks in (1, self.RANKS):
            out = f"over{ranks}"
            arguments = self.arguments(
                out, *words, "--per_device_train_batch_size", str(self.RANKS // ranks), base=base, rows=rows
            )
            code, err = self.launch(ranks, *arguments)
            self.assertEqual(code, OK, err)
            self.assertIn("step 3: gradients overflowed", err)
            self.assertNotIn("step 4: gradients overflowed", err)
            losses.append([s["loss"] for s in self.steps(self.folder / out)])
        self.assertEqual(len(losses[0]), 8)
        for step, (alone, together) in enumerate(zip(*losses), 1):
            if step == 3:
                continue
            self.assertAlmostEqual(together, alone, delta=5e-3 * alone, msg=f"step {step}")

    def test_a_signal_to_one_rank(self):
        process = self.start(
            "launch", "--nproc_per_node", str(self.RANKS), *self.arguments("out", "--max_steps", "1000000")
        )
        for line in process.stderr:
            if "step 3/" in line:
                break
        process.terminate()
        rest = process.stderr.read()
        self.assertEqual(process.wait(), SIGTERM_SAVED, rest)
        self.assertTrue((self.folder / "out" / ADAPTER).exists())


class SharedModel(OnGpu):
    """GPUs that share a model, against one with the same micro-batches."""

    RANKS = 2
    WORDS = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch",
             "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4"]  # fmt: skip

    def words(self):
        return self.WORDS

    def check_meshes(self, tolerance, meshes, *extra, base=None):
        self.succeed(*self.arguments("alone", *self.WORDS, *extra, base=base))
        alone = self.steps(self.folder / "alone")
        for name, mesh in meshes.items():
            with self.subTest(name):
                code, err = self.launch(self.RANKS, *self.arguments(name, *self.words(), *mesh, *extra, base=base))
                self.assertEqual(code, OK, err)
                together = self.steps(self.folder / name)
                self.assertEqual(len(together), 6)
                for got, expected in zip(together, alone):
                    self.assertEqual(got["tokens"], expected["tokens"])
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
                    self.assertAlmostEqual(
                        got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
                    )


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoSlices(SharedModel):
    """Tensor parallel. Rows' lengths are such that many micro-batches have an odd number of tokens."""

    def check_as_alone(self, tolerance, *extra, base=None):
        self.check_meshes(tolerance, {"slices": ["--tp_size", "2"]}, *extra, base=base)

    def test_adapters(self):
        self.check_as_alone(
            1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--neftune_noise_alpha", "5",
            "--modules_to_save", "embed_tokens,lm_head",
        )  # fmt: skip

    def test_half_precision(self):
        self.check_as_alone(2e-3, "--dtype", "bfloat16")

    def test_dora(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--use_dora", "true")

    def test_full_training_of_what_is_computed_again(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--gradient_checkpointing", "full")

    def test_hybrid_layers(self):
        base = model(HYBRID, dtype="bfloat16")
        self.check_as_alone(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", base=base)

    def test_hybrid_layers_in_half_precision(self):
        self.check_as_alone(2e-3, "--dtype", "bfloat16", base=model(HYBRID, dtype="bfloat16"))

    def test_hybrid_layers_trained_in_full(self):
        more = ["--finetuning_type", "full", "--gradient_checkpointing", "full"]
        self.check_as_alone(1e-4, "--dtype", "float32", *more, base=model(HYBRID, dtype="bfloat16"))

    def test_offloaded_activations(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--gradient_checkpointing", "mlp+offload")

    def test_products_in_fp8(self):
        self.check_as_alone(2e-2, "--dtype", "bfloat16", "--compute_dtype", "fp8_both")

    def test_products_for_dx_in_fp8(self):
        self.check_as_alone(2e-2, "--dtype", "bfloat16", "--compute_dtype", "fp8_backward")

    def test_preferences(self):
        pairs = [
            {"prompt": ids(r, 3 + r % 4), "chosen": ids(r + 100, 4 + r % 5), "rejected": ids(r + 200, 5 + r % 3)}
            for r in range(64)
        ]
        self.data = write_rows(self.folder / "pairs.jsonl", pairs)
        self.check_as_alone(1e-4, "--dtype", "float32", "--objective", "dpo")


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoStages(SharedModel):
    PIPELINE = ["--pp_size", "2"]

    def check_as_alone(self, tolerance, *extra):
        """Through two stages in either order."""
        schedules = {s: [*self.PIPELINE, "--pipeline_schedule", s] for s in ("1f1b", "interleaved")}
        self.check_meshes(tolerance, schedules, *extra)

    def test_adapters(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1")

    def test_half_precision_over_rows_of_equal_length(self):
        """Not recorded as CUDA graphs, as one GPU's passes are."""
        self.data = self.write([1024] * 32)
        self.check_as_alone(1e-3, "--dtype", "bfloat16")

    def test_full_training(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full")

    def test_full_training_with_the_optimizer_on_the_host(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--offload_optimizer", "cpu")

    def test_going_on(self):
        """Bit for bit, with dropout and 8-bit moments."""
        words = ["--lora.lora_dropout", "0.1", "--r", "64", "--max_steps", "6", *self.PIPELINE]
        words += ["--gradient_accumulation_steps", "4", "--per_device_train_batch_size", "1"]
        for out, extra in (
            ("whole", ["--save_steps", "3"]),
            ("rest", ["--resume_from_checkpoint", self.folder / "whole" / "checkpoint-3"]),
        ):
            code, err = self.launch(2, *self.arguments(out, *words, *extra))
            self.assertEqual(code, OK, err)
        whole, rest = self.folder / "whole", self.folder / "rest"
        self.assertEqual(
            [(s["loss"], s["grad_norm"]) for s in self.steps(rest)],
            [(s["loss"], s["grad_norm"]) for s in self.steps(whole)[3:]],
        )
        self.assertEqual((rest / ADAPTER).read_bytes(), (whole / ADAPTER).read_bytes())

    def test_device_map_starts_a_process_a_gpu(self):
        words = ["--dtype", "float32", *self.WORDS]
        self.succeed(*self.arguments("alone", *words))
        alone = self.steps(self.folder / "alone")
        own = json.dumps({"model.embed_tokens": 0, "model.layers.0-1": 0, "model.layers.2-5": 1, "lm_head": 1})
        for name, device_map, stages in (
            ("own", own, "layers 0 to 1 | 2 to 5;"),
            ("balanced", "balanced", "2 stages of layers 0 to"),
            ("sequential", "sequential", "layers 0 to 4 | 5 to 5;"),
        ):
            with self.subTest(name):
                err = self.succeed(*self.arguments(name, *words, "--device_map", device_map)).err
                self.assertIn("2 GPUs have the layers in turn, a process each", err)
                self.assertIn(stages, err)
                for got, expected in zip(self.steps(self.folder / name), alone, strict=True):
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=1e-5 * expected["loss"])


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoContexts(OnGpu):
    WORDS = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch",
             "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"]  # fmt: skip

    def check_as_alone(self, tolerance, *extra):
        """The same rows on one GPU, and cut over two."""
        self.succeed(*self.arguments("alone", *self.WORDS, *extra))
        code, err = self.launch(2, *self.arguments("both", *self.WORDS, "--cp_size", "2", *extra))
        self.assertEqual(code, OK, err)
        self.assertNotIn("slower portable kernels", err)
        alone, both = (self.steps(self.folder / out) for out in ("alone", "both"))
        self.assertEqual(len(both), 6)
        for got, expected in zip(both, alone):
            self.assertEqual(got["tokens"], expected["tokens"])
            self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
            self.assertAlmostEqual(
                got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
            )

    def test_adapters(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--packing", "true")

    def test_half_precision(self):
        for keep in ("none", "attention", "full"):
            with self.subTest(keep):
                self.check_as_alone(1e-3, "--dtype", "bfloat16", "--gradient_checkpointing", keep, "--overwrite_output_dir", "true")  # fmt: skip

    def test_full_training(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--zero_stage", "2")


@unittest.skipUnless(gpus(4), "needs four GPUs")
class FourStages(SharedModel):
    """Two stages, each of two ranks that share what it trains and its frozen base."""

    RANKS = 4

    def words(self):
        return [*self.WORDS[:-1], "2"]

    def check_forms(self, tolerance, *extra):
        forms = (["--zero_stage", "2"], ["--zero_stage", "3"], ["--zero_stage", "3", "--offload_optimizer", "cpu"],
                 ["--zero_stage", "3", "--pipeline_schedule", "interleaved"])  # fmt: skip
        meshes = {f"form{number}": ["--pp_size", "2", *form] for number, form in enumerate(forms)}
        self.check_meshes(tolerance, meshes, *extra)

    def test_full_training(self):
        self.check_forms(1e-4, "--dtype", "float32", "--finetuning_type", "full")

    def test_adapters(self):
        self.check_forms(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--modules_to_save", "lm_head")


@unittest.skipUnless(gpus(4), "needs four GPUs")
class FourRanks(TwoRanks):
    RANKS = 4


if __name__ == "__main__":
    if not gpus(2):
        print("fewer than two GPUs")
        sys.exit(77)
    main()
