"""The example of examples/shapes: a model learns to answer about images that it has not seen, and not without them."""

import json
import subprocess
import sys
import zlib

from support import FP32, SOURCE, EndToEnd, main, read_rows

EXAMPLE = SOURCE / "examples" / "shapes"
KINDS = {"colour": 1 / 4, "shape": 1 / 3, "many": 1 / 4}  # a word of its question, and the share of a guess


def pixels(png):
    """Of a file of make_rows.py; how well they are compressed depends on the zlib."""
    return zlib.decompress(png[41:-16])


class Shapes(EndToEnd):
    def script(self, name, *arguments):
        subprocess.run([sys.executable, EXAMPLE / name, *arguments], check=True, capture_output=True)

    def shares(self, adapter, rows):
        """Of each kind of question, and of all, the share of right answers."""
        answers = self.folder / f"answers-{rows.name}"
        done = self.succeed(
            "evaluate", "--model.adapter_name_or_path", adapter, "--device", "cpu", *FP32, "--data.eval_file", rows,
            "--metric", "exact_match", "--max_new_tokens", 8, "--answers", answers, "--json",
        )  # fmt: skip
        judged = [
            (row["messages"][0]["content"][1]["text"], answer["correct"])
            for row, answer in zip(read_rows(rows), read_rows(answers), strict=True)
        ]
        shares = {}
        for kind in KINDS:
            correct = [right for question, right in judged if kind in question]
            self.assertEqual(len(correct), 120)
            shares[kind] = sum(correct) / len(correct)
        return shares, json.loads(done.out)["exact_match"]

    def test_it_learns_to_see(self):
        place = self.folder / "shapes"
        self.script("make_rows.py", "--out", place)
        images = {path.name: pixels(path.read_bytes()) for path in (place / "images").iterdir()}
        self.assertEqual(len(set(images.values())), len(images), "no image is there twice")
        for sample in (EXAMPLE / "samples").iterdir():
            self.assertEqual(images[sample.name], pixels(sample.read_bytes()))
        base, adapter = place / "base", place / "adapter"
        self.succeed(
            "init", "--model_config", EXAMPLE / "base" / "config.json", "--tokenizer", EXAMPLE / "base", "--dtype",
            "float32", "--out", base,
        )  # fmt: skip
        self.succeed(
            EXAMPLE / "train.json", "--model.path", base, "--train_file", place / "train.jsonl", "--eval_file",
            place / "heldout.jsonl", "--output_dir", adapter, "--eval_on_start", "false", "--eval_steps", 0,
        )  # fmt: skip
        shares, seen = self.shares(adapter, place / "heldout.jsonl")
        self.assertGreaterEqual(seen, 0.9, shares)
        for kind, share in shares.items():
            self.assertGreaterEqual(share, 0.8, kind)
        # Without the images, or with those of other examples, it guesses.
        for control in ("blank.jsonl", "shuffled.jsonl"):
            shares, _ = self.shares(adapter, place / control)
            for kind, share in shares.items():
                self.assertLess(share, KINDS[kind] + 0.15, f"{control}: {kind}")

    def test_the_tokenizer_is_the_scripts(self):
        self.script("make_tokenizer.py", "--out", self.folder)
        made = self.folder / "tokenizer.json"
        self.assertEqual(made.read_text(), (EXAMPLE / "base" / "tokenizer.json").read_text())


if __name__ == "__main__":
    main()
