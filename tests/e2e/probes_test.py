"""The probes, exactly as other programs read them: score, generate, inspect, tokenize, config, probe grpo."""

import json
import lzma
import math
import os
import pathlib

from support import (
    EndToEnd,
    GOLDEN,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    TEXT_LLAMA,
    USAGE,
    floats,
    log_softmax,
    main,
    model,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
)


class Score(EndToEnd):
    def test_fields_and_figures_follow_from_the_logits(self):
        rows = [
            {"input_ids": [5, 6, 7, 8, 9]},
            {"input_ids": [9, 10, 11, 12, 13], "labels": [-100, -100, -100, 12, 13]},
            {"input_ids": [20, 21, 22, 30, 31, 32], "position_ids": [0, 1, 2, 0, 1, 2]},
            {"input_ids": [4, 5, 6], "labels": [-100, -100, -100]},
        ]
        targets = [{1, 2, 3, 4}, {3, 4}, {1, 2, 4, 5}, set()]
        scores = self.score(
            model(LLAMA), write_rows(self.folder / "rows.jsonl", rows), "--logits", self.folder / "logits.safetensors"
        )
        logits = read_safetensors(self.folder / "logits.safetensors")
        self.assertEqual(sorted(logits), [f"logits.{i}" for i in range(4)])
        for index, (row, score, wanted) in enumerate(zip(rows, scores, targets)):
            ids = row["input_ids"]
            self.assertEqual(list(score), ["row", "ids", "logprobs", "loss", "n_labels"])
            self.assertEqual((score["row"], score["ids"], score["n_labels"]), (index, ids, len(wanted)))
            dtype, shape, data = logits[f"logits.{index}"]
            self.assertEqual((dtype, shape), ("F32", [len(ids), 128]))
            values = floats(data)
            self.assertIsNone(score["logprobs"][0])
            by_hand = [None] + [log_softmax(values[128 * (t - 1) : 128 * t])[ids[t]] for t in range(1, len(ids))]
            positions = row.get("position_ids", range(len(ids)))
            for t in range(1, len(ids)):
                if positions[t] == 0:  # the first token of a segment has nothing before it
                    self.assertIsNone(score["logprobs"][t])
                else:
                    self.assertAlmostEqual(score["logprobs"][t], by_hand[t], places=4)
                    self.assertLess(score["logprobs"][t], 0)
            if wanted:
                self.assertAlmostEqual(score["loss"], -sum(by_hand[t] for t in wanted) / len(wanted), places=4)
            else:
                self.assertIsNone(score["loss"])

    def test_segments_and_order_do_not_mix(self):
        """The first segment may begin beyond position 0."""
        apart = [{"input_ids": [20, 21, 22]}, {"input_ids": [30, 31, 32]}]
        alone = self.score(model(LLAMA), write_rows(self.folder / "b.jsonl", apart), name="b")
        for positions in ([0, 1, 2, 0, 1, 2], [5, 6, 7, 0, 1, 2]):
            packed = [{"input_ids": [20, 21, 22, 30, 31, 32], "position_ids": positions}]
            together = self.score(model(LLAMA), write_rows(self.folder / "a.jsonl", packed))[0]["logprobs"]
            for got, wanted in zip(together, alone[0]["logprobs"] + alone[1]["logprobs"]):
                if wanted is None:
                    self.assertIsNone(got)
                else:
                    self.assertAlmostEqual(got, wanted, places=5)

    def test_an_adapter_changes_the_figures(self):
        rows = self.rows(8)
        adapter = self.train(model(LLAMA), rows, "--max_steps", "5", out="adapter")
        plain, adapted = (
            self.score(model(LLAMA), rows),
            self.score(model(LLAMA), rows, "--model.adapter_name_or_path", adapter, name="a"),
        )
        self.assertLess(sum(s["loss"] for s in adapted), sum(s["loss"] for s in plain))

    def test_text_rows(self):
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is one year."}])
        score = self.score(model(TEXT_LLAMA, tokenizer=LEGAL_BASE), rows)[0]
        self.assertEqual((score["ids"][0], score["ids"][-1]), (0, 1))  # BOS and EOS
        self.assertEqual(score["n_labels"], len(score["ids"]) - 1)
        self.assertAlmostEqual(score["loss"], -sum(score["logprobs"][1:]) / score["n_labels"], places=5)

    def test_rows_are_not_cut(self):
        long = write_rows(self.folder / "rows.jsonl", [{"input_ids": [5] * 80}])  # the model was made for 64
        self.assertEqual(len(self.score(model(LLAMA), long)[0]["logprobs"]), 80)


