"""Downloads from a hub with faults: what is refused, resumed and said."""

import shutil
import signal
import ssl
import subprocess
import unittest

from hub_server import Repository
from support import (
    PROGRAM,
    TIMEOUT_S,
    main,
)
from hub_support import FAULT, HubCase, WEIGHTS


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
        self.assertIn("is kept, and the next call continues from there", err)
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


if __name__ == "__main__":
    main()
