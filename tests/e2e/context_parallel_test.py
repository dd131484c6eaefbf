"""Ranks that share the tokens of each row, on the CPU: the same losses and results as one process, checkpoints that go on anywhere, and what is said when one is lost."""

from rank_support import SharedModel
from support import (
    LEGAL_BASE,
    LLAMA,
    QWEN3,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    read_rows,
    write_rows,
)


class ContextParallel(SharedModel):
    def cp(self, size, *arguments):
        return [*arguments, "--cp_size", size]

    def test_meshes_give_the_same_losses_and_adapters(self):
        """Packed rows, which chunks cut anywhere; rows of so few tokens that a rank of four has none."""
        more = ["--val_size", 5, "--eval_on_start", "true", "--packing", "true", "--max_seq_length", 24]
        short = write_rows(
            self.folder / "short.jsonl", [{"input_ids": [5 + i, 6 + i, 7 + 2 * i][: 2 + i % 2]} for i in range(24)]
        )
        few = ["--data.train_file", short, "--max_steps", 4]
        for name, words, meshes in (
            ("packed", more, ((2, 2, 4), (4, 2, 2))),
            ("few", few, ((4, 4, 1),)),
        ):
            batch = meshes[0][2]
            self.run_ranks(1, self.arguments(f"{name}_one", batch, 2, *words))
            for processes, cp, batch in meshes:
                with self.subTest(name, processes=processes, cp=cp):
                    out = f"{name}_{processes}_{cp}"
                    err = self.run_ranks(processes, self.arguments(out, batch, 2, *self.cp(cp, *words)))
                    self.assertIn(f"; {processes // cp} copies of the model, each over {cp}", err)
                    self.assert_same_course(out, f"{name}_one")
                    self.assert_same_values(out, f"{name}_one")

    def test_ranks_share_the_optimizer_too(self):
        more = ["--finetuning_type", "full", "--learning_rate", "0.001", "--max_steps", 4, "--gradient_accumulation_steps", 1]  # fmt: skip
        batch = "--per_device_train_batch_size"
        folder, rows = model(QWEN3), self.rows(24)
        self.run_ranks(1, self.train_arguments(folder, rows, *more, batch, 4, out="one"))
        for processes, rows_each, zero in ((2, 4, 2), (4, 2, 3)):
            with self.subTest(processes=processes, zero_stage=zero):
                out = f"zero{zero}"
                words = self.cp(2, *more, batch, rows_each, "--zero_stage", zero)
                self.run_ranks(processes, self.train_arguments(folder, rows, *words, out=out))
                self.assert_same_course(out, "one")
                self.assert_same_values(out, "one", "model.safetensors", delta=1e-4)

    def test_prompts_are_answered_by_one_rank(self):
        """Whole, beside evaluations of slices."""
        prompts = write_rows(self.folder / "prompts.jsonl", [{"text": "This licence"}, {"text": "The seller shall"}])
        words = ["--val_size", 2, "--eval_steps", 2, "--max_steps", 2, "--sample_prompts", prompts,
                 "--sample_max_new_tokens", 6]  # fmt: skip
        answers = {}
        for out, processes, mesh in (("one", 1, []), ("two", 2, self.cp(2))):
            base, rows = model(TEXT_LLAMA, tokenizer=LEGAL_BASE), self.rows(16, vocab=50)
            self.run_ranks(processes, self.train_arguments(base, rows, *words, *mesh, out=out))
            answers[out] = [row["answer"] for row in read_rows(self.folder / out / "samples.jsonl")]
        self.assertEqual(len(answers["one"]), 2)
        self.assertEqual(answers["two"], answers["one"])
        self.assert_same_course("two", "one")

    def test_a_run_goes_on_with_another_cp_size(self):
        """Exactly on the same mesh."""
        self.run_ranks(1, self.arguments("one", 4, 2, "--save_steps", 2))
        self.run_ranks(2, self.arguments("two", 4, 2, *self.cp(2, "--save_steps", 2)))
        going_on = (
            ("alone", 1, [], "two/checkpoint-2", "one", 2),
            ("again", 2, self.cp(2), "alone/checkpoint-4", "one", 4),
            ("same", 2, self.cp(2), "two/checkpoint-2", "two", 2),
        )
        for out, processes, mesh, source, like, done in going_on:
            with self.subTest(out):
                words = ["--resume_from_checkpoint", self.folder / source, "--save_steps", 2, *mesh]
                self.run_ranks(processes, self.arguments(out, 4, 2, *words))
                expected = self.steps(self.folder / like)[done:]
                for got, other in zip(self.steps(self.folder / out), expected, strict=True):
                    self.assertEqual(got["step"], other["step"])
                    delta = 0 if like == "two" else 2e-5 * other["loss"]
                    self.assertAlmostEqual(got["loss"], other["loss"], delta=delta)
        name = "adapter_model.safetensors"
        self.assertEqual((self.folder / "same" / name).read_bytes(), (self.folder / "two" / name).read_bytes())

    def start(self, out, *more):
        ranks = self.start_ranks(lambda rank: self.arguments(out, 2, 1, *self.cp(2, "--max_steps", 1000000, *more)))
        return self.wait_for_steps(out, ranks)

    def test_a_killed_rank_is_named(self):
        ranks = self.start("killed", "--ddp_timeout", 3)
        ranks[1].kill()
        self.expect_ended_by(ranks[0], r"rank 1 ", 20)

    def test_a_stopped_rank_is_named(self):
        ranks = self.start("stopped", "--ddp_timeout", 3)
        self.expect_stopped_rank_named(ranks)

    def test_a_signal_to_one_rank_stops_and_saves_all(self):
        ranks = self.start("asked")
        self.expect_all_save_when_one_is_asked_to_stop(ranks)
        self.assertTrue((self.folder / "asked" / "adapter_model.safetensors").exists())

    def test_what_does_not_go_with_parts_of_rows_is_refused(self):
        for processes, parts, *more in (
            (3, ["cp_size 2", "3 processes"]),
            (2, ["cp_size", "training.objective"], "--objective", "dpo"),
            (2, ["cp_size", "training.objective"], "--objective", "kto"),
            (2, ["cp_size", "float16"], "--dtype", "float16"),
        ):
            with self.subTest(parts=parts):
                code, err = self.launch(
                    processes, self.train_arguments(model(LLAMA), self.rows(8), *self.cp(2, *more), out="refused")
                )
                self.assertEqual(code, USAGE, err)
                for part in parts:
                    self.assertIn(part, err)


if __name__ == "__main__":
    main()
