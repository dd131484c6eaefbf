"""Models and data sets by their ids on the Hugging Face hub: against a server of this machine that speaks the hub's API, with faults,
and against huggingface_hub itself, where there is a Python that has it."""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import unittest

from hub_server import Hub, Repository
from peers import python_with
from support import (
    INPUT,
    LLAMA,
    OK,
    PROGRAM,
    RUNTIME,
    LEGAL_BASE,
    TIMEOUT_S,
    EndToEnd,
    environment,
    main,
    model,
    read_rows,
    token_rows,
)

PYTHON = python_with("huggingface_hub")
FAULT = os.environ.get("UNSLOTH_FAULT", "")
WEIGHTS = "model.safetensors"


def files_of(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


class HubCase(EndToEnd):
    id = "some-org/tiny.llama"

    def setUp(self):
        super().setUp()
        self.cache = self.folder / "cache"
        self.files = files_of(LEGAL_BASE)
        others = {
            "README.md": "#",
            "pytorch_model.bin": "x",
            "original/params.json": "{}",
            "consolidated.safetensors": "c",
        }
        self.repository = Repository(self.files | others)

    def hub(self, repositories=None):
        hub = Hub(repositories or {self.id: self.repository})
        self.addCleanup(lambda: hub.servers and hub.stop())
        return hub.__enter__()

    def env(self, hub, **changes):
        given = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": self.cache, "HF_HUB_OFFLINE": 0, "HF_TOKEN": ""} | changes
        return environment(**given)

    def inspect(self, hub, **changes):
        return self.succeed("inspect", self.id, env=self.env(hub, **changes))

    def refuse(self, hub, parts, code=INPUT, name=None, **changes):
        return self.fail_with(code, parts, "inspect", name or self.id, env=self.env(hub, **changes))

    def storage(self, name=None):
        return self.cache / ("models--" + (name or self.id).replace("/", "--"))

    def snapshot(self):
        return self.storage() / "snapshots" / self.repository.commit

    def check_cache(self):
        """What was wanted is there byte by byte, and nothing else."""
        found = {str(p.relative_to(self.snapshot())) for p in self.snapshot().rglob("*") if p.is_file()}
        self.assertEqual(found, set(self.files))
        for name, data in self.files.items():
            link = self.snapshot() / name
            self.assertEqual(link.read_bytes(), data)
            self.assertEqual(os.readlink(link), "../../blobs/" + self.repository.hash(name))
        self.assertEqual(
            sorted(p.name for p in (self.storage() / "blobs").iterdir()),
            sorted({self.repository.hash(name) for name in self.files}),
        )
        self.assertEqual((self.storage() / "refs" / "main").read_text(), self.repository.commit)


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


class Faults(HubCase):
    def setUp(self):
        super().setUp()
        self.weights = self.files[WEIGHTS]

    def starts(self, hub, name=WEIGHTS):
        return [r.start for r in hub.requests if r.server == "storage" and name in r.path]

    def test_cut_connections_are_resumed(self):
        hub = self.hub()
        hub.faults[WEIGHTS] = [1000, 2000, 0]
        result = self.inspect(hub)
        self.assertIn("again in 0.5 s", result.err)
        self.check_cache()
        self.assertEqual(self.starts(hub), [0, 1000, 3000, 3000])

    def test_a_server_without_ranges(self):
        hub = self.hub()
        hub.faults[WEIGHTS] = [1000, "no range"]
        self.inspect(hub)
        self.check_cache()

    def test_the_next_start_goes_on(self):
        hub = self.hub()
        hub.faults[WEIGHTS] = [5000] + [0] * 4
        self.refuse(hub, ["failed again and again", "hf download " + self.id])
        begin = len(hub.requests)
        result = self.inspect(hub)
        self.assertIn("of them here already", result.err)
        self.check_cache()
        self.assertEqual([r.start for r in hub.requests[begin:] if r.server == "storage"], [5000])

    def test_a_stale_beginning(self):
        hub = self.hub()
        blobs = self.storage() / "blobs"
        blobs.mkdir(parents=True)
        for size in (1000, len(self.weights), len(self.weights) + 5):
            (blobs / (self.repository.hash(WEIGHTS) + ".incomplete")).write_bytes(b"?" * size)
            self.inspect(hub)
            self.check_cache()
            for path in (self.snapshot() / WEIGHTS, blobs / self.repository.hash(WEIGHTS)):
                path.unlink()

    def test_planted_links(self):
        hub = self.hub()
        precious = self.folder / "precious"
        precious.write_text("content")
        blob = self.repository.hash(WEIGHTS)
        locks = self.cache / ".locks" / self.storage().name
        for place in (
            locks / "unsloth-train.lock",
            locks / f"{blob}.lock",
            self.storage() / "blobs" / f"{blob}.incomplete",
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(precious)
            self.refuse(hub, [str(place), "is a symbolic link"], "disk.foreign-file")
            self.assertEqual(precious.read_text(), "content")
            place.unlink()
        self.inspect(hub)
        self.check_cache()

    def test_planted_folders(self):
        hub = self.hub()
        precious = self.folder / "precious"
        names = ("main", f"{self.repository.commit}.json", self.repository.hash(WEIGHTS), "config.json")
        for name in names:
            (precious / self.repository.commit / name).parent.mkdir(parents=True, exist_ok=True)
            (precious / self.repository.commit / name).write_text("content")
            (precious / name).write_text("content")
        before = {p: p.is_file() and p.read_bytes() for p in sorted(precious.rglob("*"))}
        for place in (
            self.cache / ".locks",
            self.storage() / "refs",
            self.storage() / "trees",
            self.storage() / "blobs",
            self.storage() / "snapshots",
            self.snapshot(),
        ):
            shutil.rmtree(self.cache, ignore_errors=True)
            place.parent.mkdir(parents=True)
            place.symlink_to(precious)
            self.refuse(hub, [place.name, "is a symbolic link"], "disk.foreign-file")
            self.assertEqual({p: p.is_file() and p.read_bytes() for p in sorted(precious.rglob("*"))}, before)
            place.unlink()
        self.inspect(hub)
        self.check_cache()

    def test_wrong_bytes(self):
        hub = self.hub()
        wrong = ("data", self.weights[:-1] + b"\x55")
        hub.faults[WEIGHTS] = [wrong]
        self.assertIn("has the hash", self.inspect(hub).err)
        self.check_cache()
        (self.snapshot() / WEIGHTS).unlink()
        (self.storage() / "blobs" / self.repository.hash(WEIGHTS)).unlink()
        hub.faults[WEIGHTS] = [wrong, wrong]
        self.refuse(hub, [WEIGHTS, "has the hash", self.repository.hash(WEIGHTS)], "hub.altered-file")
        hub.faults[WEIGHTS] = [("data", self.weights + b"more")] * 2
        self.refuse(hub, [WEIGHTS, "has more bytes than"], "hub.altered-file")
        self.assertFalse((self.snapshot() / WEIGHTS).exists())
        self.assertEqual(list((self.storage() / "blobs").glob("*.incomplete")), [])
        hub.faults["config.json"] = []
        self.inspect(hub)
        self.check_cache()

    def test_a_busy_hub(self):
        hub = self.hub()
        hub.faults["revision"] = [("status", 503, {}), ("status", 429, {"Retry-After": "1"})]
        hub.faults["config.json"] = [("status", 429, {"RateLimit": '"resolvers";r=0;t=1'})]
        result = self.inspect(hub)
        self.assertEqual(result.err.count("again in 1 s"), 2, result.err)
        self.check_cache()
        hub.repositories["some-org/other"] = self.repository
        hub.faults["revision"] = [("status", 429, {"Retry-After": "86400"})]
        self.refuse(hub, ["HTTP 429"], name="some-org/other")

    def test_who_may_read(self):
        secret = Repository(self.files, token="hf_right")
        gated = Repository(self.files, token="hf_right", gated=True)
        hub = self.hub({self.id: secret, "some-org/gated": gated})
        self.refuse(hub, ["or it is private", "HTTP 401", "HF_TOKEN"], "hub.not-found")
        self.refuse(hub, ["does not accept the token", "Invalid credentials"], "hub.token-refused", HF_TOKEN="wrong")
        self.refuse(
            hub,
            ["is gated", "Accept its conditions at " + hub.url + "/some-org/gated"],
            "hub.gated",
            name="some-org/gated",
        )
        self.refuse(hub, ["no revision 'v9'", "/tree/main"], "hub.no-revision", name="some-org/gated@v9")
        token = self.folder / "token"
        token.write_text("hf_right\n")
        self.inspect(hub, HF_TOKEN_PATH=token)
        result = self.succeed("inspect", "some-org/gated@" + gated.commit, env=self.env(hub, HF_TOKEN="hf_right"))
        self.assertNotIn("hf_right", result.err + result.out)
        # The token is the hub's alone, wherever the hub sends us for the bytes.
        self.assertEqual({r.authorization for r in hub.requests if r.server == "storage"}, {None})
        self.assertFalse((self.storage("some-org/gated") / "refs" / gated.commit).exists())

    def test_from_https_nothing_leads_to_http(self):
        """Large files are redirected to the storage, which here has no TLS."""
        hub = self.hub()
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        made = subprocess.run(
            ["openssl", *words, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            capture_output=True,
            check=False,
        )
        self.assertEqual(made.returncode, 0, made.stderr)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        hub.servers[0].socket = context.wrap_socket(hub.servers[0].socket, server_side=True)
        hub.url = hub.url.replace("http:", "https:")
        result = self.refuse(hub, [WEIGHTS], SSL_CERT_FILE=certificate, HF_TOKEN="hf_right")
        self.assertRegex(result.err, '(?i)protocol "?http"? (not supported|disabled|is disabled)')
        self.assertIn(WEIGHTS, " ".join(r.path for r in hub.requests))
        self.assertEqual([r for r in hub.requests if r.server == "storage"], [])

    def test_nobody_there(self):
        hub = self.hub()
        hub.stop()
        self.refuse(hub, ["cannot be reached", "hf download " + self.id], "hub.not-downloaded")
        self.refuse(hub, ["HF_ENDPOINT is 'nonsense'"], "hub.bad-setting", HF_ENDPOINT="nonsense")

    def test_nonsense_from_the_hub(self):
        hub = self.hub()
        for kind, answer in (
            ("revision", b"<html>"),
            ("revision", b'{"sha": "../../x"}'),
            ("revision", b"[" * 100000),
            ("tree", b"{}"),
            ("tree", b'[{"type": "file", "path": "../../../evil.json", "size": 1, "oid": "%s"}]' % (b"0" * 40)),
            ("tree", b'[{"type": "file", "path": "a.json", "size": 1, "oid": "../../../../evil"}]'),
            ("tree", b'[{"type": "file", "path": 5}]'),
            ("tree", b"[]"),
        ):
            with self.subTest(answer=answer[:60]):
                hub.faults[kind] = [("data", answer)]
                self.refuse(hub, self.id)
        self.assertEqual([p for p in self.folder.rglob("*evil*")], [])
        self.inspect(hub)
        self.check_cache()

    def test_stopped_and_gone_on(self):
        hub = self.hub()
        hub.faults[WEIGHTS] = [100, ("status", 503, {"Retry-After": "60"})]
        program = [PROGRAM, "quantize", "--model", self.id, "--out", str(self.folder / "q")]
        process = subprocess.Popen(program, env=self.env(hub), stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "again in 60 s" in line:
                process.send_signal(signal.SIGTERM)
                break
        err = process.communicate()[1]
        self.assertEqual(process.wait(TIMEOUT_S), 143, err)
        self.assertIn("is kept, and the next call goes on from there", err)
        self.inspect(hub)
        self.check_cache()
        self.assertEqual(self.starts(hub)[-1], 100)

    @unittest.skipUnless(FAULT, "UNSLOTH_FAULT does not name the preloaded library")
    def test_a_full_disk(self):
        hub = self.hub()
        preload = {"LD_PRELOAD": FAULT, "FAULT_UNDER": ".incomplete", "ASAN_OPTIONS": "verify_asan_link_order=0"}
        self.refuse(
            hub, ["No space left on device", "HF_HOME"], "disk.full", FAULT_KIND="ENOSPC", FAULT_AT=3, **preload
        )
        self.refuse(hub, ["MiB more in", "are free", "HF_HOME"], "disk.full", FAULT_FREE=5000, **preload)
        self.inspect(hub)
        self.check_cache()

    def test_a_cache_that_cannot_be_written(self):
        hub = self.hub()
        self.cache.write_text("a file")
        self.refuse(hub, ["cannot write into the Hugging Face cache"], "disk.cannot-write")
        self.cache.unlink()
        self.inspect(hub)
        self.check_cache()


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
