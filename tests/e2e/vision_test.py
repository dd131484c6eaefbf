"""Rows with images: a small Qwen3-VL, Qwen2.5-VL and Llama 3.2 Vision are trained, scored and merged from files alone, as
transformers and PEFT did, and answer about images. What does not go with images is refused by name."""

import base64
import concurrent.futures
import json
import lzma
import re
import shutil
import struct
import zlib
from pathlib import Path

from serve_test import Served
from support import FP32, GOLDEN, LEGAL_BASE, OK, EndToEnd, main, read_rows, write_rows

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "mllama")
ANSWERED = ("--max_new_tokens", "40")


def plain_copy(source, target):
    """The files of a folder, .xz files expanded."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".xz":
            (target / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        elif file.is_file():
            shutil.copy(file, target)
    return target


def png(width, height):
    """A file whose header claims that size, with no pixels."""
    chunk = lambda name, data: (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    )  # fmt: skip
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def data_url(file):
    return "data:image/png;base64," + base64.b64encode(file).decode()


class Seeing(EndToEnd):
    def family(self, name):
        """Its model with a tokenizer, the adapter that a reference run began with, that run's rows and its metrics."""
        root = self.folder / name
        plain_copy(GOLDEN / "families" / name / "model", root / "model")
        plain_copy(GOLDEN / "images" / name / "saved", root / "model")
        adapter = plain_copy(GOLDEN / "families" / name / "lora" / "initial", root / "adapter")
        lora = plain_copy(GOLDEN / "families" / name / "lora", root)
        shutil.copytree(GOLDEN / "images" / "images", root / "images")
        return root / "model", adapter, lora / "rows.jsonl", json.loads((lora / "metrics.json").read_text())

    def answers(self, name):
        """What transformers answered to prompts with images (make_seen_answers.py)."""
        return json.loads((GOLDEN / "families" / name / "generate.json").read_text())


