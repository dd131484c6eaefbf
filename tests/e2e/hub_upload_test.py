"""Uploads to the Hugging Face hub: against a server of this machine that speaks the hub's API, with faults."""

import json
import pathlib
import signal
import subprocess
import time
import unittest

from hub_server import Hub, Repository
from peers import python_with
from support import (
    LLAMA,
    OK,
    USAGE,
    EndToEnd,
    environment,
    main,
    model,
    run,
    start,
)

PYTHON = python_with("huggingface_hub")
TOKEN = "hf_SecretOfTheUploadTest"
ACCOUNT = {"name": "me", "orgs": [{"name": "firm"}], "auth": {"accessToken": {"role": "write"}}}
NOT_UPLOADED = 5
WEIGHTS = "adapter_model.safetensors"


class Upload(EndToEnd):
    def setUp(self):
        super().setUp()
        self.spoken = []

    def hub(self, **options):
        hub = Hub(options.pop("repositories", {}), accounts={TOKEN: ACCOUNT} | options.pop("accounts", {}), **options)
        hub.__enter__()
        self.addCleanup(lambda: hub.servers and hub.stop())
        return hub

    def env(self, hub, **changes):
        given = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": self.folder / "cache", "HF_HUB_OFFLINE": 0, "HF_TOKEN": TOKEN}
        return environment(**(given | changes))

    def adapter(self):
        return self.train(model(LLAMA), self.rows(16), "--val_size", "4")

    def push(self, hub, folder, *extra, repo="me/it", code=OK, **changes):
        result = run("push", folder, "--repo", repo, *extra, env=self.env(hub, **changes))
        self.spoken.append(result)
        self.assertEqual(result.code, code, str(result))
        self.check_words(result)
        return result

    def run_that_uploads(self, hub, *extra, code=OK, out="out", **changes):
        arguments = self.train_arguments(model(LLAMA), self.rows(16), "--push_to_hub", "true", *extra, out=out)
        result = run("train", *arguments, env=self.env(hub, **changes))
        self.spoken.append(result)
        self.assertEqual(result.code, code, str(result))
        self.check_words(result)
        return self.folder / out, result

    def check_uploaded(self, hub, folder, name="me/it"):
        files = hub.repositories[name].files
        for path, data in files.items():
            self.assertEqual(data, (folder / path).read_bytes(), path)
        self.assertIn(WEIGHTS, files)
        self.assertEqual(
            set(files) & {"run_config.json", "metrics.jsonl", "trainer_state.json", "run_facts.json"}, set()
        )

    def tearDown(self):
        """The token is in no output and in no file."""
        for result in self.spoken:
            for token in (TOKEN, "hf_wrong", "hf_reader"):
                self.assertNotIn(token, result.out + result.err)
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(TOKEN.encode(), path.read_bytes(), path)
        super().tearDown()


