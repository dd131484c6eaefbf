"""Files that shrink while the program reads them."""

import os
import subprocess
import unittest

from launch_support import until
from merge_support import Merging
from support import (
    GOLDEN,
    LEGAL_BASE,
    NF4_MODEL,
    PROGRAM,
    RUNTIME,
    TEXT_LLAMA,
    TIMEOUT_S,
    environment,
    main,
    model,
    run,
)

LIBRARY = os.environ.get("UNSLOTH_FAULT", "")


class Shrinking(Merging):
    """SIGBUS: before, the run was killed by it, with a core dump, and temporary output stayed."""

    def expect_lost(self, code, err, name):
        self.assertEqual(code, RUNTIME, err)
        self.assertIn(f"{name} has become shorter while it was read", err)
        for word in ("SIGBUS", "Bus error", "Bad address"):
            self.assertNotIn(word, err)

    def shrink_while_training(self, base, shrink, name, *extra):
        arguments = self.train_arguments(
            base,
            self.rows(64),
            "--max_steps",
            "1000000",
            "--save_steps",
            "3",
            "--save_total_limit",
            "2",
            "--load_in_4bit",
            "true",
            "--cache_dir",
            self.folder / "cache",
            "--lr_scheduler_type",
            "constant",
            *extra,
        )
        process = subprocess.Popen(
            [PROGRAM, "train", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "checkpoint-6" in line:
                break
        shrink()
        _, rest = process.communicate(timeout=TIMEOUT_S)
        self.expect_lost(process.returncode, "".join(lines) + rest, name)
        out = self.folder / "out"
        # A process of its own may still be writing the last checkpoint.
        self.assertTrue(until(lambda: not [p for p in out.rglob("*") if ".tmp-" in p.name]))
        last = max(int(p.name.split("-")[1]) for p in out.glob("checkpoint-*"))
        return arguments, last

    def goes_on(self, arguments, last):
        at = arguments.index("--max_steps")
        arguments = [*arguments[:at], "--max_steps", last + 1, *arguments[at + 2 :]]
        result = self.succeed("train", *arguments, "--resume_from_checkpoint", "auto")
        self.assertIn(f"at step {last + 1}", result.err)

    def test_the_model_while_it_trains(self):
        base = self.copied_model(NF4_MODEL, "base")
        file = base / "model.safetensors"
        whole = file.read_bytes()
        arguments, last = self.shrink_while_training(base, lambda: os.truncate(file, 4096), file)
        file.write_bytes(whole)
        self.goes_on(arguments, last)

    def test_layers_that_are_left_on_the_disk(self):
        five_layers = TEXT_LLAMA | {"num_hidden_layers": 5}  # more than there are slots
        base = self.copied_model(model(five_layers, dtype="bfloat16", quantize="nf4"), "base")
        file = base / "model.safetensors"
        whole = file.read_bytes()
        on_disk = ("--device_map", '{"model.layers": "disk", "model.embed_tokens": "cpu"}')
        arguments, last = self.shrink_while_training(base, lambda: os.truncate(file, 4096), file, *on_disk)
        file.write_bytes(whole)
        self.goes_on(arguments, last)

    def test_cached_rows_while_they_are_trained(self):
        base = self.copied_model(NF4_MODEL, "base")

        def shrink():
            for file in (self.folder / "cache").glob("*.rows"):
                os.truncate(file, 0)

        arguments, last = self.shrink_while_training(base, shrink, ".rows")
        self.goes_on(arguments, last)  # a damaged file of the cache is made again

    @unittest.skipUnless(LIBRARY, "UNSLOTH_FAULT does not name the preloaded library")
    def test_the_model_while_it_is_read_by_other_commands(self):
        base = model(TEXT_LLAMA, dtype="bfloat16", tokenizer=LEGAL_BASE)
        adapter = self.adapter(base, "--r", "4", vocab=2048)
        tokenizer = GOLDEN / "tokenizer" / "llama3_small"
        seen = set()
        for name, words in {
            "quantize": ["quantize", "--max_shard_size", "200KB", "--model"],
            "merge": ["merge", "--adapter", adapter, "--max_shard_size", "200KB", "--no_verify", "--base"],
            "export": ["export", "gguf", "--tokenizer", tokenizer, "--type", "q8_0", "--model"],
        }.items():
            for at in (3, 8, 13):  # calls by which the output comes about
                place = self.folder / f"{name}{at}"
                copy = self.copied_model(base, f"{name}{at}-base")
                place.mkdir()
                env = environment(
                    LD_PRELOAD=LIBRARY,
                    FAULT_UNDER=place,
                    FAULT_KIND="shrink",
                    FAULT_AT=at,
                    FAULT_FILE=copy / "model.safetensors",
                    ASAN_OPTIONS="verify_asan_link_order=0",
                )
                result = run(*words, copy, "--out", place / "out", env=env)
                self.check_words(result)
                self.expect_lost(result.code, result.err, copy / "model.safetensors")
                self.assertEqual(list(place.iterdir()), [], str(result))
                seen.add(name)
        self.assertEqual(len(seen), 3)


if __name__ == "__main__":
    main()
