"""`bench --check`: benches on the CPU beside floors of their shares. What the command says of floors: config_test (Floors)."""

import json
import unittest

from support import EndToEnd, FP32, INPUT, LLAMA, RUNTIME, SOURCE, USAGE, main, model

ROWS = {
    "step": {"bench": "step", "config": "short.json", "steps": 2, "warmup": 1},
    "answers": {"bench": "generate", "batch": 2, "seq": 8, "new_tokens": 24},
    "operators": {"bench": "ops", "batch": 1, "seq": 16, "steps": 1},
}


class Generate(EndToEnd):
    def test_a_prompt_beside_answers_that_decode_or_have_ended(self):
        for tokens in (4, 200):
            words = ["--model.path", model(LLAMA), "--device", "cpu", *FP32, "--batch", 2, "--seq", 8, "--json"]
            figures = json.loads(self.succeed("bench", "generate", *words, "--new_tokens", tokens).out)
            delay, times = figures["ms_beside_a_prompt"], figures["times_as_long"]
            self.assertGreater(figures["ms_between_tokens"], 0)
            if tokens == 4:
                self.assertEqual((delay, times), (None, None))
            else:
                self.assertGreater(delay, 0)
                self.assertAlmostEqual(times, delay / figures["ms_between_tokens"])


class Step(EndToEnd):
    def test_steps_of_all_weights(self):
        words = ["bench", "step", "--finetuning_type", "full", "--model.path", model(LLAMA), "--device", "cpu", *FP32]
        words += ["--batch", "2", "--seq", "16", "--steps", "2", "--warmup", "0", "--json"]
        rows = [json.loads(self.succeed(*words, "--offload_optimizer", place).out) for place in ("none", "cpu")]
        self.assertAlmostEqual(rows[0]["loss"], rows[1]["loss"], places=5)
        self.assertGreater(rows[1]["host_gib"], rows[0]["host_gib"])
        self.assertLess(rows[1]["resident_gib"], rows[0]["resident_gib"])


class Check(EndToEnd):
    def words(self, floors, *extra, path=None, shape=None):
        (self.folder / "short.json").write_text(json.dumps({"model": {"max_seq_length": 16}}))
        file = self.folder / "floors.json"
        content = {"rows": ROWS, "cards": {"CPU": {"source": "a test", "floors": floors}}}
        file.write_text(json.dumps(content | ({"shape": shape} if shape else {})))
        words = ["bench", "--check", "--floors", file, "--model.path", path or model(LLAMA), "--device", "cpu"]
        return [*words, *FP32, *extra]

    def test_every_bench_with_a_ceiling(self):
        floors = {"step": 0, "answers: 2 rows": 0, "operators: rope": 0}
        out = self.succeed(*self.words(floors, "--json")).out
        rows = {row["row"]: row for row in map(json.loads, out.splitlines())}
        self.assertEqual({"step", "answers: 2 rows"}, {name for name in rows if not name.startswith("operators: ")})
        self.assertIn("operators: attention backward", rows)
        self.assertNotIn("operators: gemm (ceiling)", rows)
        for name, row in rows.items():
            self.assertEqual(row["card"], "CPU")
            self.assertGreater(row["share"], 0, row)
            self.assertAlmostEqual(row["rate"] / row["ceiling"], row["share"], places=6)
            self.assertEqual((row["floor"], row["below"]), (0, False) if name in floors else (None, None), name)

    def test_a_figure_below_its_floor(self):
        floors = {"step": 0, "operators: rope": 1000}
        result = self.fail_with(
            RUNTIME, ["below the floor on CPU: operators: rope (", "floor 100000.0 %"], *self.words(floors)
        )
        self.assertNotIn("step (", result.err)
        self.assertRegex(result.out, r"(?m)^operators: rope +[\d.]+ +[\d.]+ GB/s +[\d.]+ %   100000\.0 %  BELOW$")
        self.assertRegex(result.out, r"(?m)^operators: swiglu forward .* no floor for this card$")

    def test_floors_of_another_shape(self):
        self.fail_with(USAGE, ["is no llama-15m", "--shape llama-15m"], *self.words({}, shape="llama-15m"))
        self.fail_with(USAGE, "CPU", *self.words({}, "--rows", "step"))
        self.fail_with(INPUT, "nothing", *self.words({}, path=self.folder / "nothing"))

    def test_the_committed_rows(self):
        """Each is a command that the program takes, and names options that exist; the model is not theirs."""
        file = SOURCE / "configs" / "floors" / "llama-8b.json"
        content = json.loads(file.read_text())
        for card, entry in content["cards"].items():
            self.assertTrue(entry["source"], card)
            self.assertTrue(all(0 < share < 1.1 for share in entry["floors"].values()), card)
            self.assertEqual({name.partition(": ")[0] for name in entry["floors"]}, set(content["rows"]), card)
        words = ["bench", "--check", "--model.path", model(LLAMA), "--device", "cpu"]
        self.fail_with(USAGE, "is no llama-3.1-8b", *words, "--floors", file)
        self.fail_with(USAGE, "is no llama-3.1-8b", *words, cwd=SOURCE)


if __name__ == "__main__":
    main()