class Push(Upload):
    def test_an_adapter_with_its_card(self):
        hub = self.hub()
        folder = self.adapter()
        result = self.push(hub, folder)
        self.assertEqual(hub.created, [("me/it", True)])
        self.check_uploaded(hub, folder)
        self.assertIn("uploaded 3 files", result.err)
        self.assertEqual(hub.commits[0][0], "Upload adapter with unsloth-train")
        card = hub.repositories["me/it"].files["README.md"].decode()
        header = card.split("---\n")[1]
        self.assertIn("library_name: peft\n", header)
        self.assertIn("- unsloth-train\n- lora\n- sft\n", header)
        self.assertNotIn("base_model", header)  # a folder of this machine
        self.assertIn("| `eval_loss` | ", card)
        self.assertIn("| `lora.r` | 16 |", card)
        self.assertIn('AutoPeftModelForCausalLM.from_pretrained("me/it")', card)
        for local in (str(self.folder), str(pathlib.Path(model(LLAMA)).parent)):
            self.assertNotIn(local, card)

    def test_again_without_a_change(self):
        hub = self.hub()
        folder = self.adapter()
        self.push(hub, folder)
        self.assertIn("the hub has all 3 files already", self.push(hub, folder).err)
        self.assertEqual(len(hub.commits), 1)
        self.assertEqual(sum(r.method == "PUT" for r in hub.requests), 1)
        (folder / "README.md").write_text("My own words.")
        self.assertIn("is not of this program", self.push(hub, folder, "--message", "Words").err)
        self.assertEqual(hub.commits[1], ("Words", ["README.md"]))
        self.assertEqual(hub.repositories["me/it"].files["README.md"], b"My own words.")

    def test_in_parts(self):
        hub = self.hub(part=5000)
        folder = self.adapter()
        size = (folder / WEIGHTS).stat().st_size
        self.push(hub, folder, "--private", "false", repo="firm/it")
        self.assertEqual(hub.created, [("firm/it", False)])
        self.check_uploaded(hub, folder, "firm/it")
        self.assertEqual(sum(r.method == "PUT" for r in hub.requests), -(-size // 5000))

    def test_a_whole_model(self):
        hub = self.hub()
        folder = pathlib.Path(model(LLAMA))
        folder = self.copied_model(folder)
        self.push(hub, folder)
        self.assertEqual(set(hub.repositories["me/it"].files), {"README.md", "config.json", "model.safetensors"})
        self.assertIn("library_name: transformers", (folder / "README.md").read_text())

    def test_what_passes_is_tried_again(self):
        hub = self.hub(part=5000)
        folder = self.adapter()
        later = ("status", 503, {"Retry-After": "0"})
        hub.faults.update(
            {"create": [later], "preupload": [later], "batch": [later], "put": [later, 700], "commit": [later]}
        )
        hub.faults["complete"] = [later]
        self.push(hub, folder)
        self.check_uploaded(hub, folder)

    def test_a_second_run_goes_on(self):
        hub = self.hub()
        folder = self.adapter()
        hub.faults["commit"] = [("status", 500, {"Retry-After": "0"})] * 5
        result = self.push(hub, folder, code=3)
        self.assertIn("hub.request-failed", result.err)
        self.assertFalse(hub.commits)
        self.assertIn("the hub has it already", self.push(hub, folder).err)
        self.assertEqual(sum(r.method == "PUT" for r in hub.requests), 1)
        self.check_uploaded(hub, folder)

    def test_interrupted(self):
        hub = self.hub()
        folder = self.adapter()
        hub.faults["put"] = [("status", 503, {"Retry-After": "30"})]
        process = start("push", folder, "--repo", "me/it", env=self.env(hub), stderr=-1, stdout=-1)
        deadline = time.monotonic() + 60
        while not any(r.method == "PUT" for r in hub.requests) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 143, err)
        self.assertIn("the upload is not complete", err)
        self.push(hub, folder)
        self.check_uploaded(hub, folder)

    def test_refusals(self):
        folder = self.adapter()
        reader = ACCOUNT | {"auth": {"accessToken": {"role": "read"}}}
        hub = self.hub(accounts={"hf_reader": reader}, repositories={"other/it": Repository({})})
        refused = lambda words, **options: self.assertIn(  # noqa: E731
            words, self.push(hub, folder, code=3, **options).err
        )
        refused("there is none", HF_TOKEN="", HF_TOKEN_PATH=self.folder / "none")
        refused("does not accept the token", HF_TOKEN="hf_wrong")
        refused("may only read", HF_TOKEN="hf_reader")
        refused("the token's account me is not in other", repo="other/it")
        fine = ACCOUNT | {"auth": {"accessToken": {"role": "fineGrained"}}}
        hub.accounts["hf_fine"] = fine
        refused("the token may not write there (HTTP 403: Forbidden", repo="other/it", HF_TOKEN="hf_fine")
        self.assertIn("HF_HUB_OFFLINE is set", self.push(hub, folder, code=USAGE, HF_HUB_OFFLINE=1).err)
        self.assertIn("is no name of a repository", self.push(hub, folder, repo="a/b/c", code=USAGE).err)
        (self.folder / "empty").mkdir()
        self.assertIn("no adapter and no model", self.push(hub, self.folder / "empty", code=3).err)
        self.assertFalse(hub.commits)


class AfterTraining(Upload):
    def test_the_result_is_uploaded(self):
        hub = self.hub()
        folder, result = self.run_that_uploads(hub, "--hub_model_id", "firm/run")
        self.assertIn("the result goes to firm/run", result.err)
        self.check_uploaded(hub, folder, "firm/run")

    def test_named_as_the_folder(self):
        hub = self.hub()
        self.run_that_uploads(hub, out="my-run")
        self.assertEqual(list(hub.repositories), ["me/my-run"])

    def test_checked_before_it_trains(self):
        hub = self.hub()
        folder, result = self.run_that_uploads(hub, code=3, HF_TOKEN="hf_wrong")
        self.assertIn("does not accept the token", result.err)
        self.assertFalse((folder / "metrics.jsonl").exists())
        self.run_that_uploads(hub, "--max_steps", "0")
        self.assertFalse(hub.repositories)

    def test_a_failed_upload_keeps_the_result(self):
        hub = self.hub()
        hub.faults["commit"] = [("status", 403, {})]
        folder, result = self.run_that_uploads(hub, code=NOT_UPLOADED)
        self.assertTrue((folder / WEIGHTS).exists())
        again = f"unsloth-train push {folder} --repo out"
        self.assertIn(f"To upload it: {again}", result.err)
        self.push(hub, folder, repo="out")
        self.check_uploaded(hub, folder, "me/out")

    def test_a_hub_that_is_not_there_at_first(self):
        hub = self.hub()
        hub.stop()
        folder, result = self.run_that_uploads(hub, code=NOT_UPLOADED)
        self.assertIn("whether out takes an upload is not known", result.err)
        self.assertEqual(json.loads((folder / "run_config.json").read_text())["training"]["push_to_hub"], True)


CLIENT = """
import sys
from huggingface_hub import HfApi
HfApi().create_repo("me/theirs", private=True, exist_ok=True)
HfApi().upload_folder(folder_path=sys.argv[1], repo_id="me/theirs", allow_patterns=["adapter_*"])
"""


@unittest.skipUnless(PYTHON, "no Python with huggingface_hub")
class TheServer(Upload):
    def test_speaks_with_the_hubs_own_client(self):
        hub = self.hub(part=5000)
        folder = self.adapter()
        for _ in range(2):
            given = self.env(hub, HF_HUB_DISABLE_XET=1, HF_HOME=self.folder / "home")
            result = subprocess.run([PYTHON, "-c", CLIENT, folder], env=given, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.push(hub, folder)
        theirs, ours = hub.repositories["me/theirs"].files, hub.repositories["me/it"].files
        self.assertEqual(theirs, {name: ours[name] for name in theirs})
        self.assertEqual(sorted(theirs), ["adapter_config.json", WEIGHTS])


if __name__ == "__main__":
    main()
