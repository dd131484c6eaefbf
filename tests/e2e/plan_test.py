"""`unsloth-train plan`: what a run would take of a GPU that is not here."""

import time
from xml.etree import ElementTree

from plan_support import HOST, Planning
from support import *

SMALL_GPUS = SOURCE / "configs" / "small-gpus"
# configuration: shape, memory of the card
ACCEPTED = {
    "mistral-7b-24-gib": ("mistral-7b", "24GiB"),
    "llama-8b-24-gib-2k": ("llama-3.1-8b", "24GiB"),
    "llama-8b-24-gib-8k": ("llama-3.1-8b", "24GiB"),
    "llama-8b-24-gib-32k": ("llama-3.1-8b", "24GiB"),
    "qwen3-14b-24-gib": ("qwen3-14b", "24GiB"),
    "llama-8b-8-gib": ("llama-3.1-8b", "8GiB"),
    "llama-70b-24-gib": ("llama-3.1-70b", "24GiB"),
}


class Plan(Planning):
    def test_the_configurations_for_small_gpus_fit(self):
        self.assertEqual({path.stem for path in SMALL_GPUS.glob("*.json")}, set(ACCEPTED))
        for name, (shape, memory) in ACCEPTED.items():
            host = [] if "70b" in name else HOST
            plan = self.plan(
                "--config", SMALL_GPUS / f"{name}.json", "--model.path", shape, "--gpu_memory", memory, *host
            )
            self.assertTrue(plan["fits"], name)
            self.assertLessEqual(plan["total_bytes"], plan["budget_bytes"], name)
            self.assertLessEqual(plan["host_bytes"], plan["host_budget_bytes"], name)
            self.assertGreater(plan["predicted_tokens_per_second"], 0, name)

    def test_8_bit_products_are_for_cards_that_have_them(self):
        served = []
        for file in sorted((SOURCE / "cards").glob("*.json")):
            card = json.loads(file.read_text())
            self.assertEqual("fp8_products_tflops" in card, card["compute_capability"] == 9.0, file.name)
            arguments = ["--model.path", "llama-3.1-8b", "--gpu", card["name"], *HOST,
                         "--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1]  # fmt: skip
            if card["compute_capability"] == 9.0:
                served.append(file.stem)
                int8 = self.plan(*arguments, "--compute_dtype", "int8")
                plans = [self.plan(*arguments, "--compute_dtype", c) for c in ("auto", "fp8_backward", "fp8_both")]
                self.assertEqual([p["layers"][0]["form"] for p in plans], ["bf16", "bf16+fp8", "fp8"])
                rates = [p["predicted_tokens_per_second"] for p in plans]
                self.assertEqual(rates, sorted(rates))
                self.assertEqual(int8["layers"][0]["form"], "int8 codes")
                self.assertLess(rates[1], int8["predicted_tokens_per_second"])
                self.assertLess(int8["predicted_tokens_per_second"], rates[2])
                # Half of the gain, but for the codes of logits' gradients, and layers that find no room expanded.
                self.assertAlmostEqual(2 / rates[1], 1 / rates[0] + 1 / rates[2], delta=8e-3 / rates[1])
                heads = [p["device"]["embeddings"] - plans[0]["device"]["embeddings"] for p in plans]
                vocabulary, hidden = 128256, 4096
                for heads_codes, matrices in zip(heads, range(3)):
                    self.assertAlmostEqual(heads_codes, matrices * vocabulary * hidden, delta=2**20)
            else:
                for compute in ("fp8_backward", "fp8_both"):
                    self.fail_with(
                        USAGE, [f"{compute} is for H100 and H200", card["name"]], "plan", *arguments,
                        "--compute_dtype", compute,
                    )  # fmt: skip
                if "int8_products_tflops" not in card:
                    self.fail_with("device.unsupported", ["int8 has no products on", card["name"]], "plan", *arguments,
                                   "--compute_dtype", "int8")  # fmt: skip
                    continue
                short = [*arguments[:-4], "--per_device_train_batch_size", 1, "--max_seq_length", 1024]
                rates = [
                    self.plan(*short, "--compute_dtype", compute)["predicted_tokens_per_second"]
                    for compute in ("auto", "int8")
                ]
                self.assertLess(rates[0], rates[1], file.name)
        self.assertEqual(served, ["h100", "h200"])

    def test_every_committed_configuration_is_planned_for_a_card(self):
        configurations = sorted((SOURCE / "configs" / "llama-8b").glob("*.json"))
        cards = sorted((SOURCE / "cards").glob("*.json"))
        self.assertGreaterEqual(len(configurations), len(cards))  # each card has its turn
        for number, configuration in enumerate(configurations):
            card = cards[number % len(cards)]
            arguments = (
                "plan",
                "--config",
                configuration,
                "--model.path",
                "llama-3.1-8b",
                "--gpu",
                card,
                *HOST,
                "--json",
            )
            with self.subTest(configuration=configuration.stem, card=card.stem):
                result = run(*arguments)
                refused = {"fp8": card.stem not in ("h100", "h200"), "int8": card.stem == "b200"}
                if any(refused.get(word, False) for word in configuration.stem.split("-")):
                    self.assertEqual(result.code, USAGE, str(result))
                    continue
                plan = json.loads(result.out)
                self.assertEqual(result.code, OK if plan["fits"] else RUNTIME, str(result))
                self.assertEqual(bool(plan["remedies"]), not plan["fits"])
                self.assertEqual(plan["total_bytes"] <= plan["budget_bytes"], plan["fits"])

    def test_a_plan_says_what_the_interface_promises(self):
        plan = self.plan(
            "--model.path",
            "llama-3.1-8b",
            "--gpu",
            "H200",
            "--per_device_train_batch_size",
            8,
            "--gradient_accumulation_steps",
            1,
            *HOST,
        )
        for key in (
            "fits",
            "total_bytes",
            "device",
            "host_bytes",
            "disk_bytes",
            "layers",
            "micro_tokens",
            "predicted_step_ms",
            "predicted_tokens_per_second",
            "largest",
            "remedies",
        ):
            self.assertIn(key, plan)
        self.assertEqual(len(plan["layers"]), 32)
        layer = {
            "keep": "everything",
            "activations_at": "device",
            "weights_at": "device",
            "form": "bf16",
            "cached": True,
        }
        self.assertEqual(plan["layers"][0], layer)
        self.assertEqual(plan["micro_tokens"], 8 * 2048)
        self.assertEqual(sum(plan["device"].values()), plan["total_bytes"])
        self.assertAlmostEqual(
            plan["predicted_tokens_per_second"] * plan["predicted_step_ms"] / 1000, 8 * 2048, delta=1
        )
        self.assertGreaterEqual(plan["largest"]["batch"], 8)
        self.assertGreaterEqual(plan["largest"]["seq"], 131072)
        text = self.succeed("plan", "--model.path", "llama-3.1-8b", "--gpu", "H200", *HOST).out
        for words in ("NVIDIA H200", "tokens/s", "in all", "at most"):
            self.assertIn(words, text)

    def test_a_config_json_is_enough_and_takes_no_second(self):
        folder = self.folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
        arguments = ("--model.path", folder, "--gpu", "rtx 4090", "--max_seq_length", 64, *HOST)
        self.plan(*arguments)  # the libraries are in the page cache from here on
        start = time.monotonic()
        plan = self.plan(*arguments)
        self.assertLess(time.monotonic() - start, 10)  # 0.8 s where nothing else runs
        self.assertFalse(plan["measured"])
        bnb = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        (folder / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": bnb}))
        self.fail_with(
            USAGE, [f"{folder}: finetuning_type full needs"], "plan", *arguments, "--finetuning_type", "full"
        )

    def test_what_is_left_to_the_program_is_told(self):
        words = ("plan", "--model.path", "llama-3.1-8b", "--gpu", "H200", "--learning_rate", "auto", "--r", "auto")
        log = self.succeed(*words).err
        self.assertIn("learning_rate auto: 2.86e-04", log)
        self.assertIn("r auto: 32 is a placeholder: the run chooses", log)
        log = self.succeed(*words, "--max_steps", 20000, "--max_seq_length", 2048).err
        self.assertIn("r auto: 128: the adapters' 335544320 parameters are at least the 327680000 targets", log)

    def test_a_picture_of_the_step(self):
        picture = self.folder / "step.svg"
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--per_device_train_batch_size", 8, *HOST)
        plan = self.plan(*arguments, "--max_memory_gib", 24, "--svg", picture)
        text = picture.read_text()
        ElementTree.fromstring(text)
        self.assertIn(f"planned {plan['total_bytes'] / 2**30:.2f} GiB", text)
        for words in ("base weights", "kept of layers", "forward", "head", "backward"):
            self.assertIn(words, text)

    def test_forms_are_those_that_layers_are_held_in(self):
        arguments = ("--model.path", "llama-3.2-1b", "--gpu", "H200", "--weight_cache", "off", *HOST)
        precision = json.dumps({"default": "nf4", "model.layers.1": "int8", "model.layers.2.mlp.down_proj": "bf16"})
        forms = [layer["form"] for layer in self.plan(*arguments, "--precision", precision)["layers"]]
        self.assertEqual(forms[:4], ["nf4", "int8", "bf16+nf4", "nf4"])  # said nf4 of all of them

    def test_rows_longer_than_the_model_knows(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--per_device_train_batch_size", 1, *HOST)
        length = ("--max_seq_length", 262144)
        self.fail_with(
            "model.too-many-positions",
            ["131072 positions", "rope_scaling", '"factor": 2.0'],
            "plan",
            *arguments,
            *length,
        )
        scaling = json.dumps({"rope_type": "linear", "factor": 2.0})
        plan = self.plan(*arguments, *length, "--rope_scaling", scaling, "--max_memory_gib", 40)
        self.assertTrue(plan["fits"])
        self.assertGreater(plan["row_tile"], 0)

    def test_less_memory_is_another_plan(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--per_device_train_batch_size", 8, *HOST)
        roomy, tight = self.plan(*arguments), self.plan(*arguments, "--max_memory_gib", 10)
        self.assertLessEqual(tight["total_bytes"], 10 * 2**30)
        self.assertLess(tight["predicted_tokens_per_second"], roomy["predicted_tokens_per_second"])
        self.assertIn("host", {layer["activations_at"] for layer in tight["layers"]})
        two = self.plan(*arguments, "--gpus", 2, "--tp_size", 1)
        self.assertNotIn("meshes", two)
        times = two["predicted_tokens_per_second"] / roomy["predicted_tokens_per_second"]
        self.assertTrue(0.996 * 2 < times < 0.998 * 2, times)

    def test_where_nothing_fits_it_says_what_would(self):
        device_map = json.dumps({"model": 0, "lm_head": 0})
        result = self.fail_with(
            RUNTIME,
            [],
            "plan",
            "--model.path",
            "llama-3.1-8b",
            "--gpu_memory",
            "6GiB",
            "--device_map",
            device_map,
            *HOST,
            "--json",
        )
        plan = json.loads(result.out)
        self.assertFalse(plan["fits"])
        self.assertTrue(1 <= len(plan["remedies"]) <= 3, plan["remedies"])

    def test_without_codes_of_the_base_it_fits(self):
        arguments = ("plan", "--model.path", "llama-3.1-8b", "--gpu", "H200", "--gpu_memory", "8GiB", *HOST, "--json")
        for compute in ("fp8_both", "fp8_backward"):
            result = self.fail_with(RUNTIME, [], *arguments, "--compute_dtype", compute)
            self.assertIn("model.compute_dtype auto, gradient_checkpointing full+offload",
                          json.loads(result.out)["remedies"])  # fmt: skip
        self.assertTrue(self.plan(*arguments[1:-1], "--gradient_checkpointing", "full+offload")["fits"])

    def test_layers_that_neither_the_card_nor_its_host_holds_alone(self):
        arguments = ("--model.path", "llama-3.1-70b", "--gpu_memory", "24GiB", "--max_seq_length", 2048)

        def memory(size):
            return ("--max_memory", json.dumps({"cpu": size}))

        mixed = self.plan(*arguments, *memory("30GiB"))
        self.assertEqual({layer["weights_at"] for layer in mixed["layers"]}, {"device", "host"})
        result = self.fail_with(RUNTIME, [], "plan", *arguments, *memory("20GiB"), "--json")
        (remedy,) = json.loads(result.out)["remedies"]  # of bf16 weights the disk has no 4-bit ones yet
        self.assertIn("layers on the disk (model.offload_folder FOLDER", remedy)
        with_disk = self.plan(*arguments, *memory("20GiB"), "--offload_folder", self.folder / "absent")
        self.assertEqual({layer["weights_at"] for layer in with_disk["layers"]}, {"device", "host", "disk"})
        self.assertGreater(with_disk["disk_bytes"], 0)
        self.assertFalse((self.folder / "absent").exists())
        for plan in (mixed, with_disk):  # what fits is within what is said to fit at most
            self.assertGreaterEqual(plan["largest"]["batch"] * 2048, plan["micro_tokens"])
            self.assertGreaterEqual(plan["largest"]["seq"], 2048)

    def test_what_teaches_and_what_is_answered_counts(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", *HOST)
        alone = self.plan(*arguments, "--micro_batch", "as_given")
        # A teacher in 4 bit beside the student: its weights, and what its passes take.
        distill = (*arguments, "--objective", "distill", "--distill.teacher", "llama-3.1-70b")
        taught = self.plan(*distill, "--distill.teacher_load_in_4bit")
        self.assertTrue(taught["fits"])
        parameters = 70.6e9 - 2 * 128256 * 8192  # of which embeddings and lm_head stay in 16 bit
        weights = 0.516 * parameters + 4 * 128256 * 8192
        self.assertTrue(weights < taught["device"]["teacher"] < 1.1 * weights, (weights, taught["device"]))
        self.assertEqual(taught["total_bytes"], sum(taught["device"].values()))
        self.assertGreater(taught["total_bytes"], alone["total_bytes"] + taught["device"]["teacher"] / 2)
        self.assertLess(taught["largest"]["batch"], alone["largest"]["batch"])
        self.assertIn("and with the teacher's", self.succeed("plan", *distill, "--distill.teacher_load_in_4bit").out)
        # In 16 bit it fits with its layers in host memory alone.
        moved = self.plan(*distill)
        self.assertTrue(moved["fits"])
        self.assertLess(moved["device"]["teacher"], taught["device"]["teacher"])
        self.assertGreater(moved["host_bytes"], 120 * 2**30)
        tight = self.fail_with(RUNTIME, [], "plan", *distill[:3], "H100", "--max_memory", '{"cpu": "60GiB"}',
                               *distill[6:], "--json")  # fmt: skip
        self.assertFalse(json.loads(tight.out)["fits"])
        # Sixteen answers at a time, of rows as long as may be.
        answers = self.plan(*arguments, "--val_size", 8, "--eval_metric", "exact_match", "--eval_max_new_tokens", 100)
        pages = -(-(2047 + 100) // 64)
        self.assertEqual(answers["device"]["kv cache"], 16 * pages * 64 * 32 * 2 * 8 * 128 * 2)
        prompts = write_rows(self.folder / "prompts.jsonl", [{"prompt": "Who?"}])
        one = (*arguments, "--val_size", 8, "--sample_prompts", prompts, "--sample_max_new_tokens", 100)
        result = self.succeed("plan", *one, "--json")
        self.assertIn("no tokenizer is here", result.err)
        self.assertEqual(json.loads(result.out)["device"]["kv cache"],
                         -(-(2048 + 100) // 64) * 64 * 32 * 2 * 8 * 128 * 2)  # fmt: skip

    def test_what_it_refuses(self):
        for arguments, words in {
            ("--gpu", "voodoo"): "NVIDIA H200",
            ("--gpu_memory", "much"): "gpu_memory",
            ("--gpu_memory", "100MiB"): "driver",
        }.items():
            self.fail_with(USAGE, [words], "plan", "--model.path", "llama-3.1-8b", *arguments)
        self.fail_with("model.not-found", ["config.json"], "plan", "--model.path", "org/absent", "--gpu", "H200")


if __name__ == "__main__":
    main()
