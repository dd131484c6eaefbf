"""`unsloth-train new`: a configuration that fits a model, rows and a card, by flags and by answers at a terminal."""

import os
import pty
import subprocess

from hub_server import Hub, Repository
from support import *

TRAIN = SOURCE / "examples" / "legal" / "train.jsonl"


class New(EndToEnd):
    def new(self, *arguments, **options):
        return self.succeed("new", "--out", self.folder / "run.json", *arguments, cwd=self.folder, **options)

    def test_flags_alone(self):
        """The example's model and rows on the CPU; the configuration trains."""
        result = self.new("--model", LEGAL_BASE, "--data", TRAIN, "--gpu", "cpu")
        config = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(config["model"]["path"], str(LEGAL_BASE))
        self.assertEqual(config["data"]["train_file"], str(TRAIN))
        self.assertEqual(config["hardware"]["device"], "cpu")
        self.assertEqual(config["training"]["output_dir"], "out/run")
        self.assertEqual(config["model"]["max_seq_length"] % 64, 0)
        lines = result.out.splitlines()
        self.assertEqual([line.strip() for line in lines[-2:]],
                         [f"unsloth-train data {self.folder}/run.json", f"unsloth-train {self.folder}/run.json"])  # fmt: skip
        self.assertRegex(result.out, r"\d+ rows of format alpaca, \d+ tokens in the median, \d+ at most")
        for option in ("max_seq_length", "load_in_4bit", "per_device_train_batch_size", "gradient_checkpointing"):
            self.assertRegex(result.out, rf"(?m)^{option} \S+: \S")
        self.succeed("data", self.folder / "run.json", cwd=self.folder)
        self.succeed(self.folder / "run.json", "--max_steps", 1, "--val_size", 0, "--eval_steps", 0, cwd=self.folder)
        self.assertEqual(len(self.steps(self.folder / "out" / "run")), 1)

    def test_rows_with_labels_are_for_kto(self):
        rows = [{"prompt": f"{n}?", "completion": f"{n}.", "label": n % 2 == 0} for n in range(8)]
        self.new("--model", LEGAL_BASE, "--data", write_rows(self.folder / "rows.jsonl", rows), "--gpu", "cpu")
        self.assertEqual(json.loads((self.folder / "run.json").read_text())["training"]["objective"], "kto")

    def test_a_folder_with_a_test_set_and_rows_that_are_too_long(self):
        rows = [{"instruction": f"What is term {n}?", "output": "A year."} for n in range(20)]
        rows[3] = rows[7] = {"instruction": "What is the term? " * 600, "output": "A year."}
        folder = self.folder / "my rows"
        folder.mkdir()
        write_rows(folder / "train.jsonl", rows)
        write_rows(folder / "test.jsonl", rows[10:14])
        out = self.folder / "my run.json"
        flags = ["--model", LEGAL_BASE, "--data", folder, "--gpu", "cpu", "--out", out]
        told = self.succeed("new", *flags, cwd=self.folder).out
        self.assertIn("note: 2 of 20 rows leave nothing to train on", told)
        self.assertIn(f"unsloth-train data '{out}'\n  unsloth-train '{out}'\n", told)
        config = json.loads(out.read_text())
        self.assertEqual((config["data"]["eval_split"], config["data"]["skip_invalid"]), ("test", True))
        self.assertNotIn("val_size", config["data"])
        self.assertEqual(config["training"]["warmup_steps"], 1)
        told = self.succeed(out, cwd=self.folder).err
        self.assertNotIn("training.warmup_steps", told)
        evaluated = [e["step"] for e in self.evaluations(self.folder / "out" / "my run")]
        self.assertEqual(evaluated, [3, 6, 9, 12, 15])

    def test_a_file_is_replaced_only_by_force(self):
        kept = self.folder / "run.json"
        kept.write_text("mine")
        flags = ("--model", LEGAL_BASE, "--data", TRAIN, "--gpu", "24GiB")
        self.fail_with("output.exists", ["run.json exists", "--force"], "new", "--out", kept, *flags)
        self.assertEqual(kept.read_text(), "mine")
        self.new("--force", *flags)
        self.assertNotIn("hardware", json.loads(kept.read_text()))

    def test_without_a_terminal_it_says_which_flags_are_needed(self):
        result = self.fail_with("option.missing", ["new needs --data, --gpu", "no terminal"], "new", "--model",
                                LEGAL_BASE, "--out", self.folder / "run.json")  # fmt: skip
        self.assertEqual(result.out, "")
        flags = ["--out", self.folder / "run.json", "--model", LEGAL_BASE, "--data", TRAIN]
        self.fail_with("option.invalid-value", ["24", "24GiB"], "new", *flags, "--gpu", "24")
        self.fail_with(USAGE, ["NVIDIA H200"], "new", *flags, "--gpu", "voodoo")
        swapped = ["--out", self.folder / "run.json", "--model", TRAIN, "--data", TRAIN, "--gpu", "cpu"]
        self.fail_with("model.wrong-file-format", [f"{TRAIN}: not a .safetensors file"], "new", *swapped)
        self.assertFalse((self.folder / "run.json").exists())

    def test_a_hub_model_needs_no_weights(self):
        """Its configuration and tokenizer are downloaded, and a card that holds it is planned for."""
        id = "some-org/some-llama"
        shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}  # fmt: skip
        files = {path.name: path.read_bytes() for path in LEGAL_BASE.iterdir() if path.suffix == ".json"}
        files |= {"config.json": json.dumps(TEXT_LLAMA | shape), "model.safetensors": b"not to be asked for"}
        with Hub({id: Repository(files)}) as hub:
            cache = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": self.folder / "cache", "HF_HUB_OFFLINE": 0}
            result = self.new("--model", id, "--data", TRAIN, "--gpu", "12GiB", env=environment(**cache))
            self.assertNotIn("model.safetensors", [request.path.rpartition("/")[2] for request in hub.requests])
        config = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(config["model"]["path"], id)
        self.assertTrue(config["model"]["load_in_4bit"])
        self.assertIn("the run downloads them", result.out)
        self.assertRegex(result.out, r"predicted: \d+ tokens/s")
        self.assertIn("on the machine with that card", result.out)
        batch = [config["training"][key] for key in ("per_device_train_batch_size", "gradient_accumulation_steps")]
        plan = self.succeed("plan", self.folder / "run.json", "--gpu_memory", "12GiB", "--json",
                            env=environment(HF_HUB_CACHE=self.folder / "cache"))  # fmt: skip
        self.assertTrue(json.loads(plan.out)["fits"])
        self.assertIn(batch[0] * batch[1], (4, 8, 16))
        missing = environment(HF_HUB_CACHE=self.folder / "nothing")
        self.fail_with(INPUT, ["some-org/some-llama"], "new", "--out", self.folder / "other.json", "--model", id,
                       "--data", TRAIN, "--gpu", "12GiB", env=missing)  # fmt: skip

    def at_terminal(self, *answers, flags=()):
        """What was shown, with each answer given when something is asked; `answers`: lines."""
        ours, theirs = pty.openpty()
        command = [PROGRAM, "new", "--out", self.folder / "run.json", *flags]
        process = subprocess.Popen(list(map(str, command)), stdin=theirs, stdout=theirs, stderr=theirs,
                                   env=environment(), cwd=self.folder)  # fmt: skip
        os.close(theirs)
        shown, answers = b"", list(answers)
        for part in parts_of_terminal(ours):
            shown += part
            if shown.endswith(b"> ") and answers:
                os.write(ours, f"{answers.pop(0)}\n".encode())
        text = shown.decode().replace("\r\n", "\n")
        self.assertEqual(process.wait(TIMEOUT_S), OK, text)
        self.assertEqual(answers, [], text)
        return text

    def test_questions_are_asked_again_with_the_reason(self):
        empty = self.folder / "empty"
        empty.mkdir()
        rows = write_rows(self.folder / "rows.jsonl", [{"instruction": "What?", "output": "A."}] * 8)
        bad = write_rows(self.folder / "bad.jsonl", [{"question": "What?"}])
        text = self.at_terminal(self.folder / "absent", empty, "", LEGAL_BASE,  # the model
                                self.folder / "absent.jsonl", bad, rows,  # the rows
                                "24", "voodoo", "16MiB", "cpu")  # fmt: skip
        parts = text.split("> ")
        for reason in ("absent: no such file or folder", "config.json", "absent.jsonl", "bad.jsonl", "needs a unit",
                       "NVIDIA H200", "driver"):  # fmt: skip
            at = next((i for i, part in enumerate(parts) if reason in part), None)
            self.assertIsNotNone(at, f"{reason}: {text}")
        self.assertEqual(len(parts), 12, text)  # eleven questions
        self.assertEqual(text.count("Which model?"), 4)
        self.assertEqual(text.count("Which rows?"), 3)
        self.assertEqual(text.count("Which card?"), 4)
        config = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(config["data"]["train_file"], str(rows))
        self.assertEqual(config["training"]["gradient_accumulation_steps"], 1)

    def test_only_what_is_missing_is_asked(self):
        text = self.at_terminal("", flags=("--model", LEGAL_BASE, "--data", TRAIN))
        self.assertNotIn("Which model?", text)
        self.assertEqual(text.count("> "), 1, text)
        self.assertIn("Written: ", text)


if __name__ == "__main__":
    main()
