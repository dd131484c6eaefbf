"""Weights that do not lie on the device: the same results from wherever they are read, and clear words where they cannot be.

UNSLOTH_FAULT names the library of tests/fault.
"""

import json
import os
import shutil
import unittest

import support
from support import EndToEnd, LLAMA, OK, RUNTIME, USAGE, environment, model, run

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")

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

    def test_a_profile_shows_where_a_step_waits_for_weights(self):
        base, rows = model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4"), self.rows()
        for number, (options, waits) in enumerate(((("--device_map", ON_DISK), True), ((), False))):
            trace = self.folder / f"trace{number}.json"
            self.train(base, rows, "--logging.profile", trace, *options, out=f"out{number}")
            names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
            self.assertEqual("wait for weights" in names, waits)
            self.assertTrue({"forward", "backward"} <= names, names)

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


@unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
class Faults(EndToEnd):
    """What a disk does while a run reads its layers from there: the run ends with a clear message or goes on, and what it saved is whole."""

    def setUp(self):
        super().setUp()
        self.base = self.copied_model(model(FIVE_LAYERS, dtype="bfloat16", quantize="nf4"))
        self.weights = self.base / "model.safetensors"
        self.data = self.rows(16)

    def arguments(self, *extra, out="out"):
        return self.train_arguments(self.base, self.data, "--max_steps", "60", "--save_steps", "10", *extra, out=out)

    def run_with(self, out="out", under=None, arguments=(), **faults):
        env = environment(
            LD_PRELOAD=LIBRARY, FAULT_UNDER=under or self.base, ASAN_OPTIONS="verify_asan_link_order=0", **faults
        )
        result = run("train", *self.arguments("--device_map", ON_DISK, *arguments, out=out), env=env)
        self.check_words(result)
        return result

    def adapter(self, out):
        return (self.folder / out / "adapter_model.safetensors").read_bytes()

    def test_a_read_that_fails_or_falls_short(self):
        self.succeed("train", *self.arguments(out="resident"))
        whole = self.folder / "whole"
        shutil.copy(self.weights, whole)
        for fault, said in (("EIO", "cannot be read any more: Input/output error"), ("shrink", "has become shorter")):
            with self.subTest(fault):
                saved = self.folder / fault / "checkpoint-10"
                result = self.run_with(fault, FAULT_READ=fault, FAULT_WHEN=saved, FAULT_FILE=self.weights)
                self.assertEqual(result.code, RUNTIME, str(result))
                self.assertIn(f"{self.weights} {said}", result.err)
                self.assertFalse((self.folder / fault / "adapter_model.safetensors").exists())
                shutil.copy(whole, self.weights)
                # What was saved is whole: going on from it ends where the run that nothing happened to did.
                self.succeed("train", *self.arguments("--resume_from_checkpoint", "true", out=fault))
                self.assertEqual(self.adapter(fault), self.adapter("resident"))

    def test_a_disk_that_stalls_and_a_file_that_is_removed(self):
        self.succeed("train", *self.arguments(out="resident"))
        for fault, said in (("stall", "waiting for the disk: a layer's weights in"), ("remove", "")):
            saved = self.folder / fault / "checkpoint-10"
            result = self.run_with(fault, FAULT_READ=fault, FAULT_WHEN=saved, FAULT_FILE=self.weights)
            self.assertEqual(result.code, OK, str(result))
            self.assertIn(said, result.err)
            self.assertEqual(self.adapter(fault), self.adapter("resident"))

    def test_the_folder_for_what_is_made_while_loading(self):
        self.base = self.copied_model(model(FIVE_LAYERS, dtype="bfloat16"), "plain")
        folder, quantised = self.folder / "offload", ("--load_in_4bit", "true")
        self.succeed("train", *self.arguments(*quantised, out="resident"))
        made = (*quantised, "--offload_folder", folder)
        full = self.run_with("full", folder, made, FAULT_AT=9, FAULT_KIND="ENOSPC")
        self.assertEqual(full.code, RUNTIME, str(full))
        for words in (
            f"model.offload_folder: cannot write to {folder}: No space left on device",
            "about as many bytes",
        ):
            self.assertIn(words, full.err)
        self.assertEqual(list(folder.iterdir()), [])
        calls = self.folder / "calls"
        self.run_with("counted", folder, made, FAULT_LOG=calls)
        (flush,) = [line.split()[0] for line in calls.read_text().splitlines() if line.split()[1] == "fsync"]
        late = self.run_with("late", folder, made, FAULT_AT=flush, FAULT_KIND="EIO")  # what the disk refuses later
        self.assertEqual(late.code, RUNTIME, str(late))
        self.assertIn(f"model.offload_folder: cannot write to {folder}: Input/output error", late.err)
        killed = self.run_with("killed", folder, made, FAULT_AT=9, FAULT_KIND="kill")
        self.assertEqual(killed.code, -9, str(killed))
        self.assertEqual(len(list(folder.iterdir())), 1)
        again = self.run_with("again", folder, made)  # what a killed run left is not in its way
        self.assertEqual(again.code, OK, str(again))
        self.assertIn("which a killed process left", again.err)
        self.assertEqual(list(folder.iterdir()), [])
        self.assertEqual(self.adapter("again"), self.adapter("resident"))
        (self.folder / "file").write_text("")
        for place in (self.folder / "file", self.folder / "file" / "below"):
            arguments = self.arguments("--device_map", ON_DISK, *quantised, "--offload_folder", place)
            self.fail_with(RUNTIME, ["model.offload_folder", str(place)], "train", *arguments)


if __name__ == "__main__":
    support.main()
