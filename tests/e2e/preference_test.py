"""Pairs of answers: what is learnt of the example's shows on pairs that were held out, and a shared prompt changes nothing."""

from support import LEGAL_BASE, LLAMA, MISTRAL, SOURCE, EndToEnd, main, model, read_rows, write_rows

LEGAL = SOURCE / "examples" / "legal"


class Preferences(EndToEnd):
    def pairs(self, name, rows):
        """The example's answers, each against the answer of another task."""
        pairs = []
        for i, row in enumerate(rows):
            other = next(r for r in rows[i + 1 :] + rows if r["instruction"] != row["instruction"])
            pair = {key: row[key] for key in ("instruction", "input", "system") if row.get(key)}
            pairs.append(pair | {"chosen": row["output"], "rejected": other["output"]})
        return write_rows(self.folder / name, pairs)

    def test_margins_rise_on_held_out_pairs_of_the_example(self):
        train = self.pairs("pairs.jsonl", read_rows(LEGAL / "train.jsonl")[:96])
        held_out = self.pairs("held_out.jsonl", read_rows(LEGAL / "heldout.jsonl")[:32])
        self.train(
            LEGAL_BASE, train, "--objective", "dpo", "--data.eval_file", held_out, "--data.format", "preference",
            "--data.template", "alpaca", "--max_seq_length", 384, "--per_device_train_batch_size", 4,
            "--gradient_accumulation_steps", 1, "--max_steps", 24, "--learning_rate", 0.003, "--eval_on_start", "true",
        )  # fmt: skip
        before, after = self.evaluations(self.folder / "out")
        self.assertAlmostEqual(before["eval_rewards/margins"], 0, delta=1e-4)
        self.assertGreater(after["eval_rewards/margins"], 0.1)
        self.assertGreater(after["eval_rewards/accuracies"], 0.6)

    def test_a_shared_prompt_gives_the_same_losses(self):
        """With sliding windows shorter than the prompt too, and the reference's log-probabilities are those of copies."""
        pairs = write_rows(self.folder / "pairs.jsonl", self.token_pairs(16))
        for name, config in (("llama", LLAMA), ("mistral", MISTRAL)):
            losses = []
            for shares in ("true", "false"):
                self.train(
                    model(config), pairs, "--objective", "dpo", "--share_prompt", shares, "--val_size", 4,
                    "--max_steps", 6, out=name + shares,
                )  # fmt: skip
                steps = self.steps(self.folder / (name + shares))
                losses.append(
                    [s["loss"] for s in steps]
                    + [e["eval_loss"] for e in self.evaluations(self.folder / (name + shares))]
                )
                tokens = sum(s["tokens"] for s in steps)
                if shares == "true":
                    fewer = tokens
            self.assertLess(fewer, 0.8 * tokens)
            self.assertNotAlmostEqual(losses[0][0], losses[0][5], places=3)
            for shared, copied in zip(*losses):
                self.assertAlmostEqual(shared, copied, delta=2e-5)

    def token_pairs(self, count):
        """Prompts of 12 to 18 tokens, answers half as long."""

        def ids(seed, length):
            return [(seed * 37 + t * 11) % 120 + 4 for t in range(length)]

        return [
            {"prompt": ids(i, 12 + i % 7), "chosen": ids(i + 50, 6 + i % 4), "rejected": ids(i + 90, 5 + i % 5)}
            for i in range(count)
        ]


if __name__ == "__main__":
    main()