class Vision(Seeing):
    def reference_run(self, folder, adapter, rows, *more, out="out"):
        return self.train(
            folder, rows, "--adapter_name_or_path", adapter, "--per_device_train_batch_size", 2,
            "--gradient_accumulation_steps", 2, "--max_steps", 8, "--learning_rate", 0.001, "--lr_scheduler_type",
            "cosine", "--warmup_steps", 2, "--weight_decay", 0.01, "--data.shuffle", "false", "--optim", "adamw_torch",
            *more, out=out,
        )  # fmt: skip

    def test_a_run_on_images_is_the_references(self):
        for name in FAMILIES:
            folder, adapter, rows, metrics = self.family(name)
            out = self.reference_run(
                folder, adapter, rows, "--data.eval_file", rows, "--eval_steps", 4, out=name + "-out"
            )
            steps = self.steps(out)
            self.assertEqual(len(steps), 8)
            for got, expected in zip(steps, metrics["steps"]):
                self.assertAlmostEqual(got["loss"], expected["loss"], delta=metrics["tolerance"]["loss_max_abs"])
            first, last = self.evaluations(out)
            self.assertLess(last["eval_loss"], first["eval_loss"])
            self.expect_pictured(out, rows)

    def expect_pictured(self, out, rows):
        """The first rows with images as `data` shows them, with thumbnails, on the run's page."""
        given = [(i, row["images"]) for i, row in enumerate(read_rows(rows)) if row.get("images")][:4]
        pictured = read_rows(out / "pictured_rows.jsonl")
        self.assertEqual([row["row"] for row in pictured], [i for i, _ in given])
        page = self.folder / "page.html"
        self.succeed("report", out, "--out", page, "--force")
        html = page.read_text()
        for row, (_, images) in zip(pictured, given):
            self.assertEqual(len(row["images"]), min(len(images), 4))
            for image, name in zip(row["images"], images):
                self.assertTrue(image["url"].startswith("data:image/png;base64,"), name)
                self.assertIn(f'src="{image["url"]}"', html)
                begin, end = image["tokens"]
                self.assertIn(f"{end - begin} token{'s' * (end - begin > 1)} from token {begin}", html)
                self.assertIn(Path(name).name, row["text"])
        self.assertNotIn("http", html.replace("http://www.w3.org/2000/svg", ""))

    def test_evaluations_answer_about_images(self):
        for name in FAMILIES:
            folder, adapter, rows, _ = self.family(name)
            (case,) = [one for one in self.answers(name) if one["images"] == ["images/k_lossy.webp"]]
            asked = {"messages": case["messages"], "images": case["images"]}
            prompts = write_rows(rows.with_name("prompts.jsonl"), [asked])
            judged = {"messages": case["messages"] + [{"role": "assistant", "content": "it"}], "images": case["images"]}
            held_out = write_rows(rows.with_name("held_out.jsonl"), [judged] * 3)
            out = self.train(
                folder, rows, "--max_steps", 1, "--learning_rate", 0, "--data.eval_file", held_out, "--eval_steps", 1,
                "--eval_metric", "exact_match", "--eval_max_new_tokens", 8, "--sample_prompts", prompts,
                "--sample_max_new_tokens", 8, "--eval_on_start", "true", out=name + "-out",
            )  # fmt: skip
            self.assertIn("eval_exact_match", self.evaluations(out)[-1])
            said = self.succeed(
                "generate", "--model.path", folder, "--device", "cpu", *FP32, "--max_new_tokens", 8, "--file", prompts,
            ).out  # fmt: skip
            samples = read_rows(out / "samples.jsonl")
            self.assertEqual(samples[-1]["answer"], said.removesuffix("\n"), name)
            (picture,) = samples[0]["images"]
            file = base64.b64decode(picture.removeprefix("data:image/png;base64,"), validate=True)
            self.assertTrue(file.startswith(b"\x89PNG"))
            self.assertNotIn("images", samples[-1])
            page = self.succeed("report", out, "--out", self.folder / f"{name}.html")
            self.assertIn(picture, (self.folder / f"{name}.html").read_text(), page)

    def test_preferences_about_images_are_the_references(self):
        for name in ("qwen3_vl", "mllama"):
            folder, adapter, rows, metrics = self.family(name)
            golden = json.loads((GOLDEN / "families" / name / "preferences.json").read_text())
            pairs = [golden["rows"][i % len(golden["rows"])] for i in range(16)]
            file = write_rows(rows.with_name("pairs.jsonl"), pairs)
            common = (
                folder, file, "--adapter_name_or_path", adapter, "--per_device_train_batch_size", 2,
                "--gradient_accumulation_steps", 1, "--max_steps", 8, "--learning_rate", 0.001, "--lr_scheduler_type",
                "cosine", "--warmup_steps", 2, "--weight_decay", 0.01, "--data.shuffle", "false", "--optim",
                "adamw_torch",
            )  # fmt: skip
            for shares in ("true", "false"):
                out = self.train(*common, "--objective", "dpo", "--share_prompt", shares, out=f"{name}-{shares}")
                losses = [step["loss"] for step in self.steps(out)]
                self.assertEqual(len(losses), 8)
                for got, expected in zip(losses, golden["losses"]):
                    self.assertAlmostEqual(got, expected, delta=2e-5, msg=f"{name} {shares}")
            packed = self.train(*common, "--objective", "dpo", "--packing", "true", out=f"{name}-packed")
            self.assertTrue(all(0 < step["loss"] < 1 for step in self.steps(packed)))
            self.train(*common, "--objective", "orpo", out=f"{name}-orpo")
            judged = [
                {"prompt": row["prompt"], "completion": row[answer], "label": answer == "chosen"}
                | {key: row[key] for key in ("images",) if key in row}
                for row in pairs[:5] for answer in ("chosen", "rejected")
            ]  # fmt: skip
            write_rows(file, judged)
            self.train(*common, "--objective", "kto", out=f"{name}-kto")

    def two_epochs(self, folder, rows, out, *more, steps=16):
        """What a run of 8 steps an epoch says, and its losses."""
        arguments = self.train_arguments(
            folder, rows, "--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 1, "--max_steps", steps, "--data.eval_file", rows,
            "--eval_steps", 4, "--save_steps", 10, *more, out=out,
        )  # fmt: skip
        log = self.succeed("train", *arguments).err
        return log, [step["loss"] for step in self.steps(self.folder / out)]

    def test_features_are_kept(self):
        """The tower sees each image once, in all epochs and evaluations. What a resumed run trains is the same."""
        for name in ("qwen2_5_vl", "mllama"):
            folder, _, rows, _ = self.family(name)
            images = [image for row in read_rows(rows) for image in row.get("images", [])]
            files = len(set(images))
            log, kept = self.two_epochs(folder, rows, "kept")
            self.assertRegex(log, r"images +their features stay in host memory, .* of all images they take")
            self.assertRegex(log, r"image features +1 buffers")
            seen, fetched, held = re.search(
                r"the tower saw (\d+), features of (\d+) were .* those of (\d+)", log
            ).groups()
            self.assertEqual((int(seen), int(held)), (files, files))
            self.assertGreater(int(fetched), 2 * files)
            log, recomputed = self.two_epochs(folder, rows, "recomputed", "--image_features", "recompute")
            self.assertNotIn("the tower saw", log)
            for one, other in zip(kept, recomputed, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-3)
            log, _ = self.two_epochs(folder, rows, "short", steps=8)
            self.assertIn("their features are not kept: the run is no longer than one epoch", log)
            # As a run that was killed leaves its folder.
            shutil.copytree(self.folder / "kept" / "checkpoint-10", self.folder / "resumed" / "checkpoint-10")
            for file in (self.folder / "kept").iterdir():
                if file.is_file() and file.name not in ("adapter_model.safetensors", "trainer_state.json"):
                    shutil.copy(file, self.folder / "resumed")
            log, resumed = self.two_epochs(folder, rows, "resumed", "--resume_from_checkpoint", "auto")
            self.assertIn("resuming from", log)
            self.assertIn(f"the tower saw {files}, ", log)
            self.assertEqual(resumed, kept)
            for out in ("kept", "recomputed", "short", "resumed"):
                shutil.rmtree(self.folder / out)

    def test_scores_and_merges_see_the_images(self):
        for name in ("qwen3_vl", "mllama"):
            with self.subTest(name):
                self.score_and_merge(name)

    def score_and_merge(self, name):
        folder, adapter, rows, _ = self.family(name)
        with_adapter = self.score(folder, rows, "--adapter_name_or_path", adapter)
        merged = self.folder / name / "merged"
        self.succeed(
            "merge", "--adapter", adapter, "--base", folder, "--out", merged, "--dtype", "fp32", "--verify", rows
        )
        self.assertTrue((merged / "processor_config.json").is_file())
        self.assertTrue((merged / "chat_template.jinja").is_file())
        for one, other in zip(with_adapter, self.score(merged, rows, name="merged.jsonl"), strict=True):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-4)
        # Images change places: the rows' losses tell.
        given = read_rows(rows)[:2]
        images = [row["images"] for row in given]
        swapped = [row | {"images": other} for row, other in zip(given, images[::-1])]
        swapped = self.score(merged, write_rows(rows.with_name("swapped.jsonl"), swapped), name="swapped.jsonl")
        for one, other in zip(with_adapter, swapped):
            self.assertGreater(abs(one["loss"] - other["loss"]), 1e-3)

    def test_plans_know_of_images(self):
        folder, _, _, _ = self.family("qwen2_5_vl")
        common = ("plan", "--model.path", folder, "--max_seq_length", 64, "--gpu", "H200", "--json")
        text, one, two = (
            json.loads(self.succeed(*common, "--images", images, "--image_size", 56).out) for images in (0, 1, 2)
        )
        for key in ("total_bytes", "predicted_step_ms"):
            self.assertLess(text[key], one[key])
            self.assertLess(one[key], two[key])
        self.fail_with("option.out-of-range", "80 tokens", *common, "--images", 20, "--image_size", 56)
        for shared in ("--tp_size", "--cp_size", "--pp_size"):
            self.fail_with(
                "parallel.unsupported", "rows that have images", *common, "--images", 1, "--image_size", 56, "--gpus", 2,
                shared, 2,
            )  # fmt: skip
        self.fail_with(
            "model.unsupported", "text alone", "plan", "--model.path", LEGAL_BASE, "--gpu", "H200", "--images", 1
        )

    def test_refused_by_name(self):
        folder, adapter, rows, _ = self.family("qwen3_vl")
        arguments = self.train_arguments(folder, rows, "--max_steps", 1)
        self.fail_with(
            "option.conflict", ["lora.vision", "use_dora"], "train", *arguments,
            "--lora.vision", "true", "--use_dora", "true",
        )  # fmt: skip
        self.fail_with(
            "option.conflict", ["image_features", "lora.vision"], "train", *arguments,
            "--lora.vision", "true", "--image_features", "keep",
        )  # fmt: skip
        self.fail_with(
            "image.text-model", "image", "train", *self.train_arguments(LEGAL_BASE, rows, "--data.template", "chatml")
        )
        self.fail_with(
            "export.unsupported", "sees images", "export", "gguf", "--model", folder, "--out", self.folder / "m.gguf"
        )
        folder, adapter, rows, _ = self.family("mllama")
        arguments = self.train_arguments(folder, rows, "--max_steps", 1)
        self.fail_with("option.unsupported", "lora.use_dora", "train", *arguments, "--use_dora", "true")
        self.fail_with(
            "export.unsupported", "sees images", "export", "gguf", "--model", folder, "--out", self.folder / "l.gguf"
        )


