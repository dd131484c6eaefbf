"""Runs that stop and are resumed, and one that does neither."""

import json
import shutil
import time

from support import (
    EndToEnd,
    LLAMA,
    TIMEOUT_S,
    finish,
    model,
    start,
)

STEPS = 9
ADAPTER = "adapter_model.safetensors"


class ResumedRuns(EndToEnd):
    # Dropout, 8-bit moments (the projections are large enough for them), an epoch that ends in the middle, accumulation.
    COMMON = [
        "--lora.lora_dropout",
        "0.1",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "2",
        "--max_steps",
        str(STEPS),
        "--lr_scheduler_type",
        "cosine",
        "--r",
        "16",
    ]

    WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 288}

    def arguments(self, out, *extra, base=None, rows=None):
        return self.train_arguments(base or model(self.WIDE), rows or self.data, *self.COMMON, *extra, out=out)

    def setUp(self):
        super().setUp()
        self.data = self.rows(14)

    def figures(self, out):
        return [
            (s["step"], s["epoch"], s["loss"], s["grad_norm"], s["learning_rate"], s["tokens"])
            for s in self.steps(self.folder / out)
        ]

    def compare(self, *extra, at=4, files=(ADAPTER,)):
        """A run of STEPS steps against one that is stopped after `at` and goes on."""
        self.succeed(*self.arguments("whole", *extra))
        self.succeed(*self.arguments("parts", *extra, "--save_steps", at, "--save_total_limit", 9))
        for checkpoint in (self.folder / "parts").glob("checkpoint-*"):
            if checkpoint.name != f"checkpoint-{at}":
                shutil.rmtree(checkpoint)
        for file in (*files, "trainer_state.json"):  # as a run that was killed leaves its folder
            (self.folder / "parts" / file).unlink()
        result = self.succeed(*self.arguments("parts", *extra, "--resume_from_checkpoint", "auto"))
        self.assertIn(f"resuming from {self.folder / 'parts' / f'checkpoint-{at}'}", result.err)
        self.assertEqual(self.figures("parts"), self.figures("whole"))
        for file in files:
            self.assertEqual(
                (self.folder / "parts" / file).read_bytes(), (self.folder / "whole" / file).read_bytes(), file
            )
        whole, parts = (json.loads((self.folder / f / "trainer_state.json").read_text()) for f in ("whole", "parts"))
        for key in ("global_step", "epoch", "num_input_tokens_seen", "log_history"):
            self.assertEqual(parts[key], whole[key], key)

    def start(self, *arguments):
        process = start(*arguments)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
        return process

    def wait_for(self, process, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            if process.poll() is not None:
                self.fail(finish(process).err)
            time.sleep(0.01)
