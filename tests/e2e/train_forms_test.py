"""Rows as users bring them: forms of examples, kinds of files, several sources."""

import csv
import gzip
import io
import json
import os

from support import (
    EndToEnd,
    LLAMA,
    LEGAL_BASE,
    TEXT_LLAMA,
    main,
    model,
    write_rows,
)


class Text(EndToEnd):
    ROWS = {
        "text": [{"text": f"The supplier pays {n} euros within thirty days."} for n in range(8)],
        "alpaca": [
            {
                "instruction": "Name the clause.",
                "input": f"Payment is due in {n} days.",
                "output": "A payment clause.",
                "system": "You read contracts.",
            }
            for n in range(8)
        ],
        "messages": [
            {
                "messages": [
                    {"role": "user", "content": f"What does section {n} say?"},
                    {"role": "assistant", "content": "It sets the term."},
                ]
            }
            for n in range(8)
        ],
        "sharegpt": [
            {
                "conversations": [
                    {"from": "human", "value": f"What does section {n} say, and why does it say so?"},
                    {"from": "gpt", "value": "It sets."},
                ]
            }
            for n in range(8)
        ],
        "prompt_completion": [
            {"prompt": f"Section {n} of this agreement, on payment, says: ", "completion": "thirty days."}
            for n in range(8)
        ],
    }

    def test_every_form_trains_and_takes_the_tokenizer_along(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        for form, rows in self.ROWS.items():
            with self.subTest(form):
                template = ["--template", "alpaca"] if form in ("messages", "sharegpt") else []
                out = self.train(
                    base, write_rows(self.folder / f"{form}.jsonl", rows), "--max_steps", "2", *template, out=form
                )
                self.assertTrue(all(s["loss"] > 0 for s in self.steps(out)))
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    self.assertEqual((out / name).read_bytes(), (LEGAL_BASE / name).read_bytes())
                step = self.steps(out)[0]
                if form == "text":  # all tokens but the first are targets: eight rows a step
                    self.assertEqual(step["tokens"] - step["trained_tokens"], 8)
                else:  # prompts are masked
                    self.assertLess(step["trained_tokens"], step["tokens"] / 2)

    def test_train_on_prompt(self):
        base, rows = (
            model(TEXT_LLAMA, tokenizer=LEGAL_BASE),
            write_rows(self.folder / "rows.jsonl", self.ROWS["alpaca"]),
        )
        out = self.train(base, rows, "--max_steps", "1", "--train_on_prompt", "true")
        step = self.steps(out)[0]
        self.assertEqual(step["tokens"] - step["trained_tokens"], 8)


class SpecialTokens(EndToEnd):
    def test_another_token_ends_texts_and_is_saved(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "rows.jsonl", Text.ROWS["text"])
        named = ["--special_tokens", json.dumps({"eos_token": "!", "pad_token": "<|end|>"})]
        plain = self.train(base, rows, out="plain")
        out = self.train(base, rows, *named, "--finetuning_type", "full", "--learning_rate", "1e-4")
        saved = json.loads((out / "tokenizer_config.json").read_text())
        self.assertEqual((saved["eos_token"], saved["pad_token"], saved["bos_token"]), ("!", "<|end|>", "<|begin|>"))
        ids = {"eos_token_id": 2, "pad_token_id": 1}
        self.assertEqual(json.loads((out / "generation_config.json").read_text()), ids)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["eos_token_id"], config["pad_token_id"]), ([2, 1], 1))
        self.assertNotIn("generation_config.json", os.listdir(plain))
        scores = self.score(base, rows, *named)
        self.assertEqual([row["ids"][-1] for row in scores], [2] * len(scores))
        self.fail_with(
            "option.invalid-value",
            "pad_token '<pad>' is no token of",
            "train",
            *self.train_arguments(base, rows, "--special_tokens", '{"pad_token": "<pad>"}', out="refused"),
        )


class Sources(EndToEnd):
    """Rows as users bring them."""

    ROWS = [{"instruction": f'Name clause {n}, "please".', "output": "A payment\nclause."} for n in range(8)]

    def losses(self, base, path, *extra, out):
        return [step["loss"] for step in self.steps(self.train(base, path, "--max_steps", "2", *extra, out=out))]

    def test_every_kind_of_file_gives_the_same_run(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        expected = self.losses(base, write_rows(self.folder / "rows.jsonl", self.ROWS), out="jsonl")
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, ["instruction", "output"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.ROWS)
        parts = self.folder / "parts"
        parts.mkdir()
        write_rows(parts / "train-00000-of-00002.jsonl", self.ROWS[:3])
        write_rows(parts / "train-00001-of-00002.jsonl", self.ROWS[3:])
        write_rows(parts / "test-00000-of-00001.jsonl", [{"nothing": "to train on"}])
        for name, content in (
            ("a.json", json.dumps(self.ROWS, indent=1).encode()),
            ("a.csv", table.getvalue().encode()),
            ("a.csv.gz", gzip.compress(table.getvalue().encode())),
            ("parts", None),
            ("parts/train-*.jsonl", None),
        ):
            with self.subTest(name):
                if content is not None:
                    (self.folder / name).write_bytes(content)
                self.assertEqual(self.losses(base, self.folder / name, out="out-" + name.replace("/", "-")), expected)

    def test_several_sources_with_weights_and_columns(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        write_rows(self.folder / "a.jsonl", self.ROWS)
        write_rows(self.folder / "b.jsonl", [{"question": "Why?", "answer": "Because."}] * 2)
        sources = [
            {"path": str(self.folder / "a.jsonl"), "weight": 1},
            {
                "path": str(self.folder / "b.jsonl"),
                "weight": 1,
                "columns": {"instruction": "question", "output": "answer"},
            },
        ]
        result = self.succeed(
            "train",
            *self.train_arguments(
                base,
                "",
                "--datasets",
                json.dumps(sources),
                "--num_train_epochs",
                "1",
                "--per_device_train_batch_size",
                "1",
                "--gradient_accumulation_steps",
                "1",
            ),
        )
        tokens = [step["tokens"] for step in self.steps(self.folder / "out")]
        self.assertEqual(len(tokens), 10)
        self.assertEqual(sum(t == min(tokens) for t in tokens), 5)  # half of an epoch, though two of ten rows
        self.assertIn("by the sources' weights", result.err)

    def test_a_second_start_takes_the_cache(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        rows = write_rows(self.folder / "rows.jsonl", self.ROWS)
        runs = []
        for out in ("first", "second"):
            result = self.succeed(
                "train",
                *self.train_arguments(base, rows, "--cache_dir", self.folder / "cache", "--max_steps", "2", out=out),
            )
            runs.append((result.err, [step["loss"] for step in self.steps(self.folder / out)]))
        self.assertIn("are in the cache now", runs[0][0])
        self.assertIn("from the cache", runs[1][0])
        self.assertEqual(runs[0][1], runs[1][1])
        self.assertEqual(self.losses(base, rows, "--cache_dir", "", out="third"), runs[0][1])

    def test_micro_batches_by_tokens(self):
        out = self.train(
            model(LLAMA),
            self.rows(16),
            "--max_tokens_per_batch",
            "64",
            "--gradient_accumulation_steps",
            "1",
            "--num_train_epochs",
            "2",
        )
        steps = self.steps(out)
        self.assertTrue(all(step["tokens"] <= 64 for step in steps))
        self.assertEqual(
            sum(s["tokens"] for s in steps[: len(steps) // 2]), sum(s["tokens"] for s in steps[len(steps) // 2 :])
        )


if __name__ == "__main__":
    main()
