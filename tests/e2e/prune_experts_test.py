"""prune --experts: exact oracles, MXFP4, layers of such models, what is refused. Saliencies: tests/train/expert_saliency_test.cpp."""

import json
import re

from pruning import GPT_OSS, QWEN3_MOE, Pruning, changed
from support import QWEN3, main, model, read_safetensors, write_rows, write_safetensors


class PruneExperts(Pruning):
    def test_experts_without_a_token_go_first_and_nothing_changes(self):
        rows = write_rows(self.folder / "short.jsonl", [{"input_ids": [7, 50, 90]}])  # which pass at most six experts
        for config, key, layers in ((QWEN3_MOE, "num_experts", [0, 2]), (GPT_OSS, "num_local_experts", [0, 1])):
            name = config["model_type"]
            with self.subTest(name):
                base = model(config)
                pruned, report, log = self.prune(base, "--experts", "6", rows=rows, out=f"{name} pruned")
                found = report["num_experts"]
                self.assertEqual((found["before"], found["after"], found["method"]), (8, 6, "reap"))
                self.assertEqual([layer["layer"] for layer in found["layers"]], layers)
                for layer in found["layers"]:
                    self.assertEqual(sum(layer["tokens"]), 6)
                    idle = [expert for expert in range(8) if layer["tokens"][expert] == 0]
                    self.assertEqual([e for e in range(8) if layer["saliency"][e] == 0], idle)
                    self.assertLessEqual(set(layer["removed"]), set(idle))
                    self.assertEqual(sorted(layer["removed"] + layer["kept"]), list(range(8)))
                    self.assertEqual(layer["kept_share"], 1)
                self.assertRegex(log, rf"\n +{layers[1]} +1 +\d +\d")
                self.assertEqual(report["loss_after"], report["loss_before"])
                # The router's GEMM has fewer columns, which some CPUs sum in another order.
                for ours, whole in zip(self.logits(pruned, rows), self.logits(base, rows), strict=True):
                    self.assertAlmostEqual(ours, whole, delta=1e-6)
                found, expected = self.config(pruned), self.config(base)
                self.assertEqual((found.pop(key), expected.pop(key)), (6, 8))
                # Values that the family has where a file says nothing may be written out.
                self.assertEqual(found, {**found, **expected})
                self.assertIn("problems      none", self.succeed("inspect", pruned).out)

    def test_experts_that_add_nothing_go_first(self):
        """Expert 5 adds nothing. Of 2 and its copy 6 the router chooses the first, where a token passes one."""

        def change(name, values, shape):
            if "experts.5.down_proj" in name:
                return [0.0] * len(values)
            return None

        base = changed(self.copied_model(model(QWEN3_MOE), "dead"), change)
        _, report, _ = self.prune(base, "--experts", "7", "--method", "reap", out="without dead")
        for layer in report["num_experts"]["layers"]:
            self.assertEqual((layer["removed"], layer["saliency"][5], layer["kept_share"]), ([5], 0, 1))
            self.assertGreater(layer["tokens"][5], 0)
        base = self.copied_model(model(QWEN3_MOE | {"num_experts_per_tok": 1}), "copies")
        tensors = read_safetensors(base / "model.safetensors")
        for name, (dtype, shape, data) in tensors.items():
            if name.endswith("mlp.gate.weight"):
                width = len(data) // 8
                tensors[name] = (dtype, shape, data[: 6 * width] + data[2 * width : 3 * width] + data[7 * width :])
            elif ".experts.6." in name:
                tensors[name] = (dtype, shape, tensors[name.replace("experts.6", "experts.2")][2])
        write_safetensors(base / "model.safetensors", tensors)
        rows = self.rows(32, name="many.jsonl")
        pruned, report, _ = self.prune(base, "--experts", "7", rows=rows, out="without copies")
        for layer in report["num_experts"]["layers"]:
            self.assertEqual((layer["removed"], layer["tokens"][6]), ([6], 0))
        self.assertEqual(self.logits(pruned, rows), self.logits(base, rows))

    def test_experts_in_mxfp4_stay_as_they_are(self):
        base = model(GPT_OSS, dtype="bfloat16", quantize="mxfp4")
        pruned, report, log = self.prune(base, "--experts", "5")
        self.assertIn("stay in MXFP4", log)
        found, before = self.tensors(pruned), self.tensors(base)
        self.assertEqual(found.keys(), before.keys())
        for layer in report["num_experts"]["layers"]:
            for name in ("gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"):
                name = f"model.layers.{layer['layer']}.mlp.experts.{name}"
                data = before[name][2]
                each = len(data) // 8
                self.assertEqual(found[name][2], b"".join(data[each * e : each * (e + 1)] for e in layer["kept"]), name)
        self.assertEqual(self.config(pruned)["quantization_config"], self.config(base)["quantization_config"])
        self.assertEqual(self.config(pruned)["num_local_experts"], 5)
        self.train(pruned, self.rows(4), "--max_steps", "1")

    def test_streams_in_host_memory_are_planned(self):
        def some(count):
            ids = [{"input_ids": [(5 * i + k) % 128 for i in range(200)]} for k in range(count)]
            return write_rows(self.folder / f"{count}.jsonl", ids)

        base = model(QWEN3_MOE | {"max_position_embeddings": 256})
        words = ["--experts", "6", "--max_seq_length", "256"]
        _, _, log = self.prune(base, *words, rows=some(150))
        width = 4 * self.config(base)["hidden_size"]
        planned = float(re.search(r"planned (\S+) MiB on cpu", log)[1])
        told = re.search(r"the residual streams of 30000 calibration tokens take (\S+) MiB of host memory", log)
        self.assertAlmostEqual(float(told[1]), 30512 * width / 2**20, 1)  # those of a batch twice
        words += ["--max_memory", json.dumps({"cpu": f"{int(planned) - 1}MiB"})]
        refused = self.fail_with(
            "memory.host-plan-too-large",
            "the residual streams of 30000 calibration tokens",
            *self.words(base, some(150), *words, out="refused"),
        )
        most = int(re.search(r"at most (\d+) tokens", refused.err)[1])
        self.assertLess(most, 30000)
        self.assertGreater(most, 30000 - 3 * 2**20 / width)
        self.assertNotIn("base ", refused.err)  # nothing of it was read
        self.prune(base, *words, rows=some(most // 200), out="fewer")

    def test_layers_of_a_model_with_experts(self):
        def change(name, values, shape):
            if name.startswith("model.layers.0.") and ("o_proj" in name or "down_proj" in name):
                return [0.0] * len(values)
            return None

        base = changed(self.copied_model(model(QWEN3_MOE)), change)
        pruned, report, _ = self.prune(base, "--layers", "2")
        self.assertEqual(report["num_hidden_layers"]["removed"], [0])
        rows = self.rows(4, name="probe.jsonl")
        self.assertEqual(self.logits(pruned, rows), self.logits(base, rows))
        self.assertEqual(self.config(pruned)["mlp_only_layers"], [0])

    def test_what_is_refused(self):
        base, rows = model(QWEN3), self.rows(4)
        mixture = model(QWEN3_MOE)
        for error, options, parts in (
            ("option.out-of-range", ["--experts", "8"], ["8 experts", "from 2 to 7"]),
            ("option.out-of-range", ["--experts", "1"], ["a token passes 2", "from 2 to 7"]),
            ("model.unsupported", ["--intermediate", "8"], "neurons are not ranked"),
            ("model.unsupported", ["--wanda", "0.5"], "inputs are not measured"),
        ):
            with self.subTest(options):
                self.fail_with(error, parts, *self.words(mixture, rows, *options))
        self.fail_with("model.unsupported", "the model has no experts", *self.words(base, rows, "--experts", "4"))


if __name__ == "__main__":
    main()