class Inspect(EndToEnd):
    def test_models(self):
        plain = self.succeed("inspect", model(LLAMA)).out
        for part in ("llama: 2 layers, hidden 32", "21 F32", "problems      none"):
            self.assertIn(part, plain)
        quantised = self.succeed("inspect", NF4_MODEL, "--json")
        report = json.loads(quantised.out)
        self.assertIn("nf4", quantised.out)
        self.assertEqual(report["problems"], [])

    def test_nf4_made_by_init(self):
        made = model(LLAMA, dtype="bfloat16", quantize="nf4")
        self.assertIn("problems      none", self.succeed("inspect", made).out)
        self.assertEqual(len(self.score(made, self.rows(2))), 2)

    def test_an_adapter(self):
        adapter = self.train(model(LLAMA), self.rows(4), "--r", "4", "--max_steps", "1", out="adapter")
        self.assertIn("adapter", self.succeed("inspect", adapter).out)
        path = adapter / "adapter_model.safetensors"
        tensors = read_safetensors(path)
        tensors.pop(next(iter(tensors)))
        write_safetensors(path, tensors)
        self.assertEqual(run("inspect", adapter).code, INPUT)

    def test_a_damaged_quant_state(self):
        folder = self.copied_model(NF4_MODEL)
        path = folder / "model.safetensors"
        tensors = read_safetensors(path)
        name = next(n for n in sorted(tensors) if "quant_state.bitsandbytes" in n)
        dtype, shape, data = tensors[name]
        tensors[name] = (
            dtype,
            shape,
            data.replace(b'"blocksize": 64', b'"blocksize": 63').replace(b'"blocksize":64', b'"blocksize":63'),
        )
        self.assertNotEqual(tensors[name][2], data)
        write_safetensors(path, tensors)
        report = run("inspect", folder)
        self.check_words(report)
        self.assertEqual(report.code, INPUT, str(report))
        self.assertIn("63", report.out + report.err)


class Tokenize(EndToEnd):
    def test_there_and_back(self):
        texts = ["The term is two years.", "Zürich — 100 %\n\tindented", "日本語 🙂", "a line\u2028or two\x85", ""]
        stdin = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        rows = [
            json.loads(line)
            for line in self.succeed("tokenize", "--tokenizer", LEGAL_BASE, stdin=stdin).out.splitlines()
        ]
        self.assertEqual(len(rows), len(texts))
        for row in rows:
            self.assertEqual(set(row) >= {"ids", "text", "trained"}, True)
        stdin = "".join(json.dumps({"ids": row["ids"]}) + "\n" for row in rows)
        back = self.succeed(
            "tokenize", "--tokenizer", LEGAL_BASE, "--decode", "--no_special", stdin=stdin
        ).out.splitlines()
        self.assertEqual([json.loads(line)["text"] for line in back], texts)

    def test_messages_mark_what_is_trained(self):
        row = {
            "messages": [
                {"role": "user", "content": "What is a term?"},
                {"role": "assistant", "content": "A length of time."},
            ]
        }
        done = json.loads(
            self.succeed(
                "tokenize", "--tokenizer", LEGAL_BASE, "--template", "alpaca", stdin=json.dumps(row) + "\n"
            ).out
        )
        ((begin, end),) = done["trained"]
        back = self.succeed(
            "tokenize",
            "--tokenizer",
            LEGAL_BASE,
            "--decode",
            "--no_special",
            stdin=json.dumps({"ids": done["ids"][begin:end]}) + "\n",
        )
        self.assertEqual(json.loads(back.out)["text"].strip(), "A length of time.")


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


