"""Ranks that compute each layer together, on the CPU: the same losses and adapters as one process, and what is said when one is lost."""

from pruning import QWEN3_MOE
from rank_support import SharedModel
from support import (
    LLAMA,
    QWEN3,
    QWEN3_5,
    USAGE,
    main,
    model,
    read_safetensors,
    write_rows,
)

PHI = LLAMA | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}


class TensorParallel(SharedModel):
    def tp(self, size, *arguments):
        return [*arguments, "--tp_size", size]

    def test_meshes_give_the_same_losses_and_adapters(self):
        """tp 4 has two ranks for each key/value head."""
        more = ["--val_size", 5, "--eval_on_start", "true"]
        self.run_ranks(1, self.arguments("one", 4, 2, *more))
        for processes, tp, batch in ((2, 2, 4), (4, 2, 2), (4, 4, 4)):
            with self.subTest(processes=processes, tp=tp):
                out = f"w{processes}t{tp}"
                self.run_ranks(processes, self.arguments(out, batch, 2, *self.tp(tp, *more)))
                self.assert_same_course(out, "one")
                self.assert_same_values(out, "one")

    def test_full_fine_tuning_saves_the_whole_model(self):
        folder, rows = model(QWEN3), self.rows(24)
        more = ["--finetuning_type", "full", "--learning_rate", "0.001", "--max_steps", 4]
        self.run_ranks(1, self.train_arguments(folder, rows, *more, out="one"))
        self.run_ranks(2, self.train_arguments(folder, rows, *self.tp(2, *more), out="two"))
        self.assert_same_course("two", "one")
        self.assert_same_values("two", "one", "model.safetensors", delta=1e-4)

    def test_fused_matrices_trained_in_full(self):
        """Their slices are several runs of rows, of values that all ranks share."""
        more = ["--finetuning_type", "full", "--learning_rate", "0.001", "--max_steps", 4]
        folder, rows = model(PHI), self.rows(24)
        for processes, batch, mesh in ((1, 4, []), (4, 2, self.tp(2, "--zero_stage", 3))):
            size = ["--per_device_train_batch_size", batch, "--gradient_accumulation_steps", 1]
            self.run_ranks(processes, self.train_arguments(folder, rows, *more, *size, *mesh, out=f"full_{processes}"))
        self.assert_same_course("full_4", "full_1")
        self.assert_same_values("full_4", "full_1", "model.safetensors", delta=1e-4)

    def test_adapters_of_experts(self):
        more = ["--target_parameters", "mlp.experts.gate_up_proj,mlp.experts.down_proj", "--max_steps", 4,
                "--learning_rate", 0.001, "--router_aux_loss_coef", 0.1]  # fmt: skip
        folder, rows = model(QWEN3_MOE), self.rows(24)
        for processes, mesh in ((1, []), (2, self.tp(2))):
            self.run_ranks(processes, self.train_arguments(folder, rows, *more, *mesh, out=f"experts_{processes}"))
        self.assert_same_course("experts_2", "experts_1")
        self.assert_same_values("experts_2", "experts_1")

    def test_hybrid_layers(self):
        """Files are those of one process: rows of a rank's heads are in three runs of in_proj_qkv and the convolution."""
        folder, rows = model(QWEN3_5), self.rows(24)
        common = ["--learning_rate", 0.001, "--max_steps", 4, "--gradient_accumulation_steps", 1]
        dropout = ["--lora.lora_dropout", "0.1"]

        def train(out, processes, batch, *more):
            more = [*common, "--per_device_train_batch_size", batch, *more]
            self.run_ranks(processes, self.train_arguments(folder, rows, *more, out=out))

        for name, more, file in (
            ("lora", [*dropout, "--save_steps", 2], "adapter_model.safetensors"),
            ("full", ["--finetuning_type", "full"], "model.safetensors"),
        ):
            train(f"{name}_1", 1, 4, *more)
            train(f"{name}_4", 4, 2, *more, *self.tp(2, "--zero_stage", 3))
            self.assert_same_course(f"{name}_4", f"{name}_1")
            self.assert_same_values(f"{name}_4", f"{name}_1", file)
        checkpoint = ["--resume_from_checkpoint", self.folder / "lora_4" / "checkpoint-2"]
        for tp in (1, 4):
            out = f"resumed_{tp}"
            train(out, tp, 4, *dropout, *self.tp(tp, *checkpoint))
            for got, one in zip(self.steps(self.folder / out), self.steps(self.folder / "lora_1")[2:], strict=True):
                self.assertAlmostEqual(got["loss"], one["loss"], delta=2e-5 * one["loss"])
            self.assert_same_values(out, "lora_1")

    def test_dora_has_one_process_s_magnitudes(self):
        """Of rows that no rank has whole (o, down), and that two have (k and v on four ranks)."""
        folder, rows = model(LLAMA), self.rows(24)
        more = ["--use_dora", "true", "--gradient_accumulation_steps", 1, "--max_steps", 6]
        for processes, batch, mesh in ((1, 4, []), (4, 4, self.tp(4)), (4, 2, self.tp(2, "--zero_stage", 3))):
            out = f"{processes}_{batch}"
            size = ["--per_device_train_batch_size", batch]
            self.run_ranks(processes, self.train_arguments(folder, rows, *more, *size, *mesh, out=out))
            self.assert_same_course(out, "1_4")
            self.assert_same_values(out, "1_4")
        values = read_safetensors(self.folder / "4_4" / "adapter_model.safetensors")
        self.assertTrue(any(name.endswith("magnitude_vector") for name in values))

    def test_preferences(self):
        file = self.preference_rows("dpo", 12)
        more = ["--objective", "dpo", "--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 1,
                "--max_steps", 4, "--val_size", 3]  # fmt: skip
        self.run_ranks(1, self.train_arguments(model(LLAMA), file, *more, out="one"))
        self.run_ranks(2, self.train_arguments(model(LLAMA), file, *self.tp(2, *more), out="two"))
        self.assert_same_course("two", "one")

    def test_a_run_goes_on_with_another_tp_size(self):
        """Exactly on the same mesh."""
        self.run_ranks(1, self.arguments("one", 4, 2, "--save_steps", 3))
        self.run_ranks(2, self.arguments("two", 4, 2, *self.tp(2, "--save_steps", 3)))
        for processes, tp, source in ((1, 1, "two"), (4, 4, "two"), (2, 2, "one"), (2, 2, "two")):
            with self.subTest(processes=processes, source=source):
                out = f"{source}_on_{processes}"
                checkpoint = self.folder / source / "checkpoint-3"
                self.run_ranks(
                    processes, self.arguments(out, 4, 2, *self.tp(tp, "--resume_from_checkpoint", checkpoint))
                )
                exact = (processes, source) == (2, "two")
                expected = self.steps(self.folder / ("two" if exact else "one"))[3:]
                for got, other in zip(self.steps(self.folder / out), expected, strict=True):
                    self.assertEqual(got["step"], other["step"])
                    self.assertAlmostEqual(got["loss"], other["loss"], delta=0 if exact else 2e-5 * other["loss"])

    def start(self, out, *more):
        ranks = self.start_ranks(lambda rank: self.arguments(out, 2, 1, *self.tp(2, "--max_steps", 1000000, *more)))
        return self.wait_for_steps(out, ranks)

    def test_a_killed_rank_is_named(self):
        ranks = self.start("killed", "--ddp_timeout", 3)
        ranks[1].kill()
        at = r"\((all-gather|reduce-scatter|all-reduce|texts).* ranks.*\)"
        self.expect_ended_by(
            ranks[0], rf"rank 1 \([^ ]+\) (has sent no heartbeat .* at .*{at}|did not come to .*{at})", 20
        )

    def test_a_stopped_rank_is_named(self):
        ranks = self.start("stopped", "--ddp_timeout", 3)
        self.expect_stopped_rank_named(ranks)

    def test_a_signal_to_one_rank_stops_and_saves_all(self):
        ranks = self.start("asked")
        self.expect_all_save_when_one_is_asked_to_stop(ranks)
        self.assertTrue((self.folder / "asked" / "adapter_model.safetensors").exists())

    def test_what_cannot_be_cut_is_refused(self):
        prompts = write_rows(self.folder / "prompts.jsonl", [{"prompt": "a"}])
        for processes, parts, *more in (
            (3, ["tp_size 3", "num_attention_heads 4"], "--tp_size", 3),
            (3, ["tp_size 2", "3 processes"], "--tp_size", 2),
            (2, ["tp_size 2", "blocks of 64"], "--tp_size", 2, "--load_in_4bit", "true"),
            (2, ["tp_size 2", "sample_prompts"], "--tp_size", 2, "--sample_prompts", prompts, "--val_size", 2),
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
