"""Folders that cannot be written, disks that are full, and files that stay."""

import json
import os
import pathlib
import resource
import signal

from support import (
    EndToEnd,
    FP32,
    LEGAL_BASE,
    LLAMA,
    RUNTIME,
    TEXT_LLAMA,
    USAGE,
    main,
    model,
    write_rows,
)


class Output(EndToEnd):
    def test_a_folder_below_a_file(self):
        (self.folder / "file").write_text("")
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file" / "out")],
            *self.train_arguments(model(LLAMA), self.rows(4), out="file/out"),
        )
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file")],
            "init",
            "--model_config",
            model(LLAMA) / "config.json",
            "--out",
            self.folder / "file" / "m",
        )
        self.fail_with(
            RUNTIME,
            [str(self.folder / "file")],
            "score",
            "--model.path",
            model(LLAMA),
            "--train_file",
            self.rows(4),
            "--out",
            self.folder / "file" / "s.jsonl",
            "--device",
            "cpu",
        )

    def limited(self, size):
        """A limit on the size of files stands for a full disk: the program must not die of SIGXFSZ."""

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return limit

    def test_no_room_for_the_adapter(self):
        result = self.fail_with(
            RUNTIME,
            ["adapter_model.safetensors"],
            *self.train_arguments(model(LLAMA), self.rows(4)),
            preexec=self.limited(8192),
        )
        self.assertIn("File too large", result.err)
        names = [p.name for p in (self.folder / "out").iterdir()]
        self.assertNotIn("adapter_model.safetensors", names)
        self.assertEqual([n for n in names if ".tmp-" in n], [])

    def test_init_does_not_replace_a_model(self):
        there = self.copied_model(model(LLAMA), "there")
        before = {p.name: p.read_bytes() for p in there.iterdir()}
        make = ["init", "--model_config", model(LLAMA) / "config.json", "--seed", "8", "--out"]
        for folder in (there, self.folder / "weights"):
            folder.mkdir(exist_ok=True)
            (folder / "model.safetensors").write_bytes(before["model.safetensors"])
            self.fail_with(USAGE, ["holds a model already", "Name another folder"], *make, folder)
        self.assertEqual({p.name: p.read_bytes() for p in there.iterdir()}, before)
        (self.folder / "empty").mkdir()
        self.succeed(*make, self.folder / "empty")

    def test_init_does_not_mix_with_an_adapter(self):
        out = self.train(model(LLAMA), self.rows(4), "--save_steps", "0")
        (out / "adapter_model.safetensors").rename(out / "adapter_model.bin")
        before = sorted(p.name for p in out.iterdir())
        self.fail_with(USAGE, "holds a run", "init", "--model_config", model(LLAMA) / "config.json", "--out", out)
        self.assertEqual(sorted(p.name for p in out.iterdir()), before)

    def test_what_a_command_reads_is_not_written_over(self):
        rows, base = self.rows(4), model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        link = self.folder / "link"
        link.symlink_to(rows)
        questions = write_rows(self.folder / "questions.jsonl", [{"prompt": "a", "completion": "b"}] * 2)
        config = self.folder / "axolotl.yaml"
        config.write_text("base_model: x\nadapter: lora\nmicro_batch_size: 2\n")
        common = ["--device", "cpu", *FP32, "--model.path", base]
        for file, arguments in (
            (rows, ["score", *common, "--data.train_file", rows, "--out", link]),
            (rows, ["score", *common, "--data.train_file", link, "--out", self.folder / "s", "--logits", rows]),
            (
                questions,
                ["evaluate", *common, "--eval_file", questions, "--metric", "exact_match", "--answers", questions],
            ),
            (config, ["import-config", config, "--out", config]),
        ):
            before = file.read_bytes()
            self.fail_with(USAGE, ["is the file that", "Name another file"], *arguments)
            self.assertEqual(file.read_bytes(), before)
        self.assertFalse((self.folder / "s").exists())

    def test_init_takes_another_number_of_layers(self):
        self.succeed(
            *("init", "--model_config", model(LLAMA) / "config.json", "--layers", "5", "--quantize", "nf4"),
            *("--out", self.folder / "five"),
        )
        self.assertEqual(json.loads((self.folder / "five" / "config.json").read_text())["num_hidden_layers"], 5)
        self.succeed("inspect", self.folder / "five")
        self.fail_with(USAGE, "layers", "init", "--shape", "llama-2-7b", "--layers", "-1", "--out", self.folder / "m")

    def test_an_earlier_adapter_survives_a_failed_save(self):
        rows = self.rows(4)
        out = self.train(model(LLAMA), rows)
        before = (out / "adapter_model.safetensors").read_bytes()
        self.fail_with(
            RUNTIME,
            ["adapter_model.safetensors"],
            *self.train_arguments(model(LLAMA), rows, "--seed", "5", "--overwrite_output_dir", "true"),
            preexec=self.limited(8192),
        )
        self.assertEqual((out / "adapter_model.safetensors").read_bytes(), before)

    def test_no_room_for_other_files(self):
        self.fail_with(
            RUNTIME, ["File too large"], *self.train_arguments(model(LLAMA), self.rows(4)), preexec=self.limited(64)
        )
        self.fail_with(
            RUNTIME,
            ["File too large"],
            "init",
            "--model_config",
            model(LLAMA) / "config.json",
            "--out",
            self.folder / "m",
            preexec=self.limited(8192),
        )
        self.assertFalse((self.folder / "m").exists(), "what failed leaves no folder")
        self.fail_with(
            RUNTIME,
            ["File too large"],
            "score",
            "--model.path",
            model(LLAMA),
            "--train_file",
            self.rows(8),
            "--out",
            self.folder / "s",
            "--logits",
            self.folder / "l",
            "--device",
            "cpu",
            preexec=self.limited(8192),
        )

    def test_a_full_device(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("no /dev/full")
        done = os.system(f"{os.environ['UNSLOTH_TRAIN']} config > /dev/full 2> {self.folder / 'err'}")
        self.assertEqual(os.waitstatus_to_exitcode(done), RUNTIME)
        self.assertIn("standard output", (self.folder / "err").read_text())


if __name__ == "__main__":
    main()
