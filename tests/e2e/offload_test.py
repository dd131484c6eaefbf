"""Weights that do not lie on the device: the same results from wherever they are read, and clear words where they cannot be."""

import json

import support
from support import EndToEnd, LLAMA, RUNTIME, USAGE, model

FIVE_LAYERS = LLAMA | {"num_hidden_layers": 5}
ON_DISK = json.dumps({"model.layers": "disk", "model.embed_tokens": "cpu"})
SOME_ON_DISK = json.dumps({"model.layers.1-3": "disk", "": "cpu"})


class Offload(EndToEnd):
    def adapter(self, folder):
        return (folder / "adapter_model.safetensors").read_bytes()

    def compare(self, base, *extra):
        """Runs with all layers in memory, some and all on the disk end with the same adapter and the same losses."""
        rows = self.rows(16)
        evaluation = ("--val_size", "4", "--eval_steps", "1", "--load_in_4bit", "true", *extra)
        resident = self.train(base, rows, *evaluation, out="resident")
        for number, device_map in enumerate((SOME_ON_DISK, ON_DISK)):
            moved = self.train(base, rows, *evaluation, "--device_map", device_map, out=f"moved{number}")
            self.assertEqual(self.adapter(moved), self.adapter(resident), device_map)
            self.assertEqual(
                [row["eval_loss"] for row in self.evaluations(moved)],
                [row["eval_loss"] for row in self.evaluations(resident)],
            )
            self.assertEqual([s["loss"] for s in self.steps(moved)], [s["loss"] for s in self.steps(resident)])

    def test_a_4bit_base_is_read_in_place(self):
        self.compare(model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4"))

    def test_a_base_that_is_quantised_while_loading_has_a_file_of_its_own(self):
        base = model(FIVE_LAYERS, dtype="bfloat16")
        folder = self.folder / "offloaded"
        self.compare(base, "--offload_folder", folder)
        self.assertEqual(list(folder.iterdir()), [], "it is gone with the run")
        arguments = self.train_arguments(base, self.rows(), "--load_in_4bit", "true", "--device_map", ON_DISK)
        self.fail_with(USAGE, ["quantised while loading", "model.offload_folder"], "train", *arguments)

    def test_what_the_run_says_of_it(self):
        base = model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4")
        arguments = self.train_arguments(base, self.rows(), "--max_steps", "0", "--device_map", SOME_ON_DISK)
        result = self.succeed("train", *arguments)
        self.assertIn("layers 0 to 0 on the device, layers 1 to 3 on the disk, layers 4 to 4 on the device", result.err)
        self.assertIn("disk buffers", result.err)
        self.assertIn("layers' slots", result.err)

    def test_score_and_generate(self):
        base = model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4")
        rows = self.rows(3)
        kept = self.score(base, rows, name="kept.jsonl")
        self.assertEqual(self.score(base, rows, "--device_map", ON_DISK, name="moved.jsonl"), kept)
        text = model(support.TEXT_LLAMA, dtype="bfloat16", quantize="nf4", tokenizer=support.LEGAL_BASE)
        generate = ("generate", "--model.path", text, "--device", "cpu", "--prompt", "The term", "--json")
        generate += ("--max_new_tokens", "4", "--dtype", "float32")
        self.assertEqual(
            self.succeed(*generate, "--device_map", ON_DISK).out,
            self.succeed(*generate).out,
        )

    def test_what_cannot_be(self):
        base = model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4")
        arguments = self.train_arguments(base, self.rows())
        for device_map, part in (
            ({"": 0, "model.layers.3": 1}, "names 2 GPUs, which needs distributed.pp_size 2"),
            ({"": 0}, "the run is on the CPU"),
            ({"model.layers.0-7": "cpu"}, "the model has layers 0 to 4"),
        ):
            self.fail_with(USAGE, part, "train", *arguments, "--device_map", json.dumps(device_map))
        small = ("--max_memory", json.dumps({"cpu": "512KiB"}))
        self.fail_with(RUNTIME, ["not enough memory on cpu", "0.5 MiB may be taken"], "train", *arguments, *small)
        full = self.train_arguments(
            model(FIVE_LAYERS), self.rows(), "--finetuning_type", "full", "--device_map", ON_DISK
        )
        self.fail_with(USAGE, "finetuning_type full trains all of them there", "train", *full)


if __name__ == "__main__":
    support.main()
