"""Ranks of which each holds a part of what is trained (zero_stage 2 and 3, offload_optimizer), on the CPU: one process's losses and results, and what is said when one is lost."""

import os
import time
import unittest

from rank_support import Ranks
from support import (
    LLAMA,
    OK,
    QWEN3,
    RUNTIME,
    USAGE,
    floats,
    main,
    model,
    read_safetensors,
    write_rows,
    write_safetensors,
)

FAULT = os.environ.get("UNSLOTH_FAULT", "")
# Of more parameters than four slices have chunks of the norm.
WIDE = LLAMA | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4}
FULL = ["--finetuning_type", "full", "--load_in_4bit", "false"]
RATE = 0.001
TIED = WIDE | {"tie_word_embeddings": True}


class Sharded(Ranks):
    def run_ranks(self, size, out, config, *extra, rows=48, batch=8):
        given = dict(zip(extra, extra[1:]))
        stages = given.get("--pp_size", 1)
        copies = size // (given.get("--tp_size", 1) * given.get("--cp_size", 1) * stages)
        arguments = self.train_arguments(
            model(config), self.rows(rows), "--per_device_train_batch_size", max(1, batch // copies // stages),
            "--gradient_accumulation_steps", 2 * stages, "--max_steps", 12, "--learning_rate", RATE, *extra, out=out,
        )  # fmt: skip
        code, err = self.launch(size, arguments)
        self.assertEqual(code, OK, err)
        return self.steps(self.folder / out)

    def values(self, out, file):
        return {name: floats(data) for name, (_, _, data) in read_safetensors(self.folder / out / file).items()}

    def assert_same(self, steps, expected, note):
        """Sums over ranks and micro-batches are in another order: fp32's noise, after 12 steps of Adam."""
        self.assertEqual(len(steps), len(expected), note)
        for got, one in zip(steps, expected):
            self.assertEqual((got["tokens"], got["trained_tokens"]), (one["tokens"], one["trained_tokens"]), note)
            self.assertAlmostEqual(got["loss"], one["loss"], delta=1e-5 * one["loss"], msg=note)
            self.assertAlmostEqual(got["grad_norm"], one["grad_norm"], delta=2e-4 * one["grad_norm"], msg=note)

    def assert_same_values(self, out, other, file):
        """On the whole: Adam takes a step of the rate's size however small a gradient is, so that noise turns some."""
        expected, values = self.values(other, file), self.values(out, file)
        self.assertEqual(values.keys(), expected.keys())
        for name, tensor in values.items():
            squares = sum((a - b) ** 2 for a, b in zip(tensor, expected[name], strict=True))
            self.assertLess((squares / len(tensor)) ** 0.5, 0.05 * RATE, f"{out}: {name}")

    def check(self, config, file, extra, meshes):
        expected = self.run_ranks(1, "one", config, *extra)
        for size, *how in meshes:
            out = "_".join(map(str, (size, *how))).replace("--", "")
            self.assert_same(self.run_ranks(size, out, config, *extra, *how), expected, out)
            self.assert_same_values(out, "one", file)

    def test_full_fine_tuning(self):
        self.check(WIDE, "model.safetensors", FULL, (
            (2, "--zero_stage", 2), (4, "--zero_stage", 2), (2, "--zero_stage", 3), (4, "--zero_stage", 3),
            (1, "--offload_optimizer", "cpu"), (2, "--offload_optimizer", "cpu"),
            (4, "--zero_stage", 3, "--offload_optimizer", "cpu"), (4, "--zero_stage", 3, "--tp_size", 2),
        ))  # fmt: skip

    def test_tied_embeddings(self):
        self.check(TIED, "model.safetensors", [*FULL, "--logging.layer_norms", "true"], (
            (2, "--zero_stage", 3), (2, "--zero_stage", 2, "--offload_optimizer", "cpu"),
            (2, "--zero_stage", 1, "--tp_size", 2), (4, "--zero_stage", 2, "--cp_size", 2, "--tp_size", 2),
        ))  # fmt: skip

    def test_tied_embeddings_and_biases(self):
        qwen2 = TIED | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        self.check(qwen2, "model.safetensors", FULL, ((4, "--zero_stage", 3),))

    def test_lora_on_nf4(self):
        """Packed rows, dropout, modules_to_save; rows that do not come out even, so that ranks have passes without."""
        extra = ["--load_in_4bit", "true", "--lora.lora_dropout", "0.1", "--modules_to_save", "embed_tokens,lm_head",
                 "--data.packing", "true"]  # fmt: skip
        self.check(LLAMA, "adapter_model.safetensors", extra, (
            (2, "--zero_stage", 2), (4, "--zero_stage", 3), (2, "--zero_stage", 3),
            (4, "--zero_stage", 1, "--offload_optimizer", "cpu"),
        ))  # fmt: skip

    def test_slices_of_an_nf4_base_are_held_by_their_copies(self):
        """Each of two copies of the model, cut for two ranks, has every other layer of its slices."""
        extra = ["--load_in_4bit", "true", "--lora.lora_dropout", "0.1", "--modules_to_save", "lm_head"]
        self.check(WIDE | {"head_dim": 64}, "adapter_model.safetensors", extra, (
            (4, "--zero_stage", 3, "--tp_size", 2), (2, "--offload_optimizer", "cpu", "--tp_size", 2),
        ))  # fmt: skip

    def test_8_bit_products_of_the_backward_pass(self):
        """Sums in another order have other codes here and there."""
        extra = ["--load_in_4bit", "true", "--compute_dtype", "fp8_backward"]
        one = self.run_ranks(1, "one", WIDE, *extra)
        plain = self.run_ranks(1, "plain", WIDE, *extra[:2])
        steps = [self.run_ranks(2, f"stage{stage}", WIDE, *extra, "--zero_stage", stage) for stage in (2, 3)]
        self.assertEqual([s["loss"] for s in steps[0]], [s["loss"] for s in steps[1]])
        steps.append(self.run_ranks(2, "stages", WIDE, *extra, "--pp_size", 2))
        for losses in steps[1:]:
            for got, expected in zip(losses, one, strict=True):
                self.assertAlmostEqual(got["loss"], expected["loss"], delta=5e-5 * expected["loss"])
                self.assertAlmostEqual(got["grad_norm"], expected["grad_norm"], delta=1e-2 * expected["grad_norm"])
        # Of the same weights as yet: that the ranks' gradients are not those of products in dtype.
        coded, uncoded = one[0]["grad_norm"], plain[0]["grad_norm"]
        self.assertGreater(abs(uncoded - coded), 1e-3 * coded)
        for losses in steps:
            self.assertLess(abs(losses[0]["grad_norm"] - coded), 0.1 * abs(uncoded - coded))

    def test_dora_on_a_16bit_base(self):
        self.check(QWEN3, "adapter_model.safetensors", ["--use_dora", "true"], ((2, "--zero_stage", 3),))

    def test_stages_of_a_pipeline(self):
        """Each stage's ranks share what it trains, the embeddings' gradients at both ends."""
        self.check(TIED, "model.safetensors", [*FULL, "--logging.layer_norms", "true"], (
            (4, "--zero_stage", 3, "--pp_size", 2), (4, "--zero_stage", 2, "--pp_size", 2),
            (4, "--zero_stage", 3, "--pp_size", 2, "--pipeline_schedule", "interleaved"),
            (2, "--offload_optimizer", "cpu", "--pp_size", 2),
            (4, "--zero_stage", 3, "--offload_optimizer", "cpu", "--pp_size", 2),
        ))  # fmt: skip

    def test_a_stage_s_nf4_base_is_held_by_its_ranks(self):
        extra = ["--load_in_4bit", "true", "--lora.lora_dropout", "0.1", "--modules_to_save", "embed_tokens,lm_head",
                 "--data.packing", "true"]  # fmt: skip
        self.check(WIDE, "adapter_model.safetensors", extra, (
            (4, "--zero_stage", 3, "--pp_size", 2),
            (4, "--zero_stage", 3, "--pp_size", 2, "--pipeline_schedule", "interleaved"),
        ))  # fmt: skip

    def test_ranks_without_rows_and_evaluations_of_unequal_length(self):
        extra = [*FULL, "--val_size", 5, "--eval_steps", 4, "--eval_on_start", "true", "--save_steps", 4,
                 "--load_best_model_at_end", "true"]  # fmt: skip
        expected = self.run_ranks(1, "one", WIDE, *extra, rows=18, batch=4)
        for number, how in enumerate((("--zero_stage", 2), ("--zero_stage", 3), ("--zero_stage", 3, "--pp_size", 2))):
            steps = self.run_ranks(4, f"four{number}", WIDE, *extra, *how, rows=18, batch=4)
            self.assert_same(steps, expected, how)
            for got, one in zip(
                self.evaluations(self.folder / f"four{number}"), self.evaluations(self.folder / "one"), strict=True
            ):
                self.assertAlmostEqual(got["eval_loss"], one["eval_loss"], delta=1e-5 * one["eval_loss"])

    def test_a_run_goes_on_with_other_numbers_of_ranks(self):
        more = [*FULL, "--save_steps", 4, "--zero_stage", 3]
        whole = self.run_ranks(4, "four", WIDE, *more)
        checkpoint = self.folder / "four" / "checkpoint-4"
        self.assertEqual(
            sorted(file.name for file in checkpoint.glob("optimizer*")),
            [f"optimizer-{rank:05}-of-00004.safetensors" for rank in range(1, 5)],
        )
        again = self.run_ranks(4, "again", WIDE, *more, "--resume_from_checkpoint", checkpoint)
        self.assertEqual([(s["step"], s["loss"]) for s in again], [(s["step"], s["loss"]) for s in whole[4:]])
        result = "model.safetensors"
        self.assertEqual((self.folder / "again" / result).read_bytes(), (self.folder / "four" / result).read_bytes())
        self.assertEqual(
            (self.folder / "four" / "checkpoint-12" / result).read_bytes(),
            (self.folder / "four" / result).read_bytes(),
        )
        offloaded = ["--offload_optimizer", "cpu"]
        two = self.run_ranks(2, "two", WIDE, *more, *offloaded, "--tp_size", 2, "--resume_from_checkpoint", checkpoint)
        one = self.run_ranks(1, "one", WIDE, *FULL, "--resume_from_checkpoint", self.folder / "two" / "checkpoint-8")
        self.assert_same(two, whole[4:], "two")
        self.assert_same(one, whole[8:], "one")

    def test_stages_go_on_exactly_and_elsewhere(self):
        more = [*FULL, "--save_steps", 4, "--zero_stage", 3]
        staged = [*more, "--pp_size", 2]
        whole = self.run_ranks(4, "staged", TIED, *staged)
        checkpoints = {step: self.folder / "staged" / f"checkpoint-{step}" for step in (4, 8)}
        parts = sorted(path.stat().st_size for path in checkpoints[4].glob("optimizer-*-of-00004.safetensors"))
        self.assertEqual(len(parts), 4)  # two halves of each stage, the tied embeddings in both
        self.assertLess(parts[-1], 0.35 * sum(parts))
        again = self.run_ranks(4, "again", TIED, *staged, "--resume_from_checkpoint", checkpoints[4])
        self.assertEqual([(s["step"], s["loss"]) for s in again], [(s["step"], s["loss"]) for s in whole[4:]])
        result = "model.safetensors"
        self.assertEqual((self.folder / "again" / result).read_bytes(), (self.folder / "staged" / result).read_bytes())
        two = self.run_ranks(2, "two", TIED, *more, "--resume_from_checkpoint", checkpoints[4])
        self.assert_same(two, whole[4:], "two")
        offloaded = ["--offload_optimizer", "cpu", "--resume_from_checkpoint", self.folder / "two" / "checkpoint-8"]
        self.assert_same(self.run_ranks(4, "offloaded", TIED, *staged, *offloaded), whole[8:], "offloaded")

    # --- faults ------------------------------------------------------------------------------------------------------

    FORMS = (("--zero_stage", 2), ("--zero_stage", 3, "--offload_optimizer", "cpu"))

    def start(self, out, form, *more):
        arguments = self.train_arguments(
            model(WIDE), self.rows(32), *FULL, *form, "--per_device_train_batch_size", 2,
            "--gradient_accumulation_steps", 1, "--max_steps", 1000000, *more, out=out,
        )  # fmt: skip
        ranks = self.start_ranks(lambda rank: arguments)
        return self.wait_for_steps(out, ranks)

    def test_a_killed_rank_is_named(self):
        for number, form in enumerate(self.FORMS):
            ranks = self.start(f"killed{number}", form, "--ddp_timeout", 3)
            ranks[1].kill()
            named = r"rank 1 .*(no heartbeat|did not come to (the \w+|.* of step|.* in step))"
            self.expect_ended_by(ranks[0], named, 20)

    def test_a_stopped_rank_is_named(self):
        ranks = self.start("stopped", self.FORMS[1], "--ddp_timeout", 3)
        self.expect_stopped_rank_named(ranks)

    def test_a_signal_to_one_rank_stops_and_saves_all(self):
        for number, form in enumerate(self.FORMS):
            ranks = self.start(f"asked{number}", form, "--save_steps", 1000000)
            self.expect_all_save_when_one_is_asked_to_stop(ranks)
            self.assertTrue((self.folder / f"asked{number}" / "model.safetensors").exists())
            self.assertEqual(len(list((self.folder / f"asked{number}").glob("checkpoint-*"))), 1)

    @unittest.skipUnless(FAULT, "UNSLOTH_FAULT does not name the preloaded library")
    def test_a_full_disk_under_one_rank_s_part_leaves_the_checkpoint_out(self):
        """The first rank is told at once, though there is no room for the reason either."""
        arguments = self.train_arguments(
            model(WIDE), self.rows(32), *FULL, *self.FORMS[1], "--save_steps", 2, "--max_steps", 3, out="full",
        )  # fmt: skip
        fault = {"LD_PRELOAD": FAULT, "FAULT_UNDER": "optimizer-00002", "FAULT_KIND": "ENOSPC", "FAULT_AT": 2}
        ranks = self.start_ranks(lambda rank: arguments, environments={1: fault})
        began = time.monotonic()
        errors = [self.expect_code(rank, OK) for rank in ranks]
        self.assertIn("checkpoint-2 was not saved: rank 1 could not write its part", errors[0])
        self.assertIn("No space left on device", errors[1])
        self.assertLess(time.monotonic() - began, 60)  # ddp_timeout is longer
        self.assertTrue((self.folder / "full" / "model.safetensors").exists())

    def test_a_value_that_is_not_finite_on_one_rank_ends_all(self):
        """Only one rank's rows have the token whose embedding is not finite."""
        poison = 5
        folder = self.copied_model(model(WIDE))
        file = folder / "model.safetensors"
        tensors = read_safetensors(file)
        kind, shape, data = tensors["model.embed_tokens.weight"]
        row = b"\x00\x00\x80\x7f" * shape[1]
        tensors["model.embed_tokens.weight"] = (
            kind,
            shape,
            data[: poison * len(row)] + row + data[(poison + 1) * len(row) :],
        )
        write_safetensors(file, tensors)
        rows = write_rows(
            self.folder / "poison.jsonl",
            [{"input_ids": [poison if i == 3 else 7 + (i + t) % 50 for t in range(9)]} for i in range(8)],
        )
        for number, form in enumerate(self.FORMS):
            code, err = self.launch(2, self.train_arguments(
                folder, rows, *FULL, *form, "--per_device_train_batch_size", 1, "--gradient_accumulation_steps", 1,
                "--shuffle", "false", "--max_steps", 4, out=f"poisoned{number}",
            ))  # fmt: skip
            self.assertEqual(code, RUNTIME, err)
            self.assertRegex(err, r"step 2\b")

    def test_what_does_not_go_together_is_refused(self):
        prompts = write_rows(self.folder / "prompts.jsonl", [{"prompt": "a"}])
        arguments = self.arguments("refused", 2, 1, "--zero_stage", 3, "--sample_prompts", prompts)
        code, err = self.launch(2, arguments)
        self.assertEqual(code, USAGE, err)
        self.assertIn("sample_prompts cannot be combined with distributed.zero_stage 3", err)


if __name__ == "__main__":
    main()
