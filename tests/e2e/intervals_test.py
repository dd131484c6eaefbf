"""Evaluations and checkpoints by shares of a run and times an epoch, over slices of one file."""

import json

from support import INPUT, LLAMA, EndToEnd, main, model


class Intervals(EndToEnd):
    # 16 of 20 rows to train on, in 8 steps an epoch, and the others to evaluate on.
    COMMON = ["--train_split", "[:16]", "--eval_split", "[-20%:]"]
    COMMON += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1"]

    def run_of(self, *extra, out="out", epochs=2):
        words = [*self.COMMON, "--num_train_epochs", str(epochs)]
        return self.train(model(LLAMA), self.rows(20), *words, *extra, out=out)

    def checkpoints(self, out):
        return sorted(int(folder.name.split("-")[1]) for folder in out.glob("checkpoint-*"))

    def state(self, out):
        state = json.loads((out / "trainer_state.json").read_text())
        return [state[f"{name}_steps"] for name in ("max", "eval", "save", "logging")]

    def test_times_an_epoch(self):
        out = self.run_of("--evals_per_epoch", "2", "--saves_per_epoch", "1", "--load_best_model_at_end")
        self.assertEqual([e["step"] for e in self.evaluations(out)], [4, 8, 12, 16])
        self.assertLessEqual({8, 16}, set(self.checkpoints(out)))
        self.assertEqual(self.state(out), [16, 4, 8, 1])
        self.assertEqual(json.loads((out / "run_config.json").read_text())["training"]["evals_per_epoch"], 2)

    def test_times_that_do_not_divide_an_epoch(self):
        out = self.run_of("--evals_per_epoch", "3", "--saves_per_epoch", "5")
        self.assertEqual([e["step"] for e in self.evaluations(out)], [3, 6, 8, 11, 14, 16])
        self.assertEqual(self.checkpoints(out), [2, 4, 5, 7, 8, 10, 12, 13, 15, 16])

    def test_shares_and_a_resumed_run(self):
        words = ["--eval_steps", "0.25", "--save_steps", "0.5", "--logging_steps", "0.1"]
        whole = self.run_of(*words, out="whole")
        self.assertEqual([e["step"] for e in self.evaluations(whole)], [4, 8, 12, 16])
        self.assertEqual(self.checkpoints(whole), [8, 16])
        self.assertEqual([s["step"] for s in self.steps(whole)], [2, 4, 6, 8, 10, 12, 14, 16])
        self.assertEqual(self.state(whole), [16, 4, 8, 2])
        resumed = self.run_of(*words, "--resume_from_checkpoint", whole / "checkpoint-8", out="resumed")
        ends = [[(s["step"], s["loss"]) for s in self.steps(out) if s["step"] > 8] for out in (whole, resumed)]
        self.assertEqual(*ends)
        self.assertEqual(self.checkpoints(resumed), [16])
        # The shares are those of the longer run.
        longer = [*words, "--resume_from_checkpoint", whole / "checkpoint-8"]
        out = self.run_of(*longer, out="longer", epochs=4)
        self.assertEqual(self.checkpoints(out), [16, 32])
        self.assertEqual(self.state(out), [32, 8, 16, 4])

    def test_a_split_that_is_not_there(self):
        folder = self.folder / "rows"
        folder.mkdir()
        for name in ("train", "test"):
            self.rows(4, name=f"rows/{name}.jsonl")
        words = ["train", *self.train_arguments(model(LLAMA), folder, "--eval_split", "validation")]
        self.fail_with(INPUT, ["belongs to the split validation", "Its files are of test, train"], *words)
        out = self.train(model(LLAMA), folder, "--train_split", "train[:50%]+test", "--eval_split", "test")
        self.assertEqual(len(self.evaluations(out)), 1)


if __name__ == "__main__":
    main()
