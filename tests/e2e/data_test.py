"""`data` and `data augment` as a user runs them: neither needs a model's weights, nor the engine."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

from support import (
    EndToEnd,
    GOLDEN,
    INPUT,
    LEGAL_BASE,
    OK,
    PROGRAM,
    USAGE,
    environment,
    main,
    read_rows,
    run,
    write_rows,
)

LEGAL = LEGAL_BASE.parent
OPEN, CLOSE = "\u27e6", "\u27e7"


def talk(question, answer=None):
    messages = [{"role": "user", "content": question}]
    return {"messages": messages + ([{"role": "assistant", "content": answer}] if answer else [])}


class Data(EndToEnd):
    def setUp(self):
        super().setUp()
        # The files that a tokenizer needs, and config.json; no weights.
        self.model = self.folder / "model"
        self.model.mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(LEGAL_BASE / name, self.model / name)

    def data(self, rows, *extra):
        return ["data", "--model.path", self.model, "--data.train_file", rows, *extra]

    def report(self, rows, *extra, code=OK):
        result = run(*self.data(rows, "--json", *extra))
        self.check_words(result)
        self.assertEqual(result.code, code, str(result))
        return json.loads(result.out)

    def tokenized(self, text):
        done = self.succeed("tokenize", "--tokenizer", self.model, stdin=json.dumps({"text": text}) + "\n")
        return json.loads(done.out)["ids"]

    def test_the_quickstart_shows_what_it_trains_on(self):
        shown = self.succeed(
            "data",
            "--config",
            LEGAL / "quickstart.json",
            "--model.path",
            self.model,
            "--data.train_file",
            LEGAL / "train.jsonl",
            "--data.eval_file",
            LEGAL / "heldout.jsonl",
            "--n",
            "2",
        ).out
        first = json.loads((LEGAL / "train.jsonl").read_text().splitlines()[0])
        self.assertIn(f"### Response:\n{OPEN}{first['output']}<|end|>{CLOSE}\n", shown)
        self.assertEqual(shown.count(OPEN), 1 + 3)  # the legend, two rows, one of the evaluation
        for words in ("Training rows:", "Evaluation rows:", "duplicates", "Steps", "#####"):
            self.assertIn(words, shown)
        self.assertNotIn("\x1b", shown)
        coloured = self.succeed(
            "data",
            "--config",
            LEGAL / "quickstart.json",
            "--model.path",
            self.model,
            "--data.train_file",
            LEGAL / "train.jsonl",
            "--data.eval_file",
            LEGAL / "heldout.jsonl",
            "--color",
            "always",
        ).out
        self.assertIn("\x1b[1;32m" + first["output"], coloured)
        self.assertNotIn(OPEN, coloured)

    def test_figures_are_those_of_the_rows(self):
        rows = write_rows(
            self.folder / "rows.jsonl",
            [{"text": "The term is one year."}, {"text": "It ends."}, {"text": "The term is one year."}] * 4,
        )
        lengths = [len(self.tokenized(text)) + 1 for text in ("The term is one year.", "It ends.")]  # and EOS
        report = self.report(
            rows, "--num_train_epochs", "3", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"
        )
        train = report["train"]
        self.assertEqual((train["format"], train["read"], train["rows"], train["truncated"]), ("text", 12, 12, 0))
        self.assertEqual(train["duplicates"], 10)
        self.assertEqual(train["tokens"], 8 * lengths[0] + 4 * lengths[1])
        self.assertEqual(train["trained_tokens"], train["tokens"] - 12)  # BOS is no target
        self.assertEqual((train["length"]["shortest"], train["length"]["longest"]), (min(lengths), max(lengths)))
        self.assertEqual(sum(b["rows"] for b in train["histogram"]), 12)
        self.assertEqual((report["steps"]["steps_per_epoch"], report["steps"]["total_steps"]), (3, 9))
        self.assertIsNone(report["refusal"])
        self.assertEqual([row["ids"] for row in report["rows"][:1]], [self.tokenized("The term is one year.") + [1]])
        split = self.report(rows, "--max_seq_length", "5")["train"]  # plain text
        self.assertEqual(split["trained_tokens"], train["trained_tokens"])
        self.assertEqual((split["read"], split["truncated"], split["length"]["longest"]), (12, 0, 5))
        self.assertEqual(split["rows"], 12 - split["split"]["rows"] + split["split"]["pieces"])
        cut = self.report(rows, "--max_seq_length", "5", "--long_rows", "truncate")
        self.assertEqual(
            (cut["train"]["truncated"], cut["train"]["length"]["longest"]), (8 if lengths[1] <= 5 else 12, 5)
        )
        packed = self.report(rows, "--packing", "--max_seq_length", "32", "--val_size", "2")
        self.assertEqual(packed["train"]["rows"] + packed["eval"]["rows"], 12)
        steps = packed["steps"]
        self.assertAlmostEqual(steps["efficiency"], steps["tokens_per_epoch"] / (32 * steps["packed_rows_per_epoch"]))

    def test_rows_that_stop_a_run_are_counted_and_shown(self):
        rows = write_rows(
            self.folder / "rows.jsonl", [talk("Hi", "Yo"), talk("Only a question"), "{broken", talk("Hi again", "Yo")]
        )
        refused = run(*self.data(rows))
        self.assertEqual(refused.code, INPUT, str(refused))
        self.assertIn("A run with this configuration stops:", refused.out)
        self.assertIn("rows.jsonl:3", refused.out)
        self.assertIn("all labels masked, row 1", refused.out)
        self.assertIn("alpaca was guessed", refused.out)
        report = self.report(rows, "--skip_bad_rows")
        self.assertEqual(report["train"]["dropped"], {"bad": 1, "all_labels_masked": 1})
        self.assertEqual(report["train"]["rows"], 2)
        report = self.report(
            write_rows(self.folder / "masked.jsonl", [talk("Hi", "Yo"), talk("Hm")]),
            "--data.template",
            "alpaca",
            code=INPUT,
        )
        self.assertIn("masked.jsonl:2: all labels are masked", report["refusal"])
        self.assertEqual(report["warnings"], [])
        self.assertEqual([row["trained"] for row in report["rows"] if row["set"] == "masked"], [[]])

    def test_what_is_in_doubt_is_said(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "<|begin|>twice"}])
        self.assertIn("two BOS tokens", self.report(rows)["warnings"][0])
        template = self.folder / "open.jinja"
        template.write_text(
            "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
        )
        rows = write_rows(self.folder / "talk.jsonl", [talk("Hi", "Yo")])
        self.assertIn(
            "does not end with a token that ends a generation (<|end|>)",
            self.report(rows, "--data.template", template)["warnings"][0],
        )
        rows = write_rows(
            self.folder / "unread.jsonl",
            [
                {"prompt": "Hi", "completion": "Yo", "system": "Be brief."},
                {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Yo"}]},
                {
                    "prompt": [{"role": "user", "content": "Hi"}],
                    "completion": [{"role": "assistant", "content": "Yo", "reasoning": "They greet."}],
                },
            ],
        )
        warnings = "\n".join(self.report(rows, "--data.template", "alpaca")["warnings"])
        for words, line in (
            ('1 of 3 rows have a column "system" together with a text', 1),
            ("1 of 3 rows have a prompt and an answer that are texts, so that data.template alpaca is not applied", 1),
            ("1 of 3 rows have messages with reasoning (reasoning_content, thinking or reasoning)", 3),
        ):
            self.assertRegex(warnings, re.escape(words) + f".*unread.jsonl:{line}")

    def test_what_a_template_does_not_write_stops_the_run(self):
        template = self.folder / "known.jinja"
        template.write_text(
            "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.role }}: {{ m.content }}<|end|>"
            "{% endif %}{% endfor %}"
        )
        row = talk("Hi", "Yo")
        lost = {"messages": [{"role": "developer", "content": "Be brief."}] + row["messages"]}
        rows = write_rows(self.folder / "rows.jsonl", [row, lost])
        named = ["rows.jsonl:2", "messages[0].content (role developer)"]
        refusal = self.report(rows, "--data.template", template, code=INPUT)["refusal"]
        for words in named:
            self.assertIn(words, refusal)
        shown = self.succeed(
            "tokenize", "--tokenizer", self.model, "--template", template, stdin=json.dumps(lost) + "\n"
        )
        self.assertIn(named[1], shown.err)

    def test_a_tokenizer_that_does_not_fit_and_missing_files(self):
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "a"}])
        self.fail_with("tokenizer.vocabulary-size", ["the tokenizer has ids up to", "ends at 99"], *self.data(rows))
        self.fail_with(INPUT, "nothing.jsonl", *self.data(self.folder / "nothing.jsonl"))
        self.fail_with("option.missing", "model.path", "data", "--data.train_file", rows)
        tokens = write_rows(self.folder / "tokens.jsonl", [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}])
        shown = self.succeed("data", "--data.train_file", tokens).out
        self.assertIn(f"5 {OPEN}6 7{CLOSE}", shown)

    def test_it_fills_the_cache_that_a_run_reads(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"text": f"row {i}"} for i in range(50)])
        cache = self.folder / "cache"
        first = self.succeed(*self.data(rows, "--cache_dir", cache))
        again = self.succeed(*self.data(rows, "--cache_dir", cache))
        self.assertEqual(first.out, again.out)
        self.assertIn("from the cache", again.err)

    def test_another_library_for_parquet_makes_its_own_cache(self):
        built = pathlib.Path(PROGRAM).parent
        if not (built / "libunsloth_parquet.so").exists():
            self.skipTest("built without Arrow")
        program = self.folder / "program"
        program.mkdir()
        for name in ("unsloth-train", "libunsloth_base.so", "libunsloth_parquet.so"):
            shutil.copy(built / name, program / name)
        cache = self.folder / "cache"
        rows = GOLDEN / "data" / "rows.parquet"

        def files(count):
            done = subprocess.run(
                [
                    program / "unsloth-train",
                    *map(str, self.data(rows, "--cache_dir", cache, "--data.template", "alpaca")),
                ],
                capture_output=True,
            )
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertEqual(len(list(cache.glob("*.rows"))), count)

        files(1)
        files(1)
        # The same library from another build: its identification differs, and nothing else.
        library = (program / "libunsloth_parquet.so").read_bytes()
        note = library.index(b"GNU\0", library.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")) + 4
        (program / "libunsloth_parquet.so").write_bytes(
            library[:note] + bytes([library[note] ^ 1]) + library[note + 1 :]
        )
        files(2)


class Augment(EndToEnd):
    def setUp(self):
        super().setUp()
        self.rows = [
            {"id": i, "instruction": f"Give a quick answer to {i}, please.", "output": "a quick answer"}
            for i in range(60)
        ]
        write_rows(self.folder / "rows.jsonl", self.rows)
        (self.folder / "thesaurus.json").write_text(json.dumps({"quick": ["fast", "brief"], "answer": ["reply"]}))

    def augment(self, *extra):
        return [
            "data",
            "augment",
            "--in",
            self.folder / "rows.jsonl",
            "--out",
            self.folder / "out.jsonl",
            "--force",
            "--thesaurus",
            self.folder / "thesaurus.json",
            "--synonym_rate",
            "0.6",
            *extra,
        ]

    def test_held_out_rows_never_leak(self):
        write_rows(
            self.folder / "back.jsonl",
            [{"id": i, "instruction": f"Please reply briefly to {i}."} for i in range(0, 60, 2)],
        )
        done = self.succeed(
            *self.augment(
                "--val_size",
                "0.2",
                "--seed",
                "5",
                "--eval_out",
                self.folder / "eval.jsonl",
                "--swap_rate",
                "0.2",
                "--copies",
                "2",
                "--back_translations",
                self.folder / "back.jsonl",
            )
        )
        self.assertIn("48 to train on, 12 held out", done.err)
        held_out, out = read_rows(self.folder / "eval.jsonl"), read_rows(self.folder / "out.jsonl")
        self.assertEqual(len(held_out), 12)
        self.assertTrue(all(row in self.rows for row in held_out))
        ids = {row["id"] for row in held_out}
        self.assertFalse(ids & {row["id"] for row in out})
        self.assertFalse(ids & {row["augmentation"]["of"] for row in out if "augmentation" in row})
        self.assertEqual(
            [row for row in out if "augmentation" not in row], [row for row in self.rows if row["id"] not in ids]
        )
        ways = {row["augmentation"]["by"] for row in out if "augmentation" in row}
        self.assertEqual(ways, {"synonym", "swap", "back_translation"})
        self.assertTrue(all(row["output"] == "a quick answer" for row in out))

        base = [
            "data",
            "--model.path",
            LEGAL_BASE,
            "--data.train_file",
            self.folder / "out.jsonl",
            "--json",
            "--n",
            "0",
        ]
        report = json.loads(self.succeed(*base, "--data.eval_file", self.folder / "eval.jsonl").out)
        self.assertEqual((report["train"]["rows"], report["eval"]["rows"], report["shared"]), (len(out), 12, 0))
        self.fail_with("data.held-out-copies", ["augmented copies", "data.eval_file"], *base, "--val_size", "0.1")

        # The same rows as a run over the original file holds out.
        split = json.loads(
            self.succeed(
                "data",
                "--model.path",
                LEGAL_BASE,
                "--data.train_file",
                self.folder / "rows.jsonl",
                "--json",
                "--n",
                "60",
                "--val_size",
                "0.2",
                "--seed",
                "5",
            ).out
        )
        trained = {row["row"] for row in split["rows"] if row["set"] == "training"}
        self.assertEqual(trained, {row["id"] for row in self.rows} - ids)

    def test_mistakes_leave_nothing(self):
        before = sorted(self.folder.iterdir())
        self.fail_with("option.missing", "--eval_out", *self.augment("--val_size", "3"))
        self.fail_with(
            "option.missing", "data augment needs --out", "data", "augment", "--in", self.folder / "rows.jsonl"
        )
        self.fail_with(
            "option.invalid-value", "instruction, input, system, output", *self.augment("--fields", "question")
        )
        self.fail_with(INPUT, "absent.json", *self.augment("--back_translations", self.folder / "absent.jsonl"))
        with open(self.folder / "rows.jsonl", "a") as file:
            file.write("{broken\n")
        self.fail_with(INPUT, "rows.jsonl:61", *self.augment())
        self.assertEqual(sorted(self.folder.iterdir()), before)


if __name__ == "__main__":
    main()
