"""`unsloth-train plan` for several GPUs: meshes, pipelines, slices and what ranks share."""

import re

from plan_support import HOST, Planning
from rank_support import Ranks
from support import *


class PlanOfRanks(Planning):
    def test_several_gpus_have_a_mesh_proposed(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--gpus", 2, "--gradient_accumulation_steps", 1,
                     *HOST)  # fmt: skip
        # Rows as long as this are no faster by one than by two at a time: there is nothing to set.
        plan = self.plan(*arguments, "--per_device_train_batch_size", 8)
        self.assertEqual((plan["mesh"]["dp"], plan["mesh"]["flags"]), (2, ""))
        self.assertEqual(plan["mesh"], plan["meshes"][0])
        speeds = [mesh["predicted_tokens_per_second"] for mesh in plan["meshes"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertEqual({mesh["step_tokens"] for mesh in plan["meshes"]}, {2 * 8 * 2048})
        self.assertTrue(all(mesh["fits"] and mesh["total_bytes"] < plan["budget_bytes"] for mesh in plan["meshes"]))
        # A row that one GPU does not hold is shared, and its flags plan it alone.
        long = ("--per_device_train_batch_size", 1, "--max_seq_length", 131072, "--max_memory_gib", 60,
                "--gradient_checkpointing", "attention")  # fmt: skip
        result = self.fail_with(RUNTIME, [], "plan", *arguments, *long, "--tp_size", 1, "--json")
        self.assertFalse(json.loads(result.out)["fits"])
        best = self.plan(*arguments, *long)
        flags = best["mesh"]["flags"].split()
        self.assertIn("--gradient_accumulation_steps", flags)
        again = self.plan(*arguments[:6], *HOST, *long, *flags)
        for key in ("total_bytes", "layers", "predicted_step_ms", "predicted_tokens_per_second"):
            self.assertEqual(again[key], best[key], key)
        text = self.succeed("plan", *arguments, *long).out
        for words in ("meshes of 2 GPUs over NVLink", "zero_stage", "launch --nproc_per_node 2", best["mesh"]["flags"]):
            self.assertIn(words, text)

    def test_pipelines_and_slices_are_planned(self):
        arguments = ("--model.path", "llama-3.1-70b", "--gpu", "H100", "--gpus", 2, "--max_seq_length", 2048,
                     "--per_device_train_batch_size", 2, *HOST)  # fmt: skip
        pipeline = self.plan(*arguments, "--pp_size", 2, "--gradient_accumulation_steps", 8)
        self.assertTrue(40 <= len(pipeline["layers"]) <= 42)  # the last stage has the head
        self.assertTrue(pipeline["fits"])
        text = self.succeed("plan", *arguments, "--pp_size", 2, "--gradient_accumulation_steps", 8).out
        self.assertIn("2 stages of layers 0 to ", text)
        four = (*arguments[:4], "--gpus", 4, *arguments[6:])
        shared = self.plan(*four, "--pp_size", 2, "--zero_stage", 3, "--gradient_accumulation_steps", 8)
        self.assertEqual({layer["weights_at"] for layer in shared["layers"]}, {"peer"})
        self.assertAlmostEqual(shared["device"]["base weights"] / pipeline["device"]["base weights"], 0.5, delta=0.02)
        slices = self.plan(*arguments, "--tp_size", 2)
        self.assertEqual(len(slices["layers"]), 80)
        self.assertTrue(slices["fits"])
        large = self.plan(*arguments)
        self.assertTrue(large["fits"])
        self.assertLessEqual(large["total_bytes"], 80 * 2**30)
        for words, sizes in {
            "Start 2 or 4 processes": ("--gpus", 3, "--tp_size", 2),
            "num_attention_heads 64": ("--gpus", 3, "--tp_size", 3),
            "needs 81 layers": ("--gpus", 81, "--pp_size", 81),
        }.items():
            self.fail_with(USAGE, [words], "plan", *arguments, *sizes)

    def test_slices_of_hybrid_models(self):
        arguments = ("--gpu", "H200", "--max_seq_length", 2048, *HOST)
        one = self.plan("--model.path", "qwen3.5-9b", *arguments)
        two = self.plan("--model.path", "qwen3.5-9b", *arguments, "--gpus", 2, "--tp_size", 2)
        self.assertTrue(two["fits"])
        self.assertAlmostEqual(two["device"]["layer weights"] / one["device"]["layer weights"], 0.5, delta=0.01)
        for size, model_name, words in (
            (3, "qwen3.5-9b", "num_attention_heads 16"),
            (8, "qwen3.5-0.8b", "in_proj_b and in_proj_a 32 is 4 columns"),
        ):
            sizes = ("--model.path", model_name, *arguments, "--gpus", size, "--tp_size", size)
            self.fail_with(USAGE, [words], "plan", *sizes)

    def test_ranks_that_share_rows_hold_longer_ones(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--per_device_train_batch_size", 1,
                     "--max_seq_length", 131072, "--weight_cache", "off", "--max_memory", '{"cpu": "400GiB"}')  # fmt: skip
        one, two = self.plan(*arguments), self.plan(*arguments, "--gpus", 2, "--cp_size", 2)
        self.assertEqual(two["micro_tokens"], 65536)
        # Keys and values of all tokens; those of two chunks, of 1 + 1/4 rows at most, and their gradients.
        row = 131072 * 2 * 8 * 128 * 2
        self.assertAlmostEqual(two["device"]["keys and values of all ranks"], (1 + 2 * 1.25) * row, delta=1e5)
        # Not twice as long: scratch of attention is planned by keys, of which each rank sees nearly all. (With 200 GiB
        # for both, their layers' inputs would be what ends it.)
        self.assertGreater(two["largest"]["seq"], 1.3 * one["largest"]["seq"])
        self.assertGreater(two["predicted_tokens_per_second"], 1.6 * one["predicted_tokens_per_second"])
        self.fail_with(USAGE, ["cp_size", "objective"], "plan", *arguments, "--cp_size", 2, "--objective", "dpo")

    def test_13b_in_full_on_four_cards_of_40_gib(self):
        arguments = (
            "--model.path", "llama-2-13b", "--finetuning_type", "full", "--load_in_4bit", "false", "--optim",
            "adamw_torch", "--gpu_memory", "40GiB", "--gpus", 4, "--max_seq_length", 2048, "--save_steps", 0,
            "--per_device_train_batch_size", 1, "--micro_batch", "as_given", *HOST,
        )  # fmt: skip
        plan = self.plan(*arguments, "--zero_stage", 3, "--offload_optimizer", "cpu")
        self.assertTrue(plan["fits"], plan)
        # Values, gradients and two moments in fp32 on the host, 16 bits on the device: a quarter of each.
        quarter = 13015864320 / 4
        self.assertAlmostEqual(plan["host_bytes"], 4 * 16 * quarter, delta=0.01 * 64 * quarter)  # of all four
        self.assertAlmostEqual(plan["device"]["working copies"], 2 * quarter, delta=1.5e9)  # and two layers
        proposed = self.plan(*arguments)
        self.assertTrue(proposed["fits"])
        self.assertIn("--offload_optimizer cpu", proposed["mesh"]["flags"])
        for more in (["--zero_stage", 0], ["--zero_stage", 3], ["--zero_stage", 2]):
            result = self.fail_with(RUNTIME, [], "plan", *arguments, *more, "--json")
            self.assertFalse(json.loads(result.out)["fits"])

    def test_what_zero_stages_hold_falls_with_the_number_of_ranks(self):
        def held(stage, gpus):
            plan = self.plan(
                "--model.path", "llama-3.1-8b", "--finetuning_type", "full", "--load_in_4bit", "false", "--optim",
                "adamw_torch", "--gpu_memory", "400GiB", "--gpus", gpus, "--zero_stage", stage, "--save_steps", 0,
                "--max_seq_length", 1024, *HOST,
            )  # fmt: skip
            groups = plan["device"]
            return [groups.get(name, 0) / 8030261248 for name in
                    ("trainable values", "trainable gradients", "optimizer state")]  # fmt: skip

        self.assertEqual([round(x, 1) for x in held(0, 4)], [4, 4, 8])
        self.assertEqual([round(x, 1) for x in held(1, 4)], [4, 4, 2])
        for gpus in (2, 4, 8):
            slots = 4 * 2 * 525336576 / 8030261248  # of gradients: the embeddings, lm_head
            two, three = held(2, gpus), held(3, gpus)
            self.assertAlmostEqual(two[0], 4, delta=0.01)
            self.assertAlmostEqual(three[0], 4 / gpus, delta=0.01)
            for values in (two, three):
                self.assertAlmostEqual(values[1], 4 / gpus + slots, delta=0.01)
                self.assertAlmostEqual(values[2], 8 / gpus, delta=0.01)

    def test_ranks_hold_a_frozen_base_among_them(self):
        arguments = ("--model.path", "llama-3.1-70b", "--gpu", "H200", "--max_seq_length", 2048, "--weight_cache", "off",
                     *HOST)  # fmt: skip
        one = self.plan(*arguments)
        self.assertEqual({layer["weights_at"] for layer in one["layers"]}, {"device"})
        for gpus in (2, 4):
            plan = self.plan(*arguments, "--gpus", gpus, "--zero_stage", 3)
            self.assertEqual({layer["weights_at"] for layer in plan["layers"]}, {"peer"})
            self.assertAlmostEqual(plan["device"]["base weights"] * gpus / one["device"]["base weights"], 1, delta=0.03)
        small = ("--model.path", "llama-3.1-70b", "--gpu_memory", "24GiB", "--max_seq_length", 1024,
                 "--per_device_train_batch_size", 1, *HOST, "--gpus", 4, "--zero_stage", 3)  # fmt: skip
        plan = self.plan(*small)  # cards of that size do not reach each other
        self.assertEqual({layer["weights_at"] for layer in plan["layers"]}, {"device", "host"})
        plan = self.plan(*small, "--gpu", "L40S")
        self.assertTrue(plan["fits"])
        self.assertEqual({layer["weights_at"] for layer in plan["layers"]}, {"peer"})

    def test_remedies_of_a_pipeline_move_nothing_to_the_host(self):
        arguments = ("--model.path", "llama-3.1-8b", "--gpu_memory", "8GiB", "--gradient_accumulation_steps", 8, *HOST)
        for more in (("--gpu", "H200", "--gpus", 2, "--pp_size", 2),
                     ("--gpu", "H100", "--gpus", 4, "--pp_size", 4, "--pipeline_schedule", "interleaved")):  # fmt: skip
            with self.subTest(more=more):
                result = self.fail_with(RUNTIME, [], "plan", *arguments, *more, "--json")
                ways = json.loads(result.out)["remedies"]
                self.assertTrue(1 <= len(ways) <= 3, ways)
                for way in ways:
                    self.assertNotIn("+offload", way)
                    self.assertNotIn("host memory", way)
                    tokens, full = re.match(
                        r"at most (\d+) tokens a micro-batch.*, (gradient_checkpointing full)$", way
                    ).groups()
                    rows = ("--per_device_train_batch_size", 1, "--max_seq_length", tokens)
                    self.assertTrue(self.plan(*arguments, *more, *rows, "--" + full.split()[0], "full")["fits"], way)

    def test_communicators_that_leave_nothing(self):
        result = self.fail_with(
            RUNTIME, [], "plan", "--model.path", "llama-3.1-8b", "--gpu", "H200", "--gpu_memory", "1GiB", "--gpus", 8,
            "--tp_size", 1, *HOST, "--json",
        )  # fmt: skip
        plan = json.loads(result.out)
        self.assertGreater(plan["communicator_bytes"], 2**30)
        self.assertEqual(plan["budget_bytes"], 0)

    def test_slices_of_a_checkpoint_as_it_lies(self):
        """Layers of it might lie on the disk, but for slices: nothing of that is said of a run that does not ask."""
        arguments = ("--model.path", "llama-3.1-8b", "--gpu", "H200", "--gpus", 2, "--tp_size", 2,
                     "--load_in_4bit", "false")  # fmt: skip
        plan = self.plan(*arguments, *HOST)
        self.assertTrue(plan["fits"])
        self.assertEqual({layer["weights_at"] for layer in plan["layers"]}, {"device"})
        self.assertGreater(plan["largest"]["seq"], 131072)
        tight = self.fail_with(RUNTIME, [], "plan", *arguments, "--gpu_memory", "6GiB", "--max_memory",
                               '{"cpu": "1GiB"}', "--json")  # fmt: skip
        self.assertFalse(json.loads(tight.out)["fits"])
        disk = json.dumps({"model.layers": "disk", "": 0})
        self.fail_with("model.device-map", ["read as whole matrices"], "plan", *arguments, "--device_map", disk)


class PlannedRanks(Ranks):
    """What `plan` says of this machine's CPU is what a run of so many processes plans."""

    def test_one_plan(self):
        length = 32  # which all rows fill
        rows = self.rows(32, shortest=length, longest=length)
        full = ("--finetuning_type", "full")
        meshes = (
            ("--tp_size", 2), ("--pp_size", 2), ("--pp_size", 2, "--pipeline_schedule", "interleaved"),
            ("--cp_size", 2), ("--zero_stage", 1, *full), ("--zero_stage", 2, *full), ("--zero_stage", 3, *full),
            ("--zero_stage", 3), ("--offload_optimizer", "cpu", *full),
        )  # fmt: skip
        for family, mesh in ((QWEN3_5, meshes[0]), *((LLAMA, mesh) for mesh in meshes)):
            with self.subTest(family=family["model_type"], mesh=mesh):
                config = family | {"num_hidden_layers": 4 if "interleaved" in mesh else 2}
                arguments = self.train_arguments(
                    model(config), rows, "--max_seq_length", length, "--per_device_train_batch_size", 2,
                    "--gradient_accumulation_steps", 4, "--max_steps", 0, *mesh,
                )  # fmt: skip
                planned = json.loads(self.succeed("plan", *arguments, "--gpus", 2, "--json").out)
                run = self.succeed("launch", "--nproc_per_node", 2, "train", *arguments, "--progress", "json")
                (plan,) = [json.loads(line.removeprefix("[rank 0] ")) for line in run.out.splitlines()]
                self.assertEqual(plan.pop("event"), "plan")
                if (
                    "--pp_size" in mesh
                ):  # what is printed is the stage that takes most, the run's first rank has stage 0
                    planned = planned["stages"][0]
                    self.assertEqual(planned.pop("stage"), 0)
                for key, value in plan.items():
                    self.assertEqual(planned[key], value, key)


if __name__ == "__main__":
    main()