class Answers(Seeing):
    def generate(self, folder, *arguments, **options):
        done = self.succeed(
            "generate", "--model.path", folder, "--device", "cpu", *FP32, *ANSWERED, *arguments, **options
        )
        return done.out

    def lines(self, folder, *arguments):
        return [json.loads(line) for line in self.generate(folder, "--json", *arguments).splitlines()]

    def expect_reference(self, got, expected):
        self.assertEqual(got["prompt_ids"], expected["prompt_ids"])
        count = len(got["ids"])
        self.assertEqual(got["ids"], expected["ids"][:count])
        self.assertTrue(count == len(expected["ids"]) or expected["ids"][count] in (0, 2, 4), "it ended of itself")

    def test_are_those_of_transformers(self):
        for name in FAMILIES:
            folder, _, rows, _ = self.family(name)
            expected = self.answers(name)
            prompts = [{k: v for k, v in one.items() if k in ("messages", "images") and v} for one in expected]
            file = write_rows(rows.with_name("prompts.jsonl"), prompts)
            got = self.lines(folder, "--file", file)
            self.assertEqual(len(got), len(expected))
            for one, other in zip(got, expected):
                self.expect_reference(one, other)
            # The same words as options: before the text, twice, and within it.
            first = "".join(part.get("text", "") for part in expected[0]["messages"][0]["content"])
            for number, prompt in ((0, first), (1, "blue ? three"), (3, "fox what<image>two the")):
                images = [
                    word for path in expected[number]["images"] for word in ("--image", self.folder / name / path)
                ]
                (one,) = self.lines(folder, "--prompt", prompt, *images)
                self.expect_reference(one, expected[number])
            sampled = ("--temperature", "0.8", "--seed", "3", "--n", "3")
            file = write_rows(
                rows.with_name("text_image.jsonl"), [{"prompt": first, "images": [expected[0]["images"][0]]}]
            )
            drawn = self.lines(
                folder, "--prompt", first, "--image", self.folder / name / expected[0]["images"][0], *sampled
            )
            self.assertEqual(drawn, self.lines(folder, "--file", file, *sampled))

    def test_a_chat_keeps_its_images(self):
        for name in ("qwen3_vl", "mllama"):
            self.chat_about(name)

    def chat_about(self, name):
        folder, _, rows, _ = self.family(name)
        image = self.folder / name / "images/a_420.jpg"
        said = self.generate(folder, "--chat", stdin=f"/image {image}\nthe dots\nand the lines\n")
        messages = [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "the dots"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "and the lines"},
        ]
        file = rows.with_name("turns.jsonl")
        row = {"messages": messages[:1], "images": ["images/a_420.jpg"]}
        (first,) = self.lines(folder, "--file", write_rows(file, [row]))
        messages[1]["content"] = first["text"]
        (second,) = self.lines(folder, "--file", write_rows(file, [row | {"messages": messages}]))
        self.assertEqual(said, f"{first['text']}\n{second['text']}\n")

    def test_an_evaluation_judges_answers_about_images(self):
        for name in ("qwen3_vl", "mllama"):
            self.evaluate_answers(name)

    def evaluate_answers(self, name):
        folder, _, rows, _ = self.family(name)
        expected = self.answers(name)
        prompts = [one for one in expected if len(one["messages"]) == 1]
        generated = self.lines(
            folder, "--file",
            write_rows(rows.with_name("prompts.jsonl"),
                       [{"messages": one["messages"], "images": one["images"]} for one in prompts]),
        )  # fmt: skip
        answered = [
            {"messages": one["messages"] + [{"role": "assistant", "content": text}], "images": one["images"]}
            for one, text in zip(prompts, [generated[0]["text"], *["no"] * (len(prompts) - 1)])
        ]
        file = write_rows(rows.with_name("judged.jsonl"), answered)
        written = self.folder / f"{name}-answers.jsonl"
        done = self.succeed(
            "evaluate", "--model.path", folder, "--device", "cpu", *FP32, *ANSWERED, "--data.eval_file", file,
            "--metric", "exact_match", "--answers", written, "--json",
        )  # fmt: skip
        self.assertEqual(json.loads(done.out)["answers"], len(prompts))
        for one, other in zip(read_rows(written), generated, strict=True):
            self.assertEqual(one["answer"], other["text"])
        self.assertTrue(read_rows(written)[0]["correct"])

    def test_refused_by_name(self):
        folder, _, rows, _ = self.family("qwen3_vl")
        asked = ("generate", "--model.path", folder, "--device", "cpu", *FP32, *ANSWERED)
        image = self.folder / "qwen3_vl/images/a_420.jpg"
        self.fail_with("image.count", "2 images", *asked, "--prompt", "a<image>b", "--image", image, "--image", image)
        self.fail_with("disk.cannot-read", "none.jpg", *asked, "--prompt", "x", "--image", self.folder / "none.jpg")
        self.fail_with("image.remote", "http", *asked, "--file", write_rows(
            rows.with_name("url.jsonl"), [{"prompt": "x", "images": ["http://example.com/a.png"]}]))  # fmt: skip
        outside = shutil.copy(image, self.folder / "outside.jpg")
        self.fail_with("image.outside-root", "outside.jpg", *asked, "--file", write_rows(
            rows.with_name("out.jsonl"), [{"prompt": "x", "images": [str(outside)]}]))  # fmt: skip
        self.fail_with(
            "image.text-model", "images", "generate", "--model.path", LEGAL_BASE, "--device", "cpu", *FP32,
            "--template", "chatml", "--prompt", "x", "--image", image,
        )  # fmt: skip
        bad = self.folder / "bad.png"
        bad.write_bytes(image.read_bytes()[:200])
        self.fail_with("image.damaged", "bad.png", *asked, "--prompt", "x", "--image", bad)
        for file, error in (
            (png(30_000, 30_000), "image.too-large"), (png(50_000, 1), "image.too-large"), (b"", "image.unknown-type"),
            (b"no image", "image.unknown-type"),
        ):  # fmt: skip
            bad.write_bytes(file)
            self.fail_with(error, "bad.png", *asked, "--prompt", "x", "--image", bad)
        folder_of_rows = self.folder / "rows"
        folder_of_rows.mkdir()
        (folder_of_rows / "link.jpg").symlink_to(outside)
        self.fail_with("image.outside-root", "outside.jpg", *asked, "--file", write_rows(
            folder_of_rows / "rows.jsonl", [{"prompt": "x", "images": ["link.jpg"]}]))  # fmt: skip


