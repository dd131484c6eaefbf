"""The probes, exactly as other programs read them: score, generate, inspect, tokenize, config, probe grpo."""

import json
import lzma
import math
import os
import pathlib
import shutil
import unittest

from support import (
    EndToEnd,
    FP32,
    GOLDEN,
    INPUT,
    LEGAL_BASE,
    LLAMA,
    NF4_MODEL,
    OK,
    TEXT_LLAMA,
    USAGE,
    floats,
    log_softmax,
    main,
    model,
    read_rows,
    read_safetensors,
    run,
    token_rows,
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


def stopping_model(folder):
    """A model whose next token follows from the present one alone: 40 -> 41 -> 42 -> <|end|>.

    The layers add nothing (their output projections are zero), the embedding rows are distinct and the head is a table."""
    tensors = read_safetensors(folder / "model.safetensors")
    hidden = TEXT_LLAMA["hidden_size"]
    for name, (dtype, shape, data) in list(tensors.items()):
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = (dtype, shape, bytes(len(data)))
    embeddings, head = (
        bytearray(TEXT_LLAMA["vocab_size"] * hidden * 4),
        bytearray(TEXT_LLAMA["vocab_size"] * hidden * 4),
    )
    one = b"\x00\x00\x80\x3f"
    for column, (token, following) in enumerate(((40, 41), (41, 42), (42, 1))):
        for table, row in ((embeddings, token), (head, following)):
            at = 4 * (row * hidden + column)
            table[at : at + 4] = one
    tensors["model.embed_tokens.weight"] = ("F32", [TEXT_LLAMA["vocab_size"], hidden], bytes(embeddings))
    tensors["lm_head.weight"] = ("F32", [TEXT_LLAMA["vocab_size"], hidden], bytes(head))
    write_safetensors(folder / "model.safetensors", tensors)


class Generate(EndToEnd):
    def generate(self, folder, *arguments):
        result = self.succeed("generate", "--model.path", folder, "--device", "cpu", *FP32, *arguments)
        return result.out

    def decoded(self, ids):
        done = self.succeed("tokenize", "--tokenizer", LEGAL_BASE, "--decode", stdin=json.dumps({"ids": ids}) + "\n")
        return json.loads(done.out)["text"]

    def test_it_stops_at_the_end_token(self):
        folder = self.copied_model(model(TEXT_LLAMA, tokenizer=LEGAL_BASE))
        stopping_model(folder)
        answer = json.loads(self.generate(folder, "--prompt", self.decoded([40]), "--json", "--max_new_tokens", "9"))
        self.assertEqual(list(answer), ["prompt_ids", "ids", "text"])
        self.assertEqual(answer["prompt_ids"][-1], 40)
        self.assertEqual(answer["ids"], [41, 42])
        self.assertEqual(answer["text"], self.decoded([41, 42]))
        self.assertEqual(self.generate(folder, "--prompt", self.decoded([40])), answer["text"] + "\n")
        self.assertEqual(
            json.loads(self.generate(folder, "--prompt", self.decoded([40]), "--json", "--max_new_tokens", "1"))["ids"],
            [41],
        )

    def test_the_cache_gives_what_score_finds_likeliest(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        answer = json.loads(
            self.generate(base, "--prompt", "The term of this agreement", "--json", "--max_new_tokens", "6")
        )
        self.assertEqual(len(answer["ids"]), 6)
        ids = answer["prompt_ids"] + answer["ids"]
        rows = write_rows(self.folder / "rows.jsonl", [{"input_ids": ids}])
        self.score(base, rows, "--logits", self.folder / "logits.safetensors")
        values = floats(read_safetensors(self.folder / "logits.safetensors")["logits.0"][2])
        vocab = TEXT_LLAMA["vocab_size"]
        for offset, made in enumerate(answer["ids"]):
            t = len(answer["prompt_ids"]) + offset - 1
            row = values[vocab * t : vocab * (t + 1)]
            self.assertAlmostEqual(row[made], max(row), places=5)

    def test_a_file_of_prompts(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        prompts = write_rows(
            self.folder / "prompts.jsonl",
            [
                {"text": "The price"},
                {"prompt": "Either party may"},
                {"messages": [{"role": "user", "content": "What is a term?"}]},
            ],
        )
        answers = [
            json.loads(line)
            for line in self.generate(base, "--file", prompts, "--json", "--max_new_tokens", "3").splitlines()
        ]
        self.assertEqual(len(answers), 3)
        alone = json.loads(self.generate(base, "--prompt", "Either party may", "--json", "--max_new_tokens", "3"))
        self.assertEqual(answers[1], alone)
        self.assertGreater(len(answers[2]["prompt_ids"]), len(answers[0]["prompt_ids"]))

    def answers(self, folder, *arguments):
        return [json.loads(line) for line in self.generate(folder, "--json", *arguments).splitlines()]

    def test_answers_that_are_drawn(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        drawn = ("--max_new_tokens", "8", "--temperature", "1", "--top_k", "90", "--seed", "3", "--n", "3")
        prompts = write_rows(self.folder / "prompts.jsonl", [{"text": "The price"}, {"text": "Either party may"}])
        both = self.answers(base, "--file", prompts, *drawn)
        self.assertEqual([answer["answer"] for answer in both], [0, 1, 2, 0, 1, 2])
        self.assertEqual(len({tuple(answer["ids"]) for answer in both}), 6)
        first = self.answers(base, "--prompt", "The price", *drawn, "--max_rows", "2")
        self.assertEqual(first, both[:3], "an answer does not depend on what is decoded beside it")
        self.assertNotEqual(self.answers(base, "--prompt", "The price", *drawn, "--seed", "4"), first)

    def test_log_probabilities_are_those_of_score(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        (answer,) = self.answers(
            base, "--prompt", "The price", "--logprobs", "--max_new_tokens", "6", "--temperature", "0.7"
        )
        ids = answer["prompt_ids"] + answer["ids"]
        (score,) = self.score(base, write_rows(self.folder / "rows.jsonl", [{"input_ids": ids}]))
        for made, scored in zip(answer["logprobs"], score["logprobs"][len(answer["prompt_ids"]) :], strict=True):
            self.assertAlmostEqual(made, scored, places=4)

    def test_a_stop_text_ends_an_answer_and_a_stream_shows_the_same(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        prompt = ("--prompt", "The price", "--max_new_tokens", "12")
        whole = self.generate(base, *prompt)[:-1]
        stop = whole[len(whole) // 2 :][:3]
        expected = whole[: whole.index(stop)]
        self.assertEqual(self.generate(base, *prompt, "--stop", stop), expected + "\n")
        self.assertEqual(self.generate(base, *prompt, "--stop", json.dumps([stop]), "--stream"), expected + "\n")
        self.assertEqual(self.generate(base, *prompt, "--stream"), whole + "\n")

    def test_a_conversation(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        said = self.succeed(
            "generate",
            "--model.path",
            base,
            "--device",
            "cpu",
            *FP32,
            "--chat",
            "--max_new_tokens",
            "4",
            stdin="a\nb\n",
        ).out
        turns = [{"role": "user", "content": "a"}]
        prompts = self.folder / "prompts.jsonl"
        first = self.generate(base, "--file", write_rows(prompts, [{"messages": turns}]), "--max_new_tokens", "4")
        turns += [{"role": "assistant", "content": first[:-1]}, {"role": "user", "content": "b"}]
        second = self.generate(base, "--file", write_rows(prompts, [{"messages": turns}]), "--max_new_tokens", "4")
        self.assertEqual(said, first + second)

    def test_an_adapter_finds_its_base(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        out = self.train(base, write_rows(self.folder / "rows.jsonl", [{"text": "The term is two years."}] * 8))
        prompt = ("--prompt", "The price", "--device", "cpu", *FP32, "--adapter_name_or_path", out)
        alone = self.succeed("generate", *prompt).out
        self.assertEqual(alone, self.succeed("generate", *prompt, "--model.path", base).out)

    def test_an_adapter_on_another_base_of_the_same_shape(self):
        base, rows = model(TEXT_LLAMA, tokenizer=LEGAL_BASE), self.rows(4)
        other = model(TEXT_LLAMA, tokenizer=LEGAL_BASE, seed=7)
        moved = self.copied_model(base, "moved")
        quantised = self.folder / "quantised"
        self.succeed("quantize", "--model", base, "--out", quantised)
        out = self.train(base, rows, "--save_steps", "2")
        both = ["was trained on", str(base), "and is used with", str(other), "which holds other weights"]
        cpu = ["--device", "cpu", *FP32, "--model.path"]
        for name, command in {
            "score": ["score", "--data.train_file", rows, "--out", self.folder / "s", "--force", *cpu],
            "generate": ["generate", "--prompt", "a", "--max_new_tokens", "1", *cpu],
            "merge": ["merge", "--no_verify", "--out", self.folder / "merged", "--base"],
            "train": [*self.train_arguments(base, rows, out="more"), "--model.path"],
        }.items():
            adapter = "--adapter" if name == "merge" else "--adapter_name_or_path"
            for place, parts in ((base, []), (moved, []), (other, both)):
                with self.subTest(name=name, place=place):
                    result = self.succeed(*command, place, adapter, out if name != "score" else out / "checkpoint-2")
                    for part in parts:
                        self.assertIn(part, result.err)
                    self.assertEqual("is used with" in result.err, bool(parts), str(result))
                    for made in ("merged", "more"):
                        shutil.rmtree(self.folder / made, ignore_errors=True)
        score = ["score", "--data.train_file", rows, "--out", self.folder / "s", "--force", *cpu]
        result = self.succeed(*score, quantised, "--adapter_name_or_path", out)
        self.assertNotIn("is used with", result.err, "the same model in another precision")
        # An adapter of another program says its base's name alone.
        tensors = read_safetensors(out / "adapter_model.safetensors")
        write_safetensors(out / "adapter_model.safetensors", tensors)
        config = json.loads((out / "adapter_config.json").read_text())
        for named, warned in ((f"some-org/{moved.name}", False), ("some-org/other", True)):
            (out / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": named}))
            result = self.succeed(*score, moved, "--adapter_name_or_path", out)
            said = f"was trained on {named}, and is used with {moved}: whether these are the same weights is not known"
            self.assertEqual(said in result.err, warned, str(result))

    def test_rows_of_a_file_have_adapters_of_their_own(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        strong = ("--max_steps", "4", "--learning_rate", "0.03")
        rows = write_rows(self.folder / "rows.jsonl", [{"text": "The term is two years."}] * 8)
        law = self.train(base, rows, *strong, "--r", "4", out="law")
        other = self.train(base, rows, *strong, "--r", "6", "--target_modules", "q_proj,o_proj", out="other")
        text, new = {"text": "The price of"}, ("--max_new_tokens", "6")
        prompts = write_rows(self.folder / "prompts.jsonl", [text])
        alone = [self.answers(base, "--file", prompts, *new)]
        alone += [self.answers(base, "--file", prompts, *new, "--adapter_name_or_path", out) for out in (law, other)]
        self.assertEqual(len({tuple(answer["ids"]) for (answer,) in alone}), 3, "the adapters must matter")
        named = [text | {"adapter": "other"}, text, text | {"adapter": "law"}, text | {"adapter": None}]
        prompts = write_rows(self.folder / "named.jsonl", named)
        given = ("--adapter", f"law={law}", "--adapter", f"other={other}")
        together = self.answers(base, "--file", prompts, *new, *given)
        self.assertEqual(together, alone[2] + alone[0] + alone[1] + alone[0])
        found = self.succeed("generate", "--device", "cpu", *FP32, "--file", prompts, "--json", *new, *given).out
        self.assertEqual(
            [json.loads(line) for line in found.splitlines()], together, "the first adapter names the base"
        )
        self.fail_with(
            INPUT,
            ["named.jsonl:1", "adapter 'other'", "there are law"],
            *("generate", "--model.path", base, "--file", prompts, "--device", "cpu", "--adapter", f"law={law}"),
        )

    def test_a_cache_that_is_too_small(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        self.fail_with(
            USAGE,
            ["--kv_cache_memory 1KB", "A token takes"],
            *("generate", "--model.path", base, "--prompt", "x", "--device", "cpu", "--kv_memory", "1KB"),
        )
        self.fail_with(
            USAGE,
            "--max_model_len is 20",
            *("generate", "--model.path", base, "--prompt", "x", "--device", "cpu", "--max_context", "20"),
        )


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
