"""`generate` as other programs read it."""

import json
import shutil

from support import (
    EndToEnd,
    FP32,
    INPUT,
    LEGAL_BASE,
    TEXT_LLAMA,
    USAGE,
    floats,
    main,
    model,
    read_safetensors,
    write_rows,
    write_safetensors,
)


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


if __name__ == "__main__":
    main()