class PolicyProbe(EndToEnd):
    """`probe grpo` against TRL: 17 of its losses and 16 of its generations, with UNSLOTH_SHARED all 395 and 191."""

    def golden(self, name, packed=None):
        """The lines in tests/golden, or all of them where UNSLOTH_SHARED names the collection."""
        shared = os.environ.get("UNSLOTH_SHARED")
        if shared is None:
            return json_lines((GOLDEN / "rl" / name).read_text())
        folder = pathlib.Path(shared) / "golden" / "rl"
        return json_lines(lzma.open(folder / packed, "rt").read() if packed else (folder / name).read_text())

    def lines(self, name, count):
        lines = json_lines((GOLDEN / "rl" / name).read_text())
        self.assertEqual(len(lines), count)
        return lines

    def probe(self, lines):
        asked = [{key: value for key, value in line.items() if key != "expected"} for line in lines]
        found = json_lines(self.succeed("probe", "grpo", stdin="".join(json.dumps(line) + "\n" for line in asked)).out)
        self.assertEqual(len(found), len(lines))
        return found

    def refuse(self, code, parts, *lines):
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        return self.fail_with(code, parts, "probe", "grpo", stdin=text)

    def expect_near(self, found, expected, bound, place):
        if isinstance(expected, list):
            self.assertEqual(len(found), len(expected), place)
            for at, (one, wanted) in enumerate(zip(found, expected)):
                self.expect_near(one, wanted, bound, f"{place}[{at}]")
        elif expected is None:
            self.assertIsNone(found, place)
        else:
            self.assertLessEqual(abs(found - expected), bound, place)

    def expect_metrics(self, found, expected, bound, place):
        wanted = {name: value for name, value in expected.items() if not name.startswith("trl_")}
        self.assertEqual(sorted(found), sorted(wanted), place)
        for name, value in wanted.items():
            self.expect_near(found[name], value, bound, f"{place}: {name}")

    def test_losses_are_trls(self):
        lines = self.golden("losses.jsonl", "losses.jsonl.xz")
        self.assertIn(len(lines), (17, 395))
        for line, found in zip(lines, self.probe(lines)):
            expected, name = line["expected"], line["name"]
            self.assertEqual(sorted(found), sorted(expected), name)
            self.expect_near(found["loss"], expected["loss"], 1e-9 * max(1, abs(expected["loss"])), name)
            for key in ("d_logps", "d_entropies", "sampler_ratio"):
                if key in expected:
                    largest = max(abs(value) for row in expected[key] for value in row)
                    self.expect_near(found[key], expected[key], 1e-9 * max(largest, 1e-3), f"{name}: {key}")
            self.expect_metrics(found["metrics"], expected["metrics"], 1e-7, name)  # TRL counts in fp32

    def test_advantages_are_trls(self):
        lines = self.golden("advantages.jsonl")
        self.assertIn(len(lines), (16, 191))
        for line, found in zip(lines, self.probe(lines)):
            expected, name = line["expected"], line["name"]
            self.assertEqual(sorted(found), ["advantages", "metrics"], name)
            self.expect_near(found["advantages"], expected["advantages"], 1e-6, name)
            self.expect_metrics(found["metrics"], expected["metrics"], 1e-6, name)

    def test_what_the_mask_leaves_out_does_not_matter(self):
        lines = self.lines("losses.jsonl", 17)
        wanted = self.probe(lines)
        for line in lines:
            inputs = line["inputs"]
            for key in set(inputs) - {"mask", "advantages"}:
                for row, mask in zip(inputs[key], inputs["mask"]):
                    row[:] = [value if counts else None for value, counts in zip(row, mask)]
        self.assertEqual(self.probe(lines), wanted)

    def test_a_log_probability_that_was_not_recorded_is_no_difference(self):
        lines = self.lines("losses.jsonl", 17)
        line = next(one for one in lines if one["settings"].get("sampler_correction") == "token_truncate")
        line["settings"].update(sampler_clip_min=None)
        inputs = line["inputs"]
        inputs["sampler_logps"] = [[None for _ in row] for row in inputs["mask"]]
        (found,) = self.probe([line])
        self.assertEqual({value for row in found["sampler_ratio"] for value in row}, {1.0})
        self.assertTrue(math.isfinite(found["loss"]))

    def test_weights_by_name(self):
        line = next(one for one in self.lines("advantages.jsonl", 16) if len(one["rewards"]) > 1)
        names, weights = list(line["rewards"]), line["settings"]["reward_weights"]
        by_name = dict(line, settings=dict(line["settings"], reward_weights=dict(zip(names[::-1], weights[::-1]))))
        first, second = self.probe([line, by_name])
        self.assertEqual(first, second)
        by_name["settings"]["reward_weights"].popitem()
        self.refuse("option.conflict", ["line 1: ", f"no weight of {names[0]}"], by_name)
        self.refuse(USAGE, "2 weights, and there are 1 rewards", dict(line, rewards={"one": [1, 2, 3]}))

    def test_settings_are_a_runs(self):
        line = self.lines("losses.jsonl", 17)[0]

        def with_settings(**settings):
            return dict(line, settings=dict(line["settings"], **settings))

        self.refuse(
            "option.unknown", ["line 2: ", "grpo.epsilon_hihg", "epsilon_high"], line, with_settings(epsilon_hihg=1)
        )
        self.refuse("option.invalid-value", ["line 1: ", "loss_type", "dapo"], with_settings(loss_type="ppo"))
        self.refuse(USAGE, "temperature", with_settings(temperature=0))
        self.refuse(USAGE, "num_generations", with_settings(num_generations=1))
        self.refuse("option.conflict", "vespo", with_settings(loss_type="vespo", sampler_correction="sequence_mask"))
        self.refuse("option.conflict", "is not below", with_settings(sampler_clip_min=3.5))
        self.refuse(
            "option.conflict", "bounds", with_settings(sampler_correction="token_truncate", sampler_clip_max=None)
        )

    def test_malformed_lines_are_named(self):
        line = self.lines("losses.jsonl", 17)[0]
        for changed in ("{", "[1]", "5", {"kind": "loss"}, dict(line, extra=1)):
            self.refuse(INPUT, "line 3: ", line, "", changed)
        for key, value in (
            ("mask", [[1]]),
            ("mask", []),
            ("logps", [[0.5]]),
            ("entropies", None),
            ("advantages", [None] * len(line["inputs"]["mask"])),
            ("sampler", []),
        ):
            self.refuse(INPUT, ["line 1: ", key], dict(line, inputs=dict(line["inputs"], **{key: value})))
        for settings, missing in (
            ({"beta": 0.1}, "ref_logps"),
            ({"sampler_correction": "token_mask"}, "sampler_logps"),
        ):
            self.refuse(INPUT, ["line 1: ", missing], dict(line, settings=dict(line["settings"], **settings)))
        line = self.lines("advantages.jsonl", 16)[0]
        for rewards in ({}, {"a": []}, {"a": [1, 0, 1, 0], "b": [1]}, {"a": [True, 0, 0, 0]}, {"a": ["1", 0, 0, 0]}):
            self.refuse(INPUT, ["line 2: ", "rewards"], line, dict(line, rewards=rewards))
        self.refuse(INPUT, "old_logps", dict(line, settings={"advantage": "leave_one_out", "kl_in_reward": True}))


class Config(EndToEnd):
    def test_effective_configuration(self):
        shown = json.loads(self.succeed("config", "--r", "8", "--max-length", "99").out)
        self.assertEqual((shown["lora"]["r"], shown["model"]["max_seq_length"]), (8, 99))
        again = self.folder / "again.json"
        again.write_text(json.dumps(shown))
        self.assertEqual(json.loads(self.succeed("config", "--config", again).out), shown)

    def test_schema(self):
        schema = json.loads(self.succeed("config", "--schema").out)
        shown = json.loads(self.succeed("config").out)
        for section, options in shown.items():
            self.assertEqual(set(options) - set(schema["properties"][section]["properties"]), set())

    def test_help_and_version(self):
        self.assertIn("--lora.r", self.succeed("--help").out)
        self.assertIn("--lora.use_rslora", self.succeed("--help-all").out)
        self.assertIn("unsloth-train ", self.succeed("--version").out)
        for command in ("score", "generate", "init", "inspect", "tokenize", "config", "bench"):
            self.assertIn(command, self.succeed("help", command).out)


if __name__ == "__main__":
    main()
