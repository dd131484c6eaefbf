"""TRL's runs replayed: losses, metrics and adapters."""

import json
import lzma
import math
import os
import pathlib
import shutil

from rank_support import SharedModel
from support import (
    GOLDEN,
    EndToEnd,
    floats,
    main,
    read_rows,
    read_safetensors,
    run,
    write_rows,
)

SHARED = os.environ.get("UNSLOTH_SHARED", "")


STEPS = pathlib.Path(SHARED) / "golden" / "rl" / "steps" if SHARED else GOLDEN / "rl" / "steps"


MODELS = pathlib.Path(SHARED) / "golden" if SHARED else GOLDEN / "models"


ADAPTER = "adapter_model.safetensors"


def unpacked(source, to):
    """A copy of a folder, whose .xz files are expanded."""
    to.mkdir()
    for file in source.iterdir():
        data = file.read_bytes()
        if file.suffix == ".xz":
            data = lzma.decompress(data)
        (to / file.name.removesuffix(".xz")).write_bytes(data)
    return to


class Replay(EndToEnd):
    """Runs of TRL, which brought their completions and rewards along."""

    def golden(self, name, **changes):
        """The run's configuration as a file; `changes` are of {"section.key": value}."""
        folder = STEPS / name
        config = json.loads((folder / "config.json").read_text())
        for section, path in (("model", MODELS / config["model"]["path"]), ("initial", folder / "initial")):
            if not (self.folder / section).exists():
                unpacked(path, self.folder / section)
        config["model"] |= {"path": str(self.folder / "model"), "adapter_name_or_path": str(self.folder / "initial")}
        config["grpo"]["replay_rollouts"] = str(folder / "rollouts.jsonl")
        config["training"]["output_dir"] = str(self.folder / "out")
        for key, value in changes.items():
            section, option = key.split("__")
            config[section][option] = value
        file = self.folder / "run.json"
        file.write_text(json.dumps(config))
        return file

    def check_course(self, expected, rows, bounds, metrics=True):
        self.assertEqual(len(rows), len(expected))
        for wanted, row in zip(expected, rows):
            self.assertAlmostEqual(row["loss"], wanted["loss"], delta=bounds["loss"])
            self.assertAlmostEqual(
                row["grad_norm"], wanted["grad_norm"], delta=bounds["grad_norm"] * wanted["grad_norm"]
            )
            for name, value in wanted["metrics"].items() if metrics else ():
                self.assertIn(name, row)
                if value is None or row[name] is None:
                    self.assertEqual(row[name], value, name)
                else:
                    self.assertAlmostEqual(row[name], value, delta=bounds["metrics"] * max(1, abs(value)), msg=name)

    def check_final(self, name, bounds):
        final = read_safetensors(unpacked(STEPS / name / "final", self.folder / "final") / ADAPTER)
        found = read_safetensors(self.folder / "out" / ADAPTER)
        self.assertEqual(sorted(found), sorted(final))
        for tensor, (_, shape, data) in final.items():
            wanted, got = floats(data), floats(found[tensor][2])
            self.assertEqual(found[tensor][1], shape)
            distance = math.sqrt(sum((a - b) ** 2 for a, b in zip(wanted, got)))
            self.assertLess(distance, bounds["final"] * math.sqrt(sum(a * a for a in wanted)), tensor)

    def test_losses_metrics_and_adapters_are_those_of_trl(self):
        names = sorted(path.name for path in STEPS.iterdir() if path.is_dir())
        self.assertGreaterEqual(len(names), 9)
        for name in names:
            with self.subTest(name):
                for folder in ("model", "initial", "out", "final"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                self.succeed("--config", self.golden(name))
                golden = json.loads((STEPS / name / "metrics.json").read_text())
                self.check_course(golden["steps"], self.steps(self.folder / "out"), golden["bounds"])
                self.check_final(name, golden["bounds"])

    def test_a_run_that_stopped_within_a_generation_goes_on_to_the_last_bit(self):
        """Eight steps of four a generation: one part ends after three, the next one after five."""
        config = self.golden("iterations", grpo__log_completions=True)
        self.succeed("--config", config)
        whole = shutil.move(self.folder / "out", self.folder / "whole")
        self.succeed("--config", config, "--max_steps", 3)
        for steps in (5, 8):
            self.succeed("--config", config, "--max_steps", steps, "--resume_from_checkpoint", "auto")
        self.assertEqual((self.folder / "out" / ADAPTER).read_bytes(), (whole / ADAPTER).read_bytes())
        timed = ("step_ms", "tokens_per_second", "memory_gib")
        rows = [
            [{k: v for k, v in row.items() if k not in timed and "time/" not in k} for row in self.steps(folder)]
            for folder in (whole, self.folder / "out")
        ]
        self.assertEqual(*rows)
        self.assertEqual(*(read_rows(f / "completions.jsonl") for f in (whole, self.folder / "out")))

    def test_a_damaged_generation_in_a_checkpoint_is_refused(self):
        config = self.golden("iterations")
        self.succeed("--config", config, "--max_steps", 3)
        saved = self.folder / "out" / "checkpoint-3" / "rollouts.json"
        good = json.loads(saved.read_text())
        for change in (
            lambda j: j["generation"].update(number=5),
            lambda j: j.update(generation=None),
            lambda j: j["generation"]["rows"].pop(),
        ):
            broken = json.loads(json.dumps(good))
            change(broken)
            saved.write_text(json.dumps(broken))
            result = run("--config", config, "--resume_from_checkpoint", self.folder / "out" / "checkpoint-3")
            self.check_words(result)
            self.assertIn("error[checkpoint.", result.err)

    def test_every_fault_of_a_file_of_rollouts_is_named_before_the_first_step(self):
        lines = [json.loads(line) for line in (STEPS / "dapo" / "rollouts.jsonl").read_text().splitlines()]

        def changed(change):
            rows = json.loads(json.dumps(lines))
            change(rows[1])
            return write_rows(self.folder / "rollouts.jsonl", rows)

        def first(row):
            return row["completions"][0]

        name = next(iter(lines[0]["rewards"]))
        faults = {
            "expected 4 completions": lambda row: row["completions"].pop(),
            "no list of token ids, or empty": lambda row: first(row).update(ids=[]),
            '"prompt_ids" is no list': lambda row: row.update(prompt_ids=[]),
            "no token id of a vocabulary": lambda row: first(row)["ids"].__setitem__(0, 10**6),
            "grpo.max_completion_length is 14": lambda row: first(row).update(ids=[5] * 15, logprobs=None),
            "model.max_seq_length is 64": lambda row: row.update(prompt_ids=[5] * 64),
            "neither true nor false": lambda row: first(row).update(truncated="no"),
            "one a token": lambda row: first(row).update(logprobs=[-1.0]),
            "no logarithm of a probability": lambda row: first(row).update(logprobs=[1.0] * len(first(row)["ids"])),
            "neither a number nor null": lambda row: row["rewards"][name].__setitem__(0, "good"),
            f"expected 4 numbers or nulls": lambda row: row["rewards"][name].pop(),
            f"it has no reward {name}": lambda row: row["rewards"].update({"other": row["rewards"].pop(name)}),
            'there is no "rewards"': lambda row: row.pop("rewards"),
        }
        for message, change in faults.items():
            with self.subTest(message):
                config = self.golden("dapo", grpo__replay_rollouts=str(changed(change)))
                self.fail_with("data.bad-rollouts", [message, "rollouts.jsonl:2"], "--config", config)
        self.fail_with(
            "data.bad-rollouts", "training.max_steps 500 takes", "--config", self.golden("dapo"), "--max_steps", 500
        )
        self.fail_with(
            "data.bad-rollouts", "nowhere", "--config", self.golden("dapo", grpo__replay_rollouts="nowhere.jsonl")
        )
        (self.folder / "no.jsonl").write_text("{\n")
        self.fail_with(
            "json.syntax",
            "no.jsonl:1",
            "--config",
            self.golden("dapo", grpo__replay_rollouts=str(self.folder / "no.jsonl")),
        )
        self.assertFalse((self.folder / "out" / "metrics.jsonl").exists())

    def test_options_that_contradict_are_refused_by_name(self):
        for changes, name in (
            ({"num_generations": 1}, "grpo.num_generations"),
            ({"num_generations": 5}, "no multiple of grpo.num_generations 5"),
            ({"temperature": 0}, "grpo.temperature"),
            ({"loss_type": "vespo", "sampler_correction": "sequence_mask"}, "vespo"),
            ({"sampler_correction": "token_truncate", "sampler_clip_max": None}, "grpo.sampler_clip_max"),
            ({"sampler_clip_min": 4.0, "sampler_correction": "token_mask"}, "grpo.sampler_clip_min"),
            ({"reward_weights": [1, 2, 3]}, "grpo.reward_weights"),
            ({"reward_weights": {"other": 1}}, "grpo.reward_weights"),
            ({"importance_sampling_level": "sequence_sum"}, "sequence_sum"),
            ({"los_type": "grpo"}, "loss_type"),
        ):
            with self.subTest(changes):
                config = self.golden("dapo", **{f"grpo__{key}": value for key, value in changes.items()})
                result = run("--config", config)
                self.check_words(result)
                self.assertEqual(result.code, 2, result)
                self.assertIn(name, result.err)
        for flags in (("--tp_size", 2), ("--zero_stage", 3), ("--packing", "true"), ("--lora_dropout", 0.1)):
            result = run("--config", self.golden("dapo"), *flags)
            self.assertEqual(result.code, 2, result)


class ReplayOnRanks(SharedModel):
    golden, check_course = Replay.golden, Replay.check_course

    def test_two_ranks_with_half_the_rows_take_the_same_steps(self):
        for name in ("dapo", "torn_groups", "entropy"):
            with self.subTest(name):
                for folder in ("model", "initial", "out"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                rows = json.loads((STEPS / name / "config.json").read_text())["training"]["per_device_train_batch_size"]
                config = self.golden(name, training__per_device_train_batch_size=rows // 2)
                self.run_ranks(2, ["--config", config])
                golden = json.loads((STEPS / name / "metrics.json").read_text())
                self.check_course(golden["steps"], self.steps(self.folder / "out"), golden["bounds"])


if __name__ == "__main__":
    main()
