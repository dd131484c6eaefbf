"""Pairs of answers: what is learnt of the example's shows on pairs that were held out, and a shared prompt changes nothing.
Decisions: what is learnt shows on rows that were held out, with probabilities that are calibrated on them."""

import json
import random

from rank_support import Ranks
from support import LEGAL_BASE, LLAMA, MISTRAL, OK, SOURCE, TEXT_LLAMA, EndToEnd, main, model, read_rows, write_rows

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


class Decisions(Ranks):
    WORDS = {"lease": ("tenant", "landlord", "rent"), "loan": ("lender", "borrower", "interest")}

    def decisions(self, name, count, seed=1):
        """Texts of either kind; whether it is a lease, and what it is. Some answers are probabilities."""
        numbers = random.Random(seed)
        rows = []
        for i in range(count):
            kind = numbers.choice(list(self.WORDS))
            text = "The " + " and the ".join(numbers.choice(self.WORDS[kind]) for _ in range(4)) + "."
            if i % 2:
                question = {"type": "predicate", "instructions": "This is a lease."}
                answer = {"answer": kind == "lease"}
            else:
                choices = [{"value": value} for value in self.WORDS]
                question = {"type": "choice", "instructions": "What is this?", "choices": choices}
                answer = {"probabilities": [1.0, 0.0] if kind == "lease" else [0.0, 1.0]}
            rows.append({"input": text, "question": question} | answer)
        return write_rows(self.folder / name, rows)

    def test_a_decision_is_learnt_and_calibrated(self):
        train, held_out = self.decisions("train.jsonl", 96), self.decisions("held_out.jsonl", 32, seed=2)
        arguments = self.train_arguments(
            LEGAL_BASE, train, "--objective", "decision", "--data.eval_file", held_out, "--max_seq_length", 256,
            "--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1, "--max_steps", 40, "--eval_steps",
            20, "--save_steps", 20, "--learning_rate", 0.003, "--eval_on_start", "true", "--decision_brier_weight", 0.5,
        )  # fmt: skip
        result = self.succeed("train", *arguments)
        out = self.folder / "out"
        before, _, after = self.evaluations(out)
        self.assertLess(before["eval_accuracy"], 0.8)
        self.assertGreater(after["eval_accuracy"], 0.95)
        self.assertLess(after["eval_brier"], 0.5 * before["eval_brier"])
        self.assertLess(after["eval_loss"], 0.5 * before["eval_loss"])
        for figure in ("eval_ece", "eval_token_accuracy"):
            self.assertTrue(0 <= after[figure] <= 1, after)
        self.assertIn("accuracy", self.steps(out)[-1])
        self.assertNotIn("ece", self.steps(out)[-1])
        found = json.loads((out / "decision_calibration.json").read_text())
        self.assertEqual((found["version"], found["rows"]), (1, 32))
        self.assertLessEqual(found["nll"]["after"], found["nll"]["before"] + 1e-6)
        self.assertAlmostEqual(found["ece"]["before"], after["eval_ece"], delta=1e-5)
        self.assertIn("decision_calibration.json: temperature ", result.err)
        earlier = json.loads((out / "checkpoint-20" / "decision_calibration.json").read_text())
        self.assertNotEqual(earlier["nll"], found["nll"])

        without = self.train_arguments(
            LEGAL_BASE, train, "--objective", "decision", "--max_steps", 2, "--overwrite_output_dir", "true"
        )
        result = self.succeed("train", *without)
        self.assertIn("no decision_calibration.json was written: there are no held-out rows", result.err)
        self.assertFalse((out / "decision_calibration.json").exists(), "that of other values")

    def test_batches_packing_and_ranks_give_the_same_losses(self):
        train, held_out = self.decisions("train.jsonl", 16), self.decisions("held_out.jsonl", 6, seed=2)
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)

        def losses(out, ranks, batch, accumulation, *more):
            arguments = self.train_arguments(
                base, train, "--objective", "decision", "--data.eval_file", held_out, "--max_seq_length", 512,
                "--per_device_train_batch_size", batch, "--gradient_accumulation_steps", accumulation, "--finetuning_type",
                "full", "--decision_brier_weight", 0.5, "--shuffle", "false", *more, out=out,
            )  # fmt: skip
            code, err = self.launch(ranks, arguments)
            self.assertEqual(code, OK, err)
            found = json.loads((self.folder / out / "decision_calibration.json").read_text())
            steps = self.steps(self.folder / out)
            return (
                [step["loss"] for step in steps]
                + [step["brier"] for step in steps]
                + [self.evaluations(self.folder / out)[-1]["eval_loss"], found["nll"]["after"], found["ece"]["before"]]
            )

        expected = losses("one", 1, 4, 1)
        self.assertNotAlmostEqual(expected[0], expected[2], places=3)
        for out, *how in (("accumulated", 1, 1, 4), ("ranks", 2, 2, 1)):
            with self.subTest(out):
                for got, one in zip(losses(out, *how), expected, strict=True):
                    self.assertAlmostEqual(got, one, delta=2e-5)
        all_rows = ("--max_steps", 1)
        alone = losses("alone", 1, 16, 1, *all_rows)
        packed = losses("packed", 1, 16, 1, "--packing", "true", *all_rows)
        for got, one in zip(packed, alone, strict=True):
            self.assertAlmostEqual(got, one, delta=2e-5)
        self.assertEqual(self.steps(self.folder / "packed")[0]["trained_tokens"], 16)


if __name__ == "__main__":
    main()
