"""Models and data sets by their ids on the Hugging Face hub: against a server of this machine that speaks the hub's API, with faults,
and against huggingface_hub itself, where there is a Python that has it."""

import json
import os
import subprocess
import unittest

from hub_server import Repository
from support import (
    INPUT,
    LLAMA,
    PROGRAM,
    TIMEOUT_S,
    main,
    model,
    token_rows,
)
from hub_support import HubCase, PYTHON, WEIGHTS, files_of, jsonl


class Download(HubCase):
    def test_only_what_a_model_is_made_of(self):
        hub = self.hub()
        result = self.inspect(hub)
        self.assertIn(f"downloading {self.id} (", result.err)
        self.assertIn(f"-> {self.snapshot()}", result.err)
        self.check_cache()
        self.assertEqual(len(hub.downloads()), len(self.files))

    def test_a_repository_without_safetensors(self):
        self.repository = Repository(
            {"config.json": b"{}", "model-Q4_K_M.gguf": b"GGUF", "original/params.json": b"{}"}
        )
        hub = self.hub()
        self.refuse(hub, [f"{self.id}: no safetensors files: it holds", "own form (original/)"])
        self.assertFalse(hub.downloads())

    def test_once(self):
        hub = self.hub()
        self.inspect(hub)
        hub.stop()
        self.assertIn("taken from the Hugging Face cache", self.inspect(hub).err)
        self.inspect(hub, HF_HUB_OFFLINE=1)

    def test_a_tokenizer_without_the_weights(self):
        hub = self.hub()
        result = self.succeed("tokenize", "--tokenizer", self.id, stdin='{"text": "a contract"}\n', env=self.env(hub))
        self.assertTrue(json.loads(result.out)["ids"])
        self.assertNotIn(WEIGHTS, " ".join(r.path for r in hub.requests))
        self.inspect(hub)  # and then the rest
        self.assertEqual(sum(WEIGHTS in r.path for r in hub.downloads()), 1)

    def test_training(self):
        self.repository = Repository(files_of(model(LLAMA)))
        hub = self.hub({self.id: self.repository, "datasets/some-org/rows": self.rows_repository()})
        out = self.train(self.id, "some-org/rows", env=self.env(hub))
        self.assertEqual(json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"], self.id)
        adapter = Repository({n: d for n, d in files_of_adapter(out).items()})
        hub.repositories["some-org/adapter"] = adapter
        scores = self.score(self.id, self.rows(2), "--adapter_name_or_path", "some-org/adapter", env=self.env(hub))
        self.assertEqual(scores, self.score(model(LLAMA), self.rows(2), "--adapter_name_or_path", out, name="b.jsonl"))

    def rows_repository(self):
        return Repository(
            {
                "data/train-00000-of-00002.jsonl": jsonl(token_rows(3)),
                "data/train-00001-of-00002.jsonl": jsonl(token_rows(2, seed=2)),
                "data/test-00000-of-00001.jsonl": jsonl(token_rows(4, seed=3)),
                "other/train.jsonl": jsonl(token_rows(1, seed=4)),
                "README.md": "#",
            }
        )

    def test_data_sets(self):
        hub = self.hub({"datasets/some-org/rows": self.rows_repository()})

        def rows(path, *extra, **changes):
            result = self.succeed("data", "--json", "--train_file", path, *extra, env=self.env(hub, **changes))
            return json.loads(result.out)["train"]["rows"]

        self.assertEqual(rows("hf://datasets/some-org/rows/data"), 5)
        self.assertNotIn("test-00000", " ".join(r.path for r in hub.requests))
        self.assertNotIn("other", " ".join(r.path for r in hub.requests))
        self.assertEqual(rows("hf://datasets/some-org/rows/data", HF_HUB_OFFLINE=1), 5)
        self.fail_with(
            INPUT,
            ["some-org/rows", "HF_HUB_OFFLINE", "hf download --repo-type dataset some-org/rows"],
            "data",
            "--train_file",
            "some-org/rows",
            env=self.env(hub, HF_HUB_OFFLINE=1),
        )
        self.assertEqual(rows("some-org/rows"), 6)
        self.assertEqual(
            rows(
                "hf://datasets/some-org/rows@main/data/*.jsonl",
                "--eval_file",
                "hf://datasets/some-org/rows/data/test-00000-of-00001.jsonl",
            ),
            5,
        )
        source = '[{"path": "some-org/rows", "split": "test"}]'
        result = self.succeed("data", "--json", "--datasets", source, env=self.env(hub))
        self.assertEqual(json.loads(result.out)["train"]["rows"], 4)
        self.fail_with(
            "hub.no-useful-files",
            ["none of its 5 files", "of use here"],
            "data",
            "--train_file",
            "hf://datasets/some-org/rows/no",
            env=self.env(hub),
        )

    def test_several_at_once_and_one_process_a_machine(self):
        shards = {f"model-{i:05}-of-00009.safetensors": os.urandom(300_000) for i in range(1, 10)}
        index = {"weight_map": {f"w{i}": name for i, name in enumerate(shards)}}
        files = shards | {"config.json": json.dumps(LLAMA), "model.safetensors.index.json": json.dumps(index)}
        hub = self.hub({self.id: Repository(files)})
        started = [
            subprocess.Popen(
                [PROGRAM, "inspect", self.id], env=self.env(hub), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            for _ in range(4)
        ]
        words = [process.communicate(timeout=TIMEOUT_S)[0].decode() for process in started]
        self.assertEqual(sum("downloading" in text for text in words), 1, words)
        self.assertEqual(len(hub.downloads()), len(files))
        self.assertGreater(hub.most_at_once, 2)


def files_of_adapter(folder):
    return {n: (folder / n).read_bytes() for n in ("adapter_model.safetensors", "adapter_config.json")}


@unittest.skipUnless(PYTHON, "no Python with huggingface_hub")
class SharedWithHuggingFace(HubCase):
    def in_python(self, hub, code, **changes):
        done = subprocess.run(
            [PYTHON, "-W", "ignore", "-c", code],
            env=self.env(hub, HF_HUB_DISABLE_PROGRESS_BARS=1, **changes),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_it_finds_what_we_downloaded(self):
        hub = self.hub()
        self.inspect(hub)
        begin = len(hub.downloads())
        names = sorted(self.files)
        code = f"import huggingface_hub as h; print(h.snapshot_download({self.id!r}, allow_patterns={names!r}))"
        self.assertEqual(self.in_python(hub, code), str(self.snapshot()))
        self.assertEqual(len(hub.downloads()), begin)
        self.assertEqual(self.in_python(hub, code, HF_HUB_OFFLINE=1), str(self.snapshot()))
        # It knows from our list that the rest is not there.
        whole = f"""
import huggingface_hub as h
try: h.snapshot_download({self.id!r})
except Exception as e: print(type(e).__name__)
"""
        self.assertEqual(self.in_python(hub, whole, HF_HUB_OFFLINE=1), "IncompleteSnapshotError")
        scan = "import huggingface_hub as h; c = h.scan_cache_dir(); print(len(c.warnings), [(r.repo_id, len(r.revisions)) for r in c.repos])"
        self.assertEqual(self.in_python(hub, scan), f"0 [('{self.id}', 1)]")

    def test_we_find_what_it_downloaded(self):
        hub = self.hub()
        code = f"import huggingface_hub as h; print(h.snapshot_download({self.id!r}))"
        self.assertEqual(self.in_python(hub, code, HF_HUB_DISABLE_XET=1), str(self.snapshot()))
        hub.stop()
        self.assertIn(str(self.snapshot()), self.inspect(hub).err)
        self.inspect(hub, HF_HUB_OFFLINE=1)

    def test_we_complete_what_it_began(self):
        hub = self.hub()
        code = f"import huggingface_hub as h; print(h.hf_hub_download({self.id!r}, {WEIGHTS!r}))"
        self.in_python(hub, code, HF_HUB_DISABLE_XET=1)
        (self.snapshot() / WEIGHTS).unlink()  # the blob stays
        begin = len(hub.downloads())
        self.inspect(hub)
        self.check_cache()
        self.assertEqual(len(hub.downloads()) - begin, len(self.files) - 1)


if __name__ == "__main__":
    main()
