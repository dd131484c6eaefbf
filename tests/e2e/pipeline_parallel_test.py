"""Ranks that have a model's layers in turn, on the CPU: the same losses and adapters as one process, checkpoints that go on anywhere, and what is said when one is lost."""

import os
import unittest

from rank_support import SharedModel
from support import (
    LLAMA,
    OK,
    QWEN3,
    RUNTIME,
    USAGE,
    environment,
    main,
    model,
    read_safetensors,
    run,
    write_rows,
)

FAULT = os.environ.get("UNSLOTH_FAULT", "")


class PipelineParallel(SharedModel):
    def pp(self, size, *arguments):
        return [*arguments, "--pp_size", size]

    def test_meshes_give_the_same_losses_and_adapters(self):
        """Packed rows and dropout; the last of an epoch's steps has fewer micro-batches."""
        more = ["--val_size", 5, "--eval_on_start", "true", "--packing", "true", "--max_seq_length", 24]
        self.run_ranks(1, self.arguments("one", 1, 4, *more))
        for processes, accumulation, mesh in (
            (2, 4, ["--pp_size", 2]),
            (2, 4, ["--pp_size", 2, "--pipeline_micro_batches", 1]),
            (4, 4, ["--pp_size", 2, "--tp_size", 2]),
            (4, 2, ["--pp_size", 2]),
        ):
            with self.subTest(processes=processes, mesh=mesh):
                out = "w" + "".join(map(str, [processes, *mesh])).replace("--", "_")
                self.run_ranks(processes, self.arguments(out, 1, accumulation, *more, *mesh))
                self.assert_same_course(out, "one")
                self.assert_same_values(out, "one")

    def test_full_fine_tuning_of_a_tied_model_saves_the_whole_model(self):
        folder, rows = model(QWEN3), self.rows(24)
        more = ["--finetuning_type", "full", "--learning_rate", "0.001", "--max_steps", 4,
                "--per_device_train_batch_size", 1, "--gradient_accumulation_steps", 4]  # fmt: skip
        self.run_ranks(1, self.train_arguments(folder, rows, *more, out="one"))
        self.run_ranks(2, self.train_arguments(folder, rows, *self.pp(2, *more), out="two"))
        self.assert_same_course("two", "one")
        self.assert_same_values("two", "one", "model.safetensors", delta=1e-4)

    def test_the_ranks_of_a_stage_share_the_optimizer(self):
        """The embeddings lie at both ends of the pipeline; checkpoints are those of one process."""
        folder, rows = model(QWEN3), self.rows(24)
        more = ["--finetuning_type", "full", "--learning_rate", "0.001", "--max_steps", 4, "--save_steps", 2,
                "--per_device_train_batch_size", 1, "--logging.layer_norms", "true"]  # fmt: skip
        shared = [*self.pp(2, *more), "--zero_stage", 1, "--gradient_accumulation_steps", 2]
        self.run_ranks(1, self.train_arguments(folder, rows, *more, "--gradient_accumulation_steps", 4, out="one"))
        self.run_ranks(4, self.train_arguments(folder, rows, *shared, out="four"))
        self.assert_same_course("four", "one")
        self.assert_same_values("four", "one", "model.safetensors", delta=1e-4)
        steps, expected = self.steps(self.folder / "four"), self.steps(self.folder / "one")
        for got, one in zip(steps, expected):
            for key in [key for key in one if key.startswith("grad_norm/")]:
                self.assertAlmostEqual(got[key], one[key], delta=5e-4 * one[key], msg=key)
        going_on = ["--resume_from_checkpoint", self.folder / "four" / "checkpoint-2"]
        self.run_ranks(4, self.train_arguments(folder, rows, *shared, *going_on, out="again"))
        self.assertEqual([s["loss"] for s in self.steps(self.folder / "again")], [s["loss"] for s in steps[2:]])
        name = "model.safetensors"
        self.assertEqual((self.folder / "again" / name).read_bytes(), (self.folder / "four" / name).read_bytes())

    def test_preferences(self):
        """kto measures a micro-batch over the ranks that have it: data-parallel ones have parts of its rows."""
        for objective, processes in (("dpo", 2), ("kto", 2), ("kto", 4)):
            with self.subTest(objective=objective, processes=processes):
                file = self.preference_rows(objective, 14)
                more = ["--objective", objective, "--gradient_accumulation_steps", 2, "--max_steps", 4]
                if processes == 2:  # evaluations measure each rank's batches alone
                    more += ["--val_size", 3]
                for ranks, batch, mesh in ((1, processes, []), (processes, 2, ["--pp_size", 2])):
                    out = f"{objective}_{processes}_on_{ranks}"
                    size = ["--per_device_train_batch_size", batch]
                    self.run_ranks(ranks, self.train_arguments(model(LLAMA), file, *more, *size, *mesh, out=out))
                self.assert_same_course(f"{objective}_{processes}_on_{processes}", f"{objective}_{processes}_on_1")

    def test_a_teacher_s_file(self):
        """A model as the teacher stands beside a whole student."""
        rows = self.rows(16)
        common = ["--lora.r", 8, "--val_size", 3, "--gradient_accumulation_steps", 2, "--max_steps", 4,
                  "--per_device_train_batch_size", 2]  # fmt: skip
        teacher, file = model(LLAMA | {"num_hidden_layers": 4}, seed=7), self.folder / "teacher.safetensors"
        score = [
            "--model.path",
            teacher,
            "--train_file",
            rows,
            "--val_size",
            3,
            "--device",
            "cpu",
            "--dtype",
            "float32",
        ]
        written = run("score", *score, "--load_in_4bit", "false", "--top_k", 8, "--out", file)
        self.assertEqual(written.code, OK, written.err)
        distill = [*common, "--objective", "distill", "--distill.teacher", file]
        for ranks, mesh in ((1, []), (2, ["--pp_size", 2])):
            self.run_ranks(ranks, self.train_arguments(model(LLAMA), rows, *distill, *mesh, out=f"taught{ranks}"))
        self.assert_same_course("taught2", "taught1")
        for name in ("divergence", "nll_loss"):
            for got, one in zip(self.steps(self.folder / "taught2"), self.steps(self.folder / "taught1"), strict=True):
                self.assertAlmostEqual(got[name], one[name], delta=2e-5 * one[name], msg=name)

    def test_a_run_goes_on_exactly_and_with_another_mesh(self):
        for optim in ("adamw_torch", "adamw_8bit"):
            more = ["--optim", optim, "--lora.r", 64, "--save_steps", 3]
            one, two = f"one_{optim}", f"two_{optim}"
            self.run_ranks(1, self.arguments(one, 1, 4, *more))
            self.run_ranks(2, self.arguments(two, 1, 4, *self.pp(2, *more)))
            for processes, mesh, source in (
                (2, ["--pp_size", 2], two),
                (1, [], two),
                (2, ["--pp_size", 2], one),
                (2, ["--tp_size", 2], two),
            ):
                with self.subTest(optim=optim, processes=processes, mesh=mesh, source=source):
                    out = f"{source}_on_{''.join(map(str, mesh)).replace('--', '_')}"
                    checkpoint = self.folder / source / "checkpoint-3"
                    self.run_ranks(
                        processes,
                        self.arguments(out, 1, 4, "--resume_from_checkpoint", checkpoint, *more, *mesh),
                    )
                    exact = source == two and mesh == ["--pp_size", 2]
                    expected = self.steps(self.folder / (two if exact else one))[3:]
                    for got, other in zip(self.steps(self.folder / out), expected, strict=True):
                        self.assertEqual(got["step"], other["step"])
                        # Codes of 8 bits carry rounding on.
                        delta = 0 if exact else (2e-5 if optim == "adamw_torch" else 1e-3) * other["loss"]
                        self.assertAlmostEqual(got["loss"], other["loss"], delta=delta)
                    if exact:
                        name = "adapter_model.safetensors"
                        found = read_safetensors(self.folder / out / name)
                        for key, entry in read_safetensors(self.folder / two / name).items():
                            self.assertEqual(found[key], entry, key)

    def test_device_map_names_each_stage_s_layers(self):
        """Of as many GPUs, for each of which a process is started; without any, on the CPU."""
        folder = model(LLAMA | {"num_hidden_layers": 4})
        more = ["--per_device_train_batch_size", 1, "--gradient_accumulation_steps", 4, "--max_steps", 3]
        self.run_ranks(1, self.train_arguments(folder, self.rows(16), *more, out="one"))
        device_map = '{"model.embed_tokens": 0, "model.layers": 0, "model.layers.3": 1, "lm_head": 1}'
        words = ["--device", "auto", "--device_map", device_map]
        arguments = self.train_arguments(folder, self.rows(16), *more, *words, out="two")
        err = self.succeed("train", *arguments, env=environment(CUDA_VISIBLE_DEVICES="")).err
        self.assertIn("2 GPUs have the layers in turn, a process each", err)
        self.assertIn("2 stages of layers 0 to 2 | 3 to 3;", err)
        self.assert_same_course("two", "one")

    def test_the_best_checkpoint_is_loaded_by_all_stages(self):
        """The highest loss counts as the best, which is the first evaluation's."""
        more = ["--val_size", 5, "--eval_steps", 2, "--save_steps", 2, "--load_best_model_at_end", "true",
                "--greater_is_better", "true"]  # fmt: skip
        err = self.run_ranks(2, self.arguments("two", 1, 4, *self.pp(2, *more)))
        self.assertIn("the result is that of step 2", err)
        name = "adapter_model.safetensors"
        found, last = (read_safetensors(self.folder / "two" / at / name) for at in ("", "checkpoint-6"))
        for key, entry in read_safetensors(self.folder / "two" / "checkpoint-2" / name).items():
            self.assertEqual(found[key], entry, key)
            self.assertNotEqual(last[key], entry, key)

    @unittest.skipUnless(FAULT, "UNSLOTH_FAULT does not name the preloaded library")
    def test_room_is_looked_for_for_what_both_ends_write(self):
        """Tied embeddings are most of this model. As much room as a run took is less than is asked for, with texts."""
        more = ["--finetuning_type", "full", "--max_steps", 1, "--per_device_train_batch_size", 1, "--pp_size", 2]
        folder, rows = model(QWEN3 | {"vocab_size": 16384}), self.rows(4)
        self.run_ranks(2, self.train_arguments(folder, rows, *more, out="two"))
        taken = sum(file.stat().st_size for file in (self.folder / "two").rglob("*") if file.is_file())
        fault = {"LD_PRELOAD": FAULT, "FAULT_FREE": taken, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        arguments = self.train_arguments(folder, rows, *more, out="full")
        ranks = self.start_ranks(lambda rank: arguments, environments={0: fault})
        for rank in ranks:
            self.assertIn("not enough room", self.expect_code(rank, RUNTIME))

    def start(self, out, *more):
        ranks = self.start_ranks(lambda rank: self.arguments(out, 1, 4, *self.pp(2, "--max_steps", 1000000, *more)))
        return self.wait_for_steps(out, ranks)

    def test_a_killed_rank_is_named(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                ranks = self.start(f"killed{rank}", "--ddp_timeout", 3)
                ranks[rank].kill()
                self.expect_ended_by(ranks[1 - rank], rf"rank {rank} ", 20)

    def test_a_stopped_rank_is_named(self):
        ranks = self.start("stopped", "--ddp_timeout", 3)
        self.expect_stopped_rank_named(ranks)

    def test_a_signal_to_one_rank_stops_and_saves_all(self):
        ranks = self.start("asked")
        self.expect_all_save_when_one_is_asked_to_stop(ranks)
        self.assertTrue((self.folder / "asked" / "adapter_model.safetensors").exists())

    def test_what_does_not_go_with_stages_is_refused(self):
        prompts = write_rows(self.folder / "prompts.jsonl", [{"prompt": "a"}])
        for processes, parts, *more in (
            (3, ["pp_size 3", "the model has 2"], "--pp_size", 3),
            (2, ["2 chunks a rank", "needs 4 layers"], "--pp_size", 2, "--pipeline_schedule", "interleaved"),
            (3, ["pp_size 2", "3 processes"], "--pp_size", 2),
            (2, ["pp_size 2", "sample_prompts"], "--pp_size", 2, "--sample_prompts", prompts, "--val_size", 2),
            (2, ["pp_size 2", "+offload"], "--pp_size", 2, "--gradient_checkpointing", "full+offload"),
            (2, ["stage 1", "nothing is trained"], "--pp_size", 2, "--layers_to_transform", "1"),
            (2, ["names 2 GPUs", "pp_size 2 and as many"], "--device_map", '{"": 0, "model.layers.1": 1}'),
            (
                2,
                ["pp_size 2", "host memory or on the disk"],
                "--pp_size",
                2,
                "--device_map",
                '{"model.layers": "disk"}',
            ),
        ):
            with self.subTest(parts=parts):
                code, err = self.launch(
                    processes, self.train_arguments(model(LLAMA), self.rows(8), *more, out="refused")
                )
                self.assertEqual(code, USAGE, err)
                for part in parts:
                    self.assertIn(part, err)


if __name__ == "__main__":
    main()
