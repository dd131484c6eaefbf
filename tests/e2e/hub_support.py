"""What the tests of the hub share: a server of this machine, and a cache."""

import json
import os
import pathlib

from hub_server import Hub, Repository
from peers import python_with
from support import (
    INPUT,
    LEGAL_BASE,
    EndToEnd,
    environment,
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