class Serving(Seeing, Served):
    def image_part(self, path):
        data = base64.b64encode((GOLDEN / "images" / path).read_bytes()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    def request(self, case):
        """A golden case as OpenAI's clients send it."""
        shown = iter(case["images"])
        messages = [
            message | {"content": [
                self.image_part(next(shown)) if part["type"] == "image" else part for part in message["content"]
            ]}
            for message in case["messages"]
        ]  # fmt: skip
        return {"messages": messages, "max_completion_tokens": 40, "temperature": 0}

    def test_chats_with_images(self):
        for name in ("qwen2_5_vl", "mllama"):
            self.chats_with(name)

    def chats_with(self, name):
        folder, _, rows, _ = self.family(name)
        cases = self.answers(name)
        prompts = [{k: v for k, v in one.items() if k in ("messages", "images") and v} for one in cases]
        done = self.succeed(
            "generate", "--model.path", folder, "--device", "cpu", *FP32, *ANSWERED, "--json", "--file",
            write_rows(rows.with_name("prompts.jsonl"), prompts),
        )  # fmt: skip
        expected = [json.loads(line) for line in done.out.splitlines()]
        service = self.serve(base=("--model.path", folder, "--device", "cpu", *FP32))

        def ask(number, **more):
            status, answer = service.post("/v1/chat/completions", **self.request(cases[number]), **more)
            self.assertEqual(status, 200, answer)
            return answer

        numbers = [i % len(cases) for i in range(4 * len(cases))]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, numbers))
        for number, answer in zip(numbers, answers):
            self.assertEqual(answer["choices"][0]["message"]["content"], expected[number]["text"], number)
            self.assertEqual(answer["usage"]["prompt_tokens"], len(cases[number]["prompt_ids"]))

        # Seeded answers are the same next to others and alone, of texts and of images.
        seeded = {"temperature": 0.9, "seed": 5}
        ask_seeded = lambda number: service.post(
            "/v1/chat/completions", **(self.request(cases[number]) | seeded)
        )[1]["choices"][0]["message"]["content"]  # fmt: skip
        alone = [ask_seeded(number) for number in (0, 5)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask_seeded, [0, 5] * 8))
        self.assertEqual(together, alone * 8)

        (shown,) = [one for one in self.request(cases[0])["messages"]]
        parts = [
            {"type": "input_image", "image_url": part["image_url"]["url"]} if part["type"] == "image_url"
            else {"type": "input_text", "text": part["text"]}
            for part in shown["content"]
        ]  # fmt: skip
        said, told = service.post(
            "/v1/responses", input=[{"role": "user", "content": parts}], store=False, temperature=0,
            max_output_tokens=40,
        )  # fmt: skip
        self.assertEqual(said, 200, told)
        self.assertEqual(told["output"][0]["content"][0]["text"], expected[0]["text"])
        self.assertEqual(told["usage"]["input_tokens"], len(cases[0]["prompt_ids"]))
        parts[0] = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        status, answer = service.post("/v1/responses", input=[{"role": "user", "content": parts}], store=False)
        self.assertEqual((status, answer["error"]["code"]), (400, "invalid_image"), answer)
        self.assertEqual(answer["error"]["param"], "input")

        _, counted = service.post("/tokenize", messages=self.request(cases[1])["messages"])
        self.assertEqual(counted["tokens"], cases[1]["prompt_ids"])
        self.refused(service, cases)
        self.assertEqual(service.stop(), OK)

    def refused(self, service, cases):
        def chat(part, content=None):
            content = content or [part, {"type": "text", "text": "x"}]
            return service.post("/v1/chat/completions", messages=[{"role": "user", "content": content}])

        where = "messages[0].content[0].image_url.url"
        for url in ("https://example.com/a.png", "http://10.0.0.1/x", "file:///etc/passwd", "/etc/passwd"):
            status, answer = chat({"type": "image_url", "image_url": {"url": url}})
            self.assertEqual((status, answer["error"]["param"]), (400, where), answer)
            self.assertIn("data: URLs", answer["error"]["message"])
        for url, told in (
            ("data:image/png;base64,%%%", "base64"),
            ("data:image/png;base64," + base64.b64encode(b"no image").decode(), "JPEG"),
            ("data:image/png,raw", "base64"),
            *((data_url(png(*size)), "pixels") for size in ((30_000, 30_000), (50_000, 1), (1, 50_000))),
            (data_url((GOLDEN / "images/images/a_420.jpg").read_bytes()[:300]), "cut off"),
            (data_url(b""), "no bytes"),
            (data_url(b"<svg/>"), "SVG"),
        ):
            status, answer = chat({"type": "image_url", "image_url": {"url": url}})
            self.assertEqual((status, answer["error"]["code"]), (400, "invalid_image"), answer)
            self.assertIn(told, answer["error"]["message"])
        part = self.image_part(cases[0]["images"][0])
        part["image_url"]["detail"] = "low"
        self.assertEqual(chat(part)[0], 400)
        status, answer = chat(None, [self.image_part(cases[0]["images"][0])] * 40)
        self.assertEqual(status, 400)
        self.assertIn(answer["error"]["code"], ("context_length_exceeded", "invalid_image"), answer)
        status, answer = chat({"type": "input_audio"})
        self.assertEqual((status, answer["error"]["param"]), (400, "messages[0].content[0].type"))

    def test_a_model_of_texts_refuses_images(self):
        service = self.serve()
        status, answer = service.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": [self.image_part("images/a_420.jpg")]}]
        )
        self.assertEqual((status, answer["error"]["param"]), (400, "messages[0].content[0].type"), answer)
        self.assertEqual(service.stop(), OK)


if __name__ == "__main__":
    main()
