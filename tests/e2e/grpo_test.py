"""Reinforcement learning: TRL's runs replayed, completions that the program samples itself, and what is learnt of them."""

import json
import lzma
import math
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from launch_support import alive, until
from rank_support import SharedModel
from support import (
    GOLDEN,
    LEGAL_BASE,
    OK,
    PROGRAM,
    SIGTERM_SAVED,
    SOURCE,
    EndToEnd,
    environment,
    error_ids,
    float_bytes,
    floats,
    main,
    read_rows,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
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


REWARDS = '''
import os, random, re, sys, time

def sentence(completions, **columns):
    """One whole sentence."""
    return [1.0 if re.fullmatch(r"[^.]*[.]", text) else 0.0 for text in completions]

def words(completions, **columns):
    return [float(len(text.split())) for text in completions]

def shuffled(completions, trainer_state, **columns):
    scores = sentence(completions)
    random.Random(trainer_state.global_step).shuffle(scores)
    return scores

def raises(completions, **columns):
    raise ValueError("no such answer")

def hangs(completions, **columns):
    open("helper.pid", "w").write(str(os.getpid()))
    while True:
        pass

def too_few(completions, **columns):
    return [1.0]

def dies(completions, **columns):
    os.kill(os.getpid(), 11)
'''


class Sampling(SharedModel):
    """Completions of the example's model."""

    def setUp(self):
        super().setUp()
        (self.folder / "rewards.py").write_text(REWARDS)
        beginnings = {}
        for row in read_rows(SOURCE / "examples" / "legal" / "train.jsonl"):
            for sentence in row["input"].split(". "):
                words = sentence.split()
                if len(words) >= 6:
                    beginnings[" ".join(words[:4])] = None
        self.prompts = [{"prompt": text} for text in beginnings]
        self.train_file = write_rows(self.folder / "prompts.jsonl", self.prompts[:256])

    def grpo(self, *extra, out="out", rewards="rewards.py:sentence", batch=16):
        given = {str(word) for word in extra}
        arguments = [
            "--objective", "grpo", "--max_seq_length", 64, "--per_device_train_batch_size", batch,
            "--gradient_accumulation_steps", 1, "--logging_steps", 1, "--learning_rate", 0.003,
            "--lr_scheduler_type", "constant", "--lora_alpha", 32,
            "--grpo.num_generations", 8, "--grpo.max_completion_length", 16, "--grpo.log_completions", "true",
            "--grpo.rewards", json.dumps([rewards]),
        ]  # fmt: skip
        return self.train_arguments(LEGAL_BASE, self.train_file, *arguments, *extra, out=out)

    def share_of_sentences(self, adapter):
        """On prompts that no run saw."""
        held_out = write_rows(self.folder / "held_out.jsonl", self.prompts[256:320])
        result = self.succeed(
            "generate", "--model.path", LEGAL_BASE, "--load_in_4bit", "false", "--dtype", "float32", "--device", "cpu",
            *(["--adapter_name_or_path", adapter] if adapter else []), "--file", held_out, "--max_new_tokens", 16,
            "--temperature", 1, "--seed", 7, "--json",
        )  # fmt: skip
        texts = [json.loads(line)["text"] for line in result.out.splitlines()]
        self.assertEqual(len(texts), 64)
        return sum(text.count(".") == 1 and text.endswith(".") for text in texts) / len(texts)

    def held_out(self):
        """Arguments of an evaluation of prompts that no run saw, before the first step and after the last one."""
        rows = write_rows(self.folder / "held_out.jsonl", self.prompts[256:320])
        return ["--eval_file", rows, "--eval_on_start", "true", "--grpo.num_generations_eval", 1]

    def evaluations(self, out):
        return [row for row in read_rows(self.folder / out / "metrics.jsonl") if "eval_reward" in row]

    def test_a_format_is_learnt_from_rewards_and_not_from_shuffled_ones(self):
        rewards = {}
        for name in ("sentence", "shuffled"):
            self.succeed(
                *self.grpo("--max_steps", 35, *self.held_out(), out=name, rewards=f"rewards.py:{name}", batch=32),
                cwd=self.folder,
            )
            rewards[name] = [row["eval_reward"] for row in self.evaluations(name)]
            self.assertLess(max(row["kl_sampler_trainer"] for row in self.steps(self.folder / name)), 1e-9)
        self.assertEqual(len(rewards["sentence"]), 2)
        self.assertLess(rewards["sentence"][0], 0.2)
        self.assertGreater(rewards["sentence"][1], 0.8)
        self.assertLess(rewards["shuffled"][1], 0.4)
        self.assertGreater(self.share_of_sentences(self.folder / "sentence"), 0.8)

    def test_evaluations_of_held_out_prompts_choose_the_best_and_do_not_depend_on_ranks(self):
        sets = {}
        for name, part in (("first", slice(256, 261)), ("second", slice(261, 264))):
            sets[name] = str(write_rows(self.folder / f"{name}.jsonl", self.prompts[part]))
        options = (
            "--max_steps", 4, "--eval_steps", 2, "--eval_files", json.dumps(sets), "--load_best_model_at_end", "true",
            "--grpo.num_generations_eval", 3, "--per_device_train_batch_size",
        )  # fmt: skip
        words = str(self.folder / "rewards.py") + ":words"
        self.succeed(*self.grpo(*options, 16, out="one", rewards=words))
        rows = self.evaluations("one")
        self.assertEqual([row["step"] for row in rows], [2, 4])
        completions = read_rows(self.folder / "one" / "eval_completions.jsonl")
        self.assertEqual(len(completions), 2 * 8 * 3)
        for row in rows:
            for key, chosen in (("eval_reward", {"first", "second"}), ("eval_first_reward", {"first"})):
                scores = [c["words"] for c in completions if c["step"] == row["step"] and c["set"] in chosen]
                self.assertAlmostEqual(row[key], sum(scores) / len(scores))
            self.assertNotIn("eval_loss", row)
            self.assertGreater(row["eval_tokens"], 24)
        summary = read_rows(self.folder / "one" / "metrics.jsonl")[-1]
        self.assertEqual(summary["best_eval_reward"], max(row["eval_reward"] for row in rows))
        self.run_ranks(2, self.grpo(*options, 8, out="two", rewards=words))
        for row, other in zip(rows, self.evaluations("two"), strict=True):
            self.assertEqual(row["eval_reward"], other["eval_reward"])
            self.assertEqual(row["eval_second_reward"], other["eval_second_reward"])

    def test_val_size_takes_prompts_from_those_of_training(self):
        write_rows(self.train_file, self.prompts[:12])
        options = ("--max_steps", 5, "--grpo.num_generations_eval", 1, "--grpo.log_completions", "true")
        self.succeed(*self.grpo(*options, "--val_size", 4), cwd=self.folder)
        held, trained = (
            {row["prompt"] for row in read_rows(self.folder / "out" / name)}
            for name in ("eval_completions.jsonl", "completions.jsonl")
        )
        self.assertEqual((len(held), len(trained)), (4, 8))
        self.assertFalse(held & trained)
        self.fail_with("option.no-evaluation", "num_generations_eval", *self.grpo(*options))

    def ids(self, out):
        return [(row["prompt"], row["completion"]) for row in read_rows(self.folder / out / "completions.jsonl")]

    def test_completions_do_not_depend_on_rows_in_flight_or_ranks(self):
        self.succeed(*self.grpo("--max_steps", 2, out="all"), cwd=self.folder)
        self.succeed(*self.grpo("--max_steps", 2, "--grpo.max_rows_in_flight", 3, out="three"), cwd=self.folder)
        self.assertEqual(self.ids("three"), self.ids("all"))
        self.assertGreater(len(set(self.ids("all"))), 8)
        self.run_ranks(
            2, self.grpo("--max_steps", 2, out="ranks", batch=8, rewards=str(self.folder / "rewards.py") + ":sentence")
        )
        self.assertEqual(self.ids("ranks"), self.ids("all"))
        for row, other in zip(self.steps(self.folder / "ranks"), self.steps(self.folder / "all")):
            self.assertEqual(row["reward"], other["reward"])
            self.assertAlmostEqual(row["grad_norm"], other["grad_norm"], delta=1e-4)

    def test_the_sampler_is_the_trained_model_at_any_temperature(self):
        """With an adapter of which one module is three times as strong: were it left out, the divergence would show."""
        self.succeed(*self.grpo("--max_steps", 3, "--learning_rate", 0.01, out="first"), cwd=self.folder)
        adapter = self.folder / "first"
        tensors = read_safetensors(adapter / ADAPTER)
        scaled = [name for name in tensors if "layers.2.mlp.down_proj" in name and "lora_B" in name]
        self.assertEqual(len(scaled), 1)
        dtype, shape, data = tensors[scaled[0]]
        strong = shutil.copytree(adapter, self.folder / "strong")
        write_safetensors(
            strong / ADAPTER, tensors | {scaled[0]: (dtype, shape, float_bytes([3 * x for x in floats(data)]))}
        )
        for temperature in (0.7, 1, 1.3):
            out = f"t{temperature}"
            self.succeed(
                *self.grpo(
                    "--max_steps", 2, "--adapter_name_or_path", strong, "--grpo.temperature", temperature, out=out
                ),
                cwd=self.folder,
            )
            rows = self.steps(self.folder / out)
            self.assertTrue(all(row["kl_sampler_trainer"] < 1e-9 for row in rows), rows)

    def test_keys_of_an_older_policy_are_not_reused(self):
        """The same prompts in every step, and large steps: stale keys would show as a divergence of sampler and trainer."""
        self.train_file = write_rows(self.folder / "two.jsonl", self.prompts[:2])
        self.succeed(*self.grpo("--max_steps", 4, "--learning_rate", 0.02), cwd=self.folder)
        rows = self.steps(self.folder / "out")
        self.assertGreater(max(abs(row["entropy"] - rows[0]["entropy"]) for row in rows), 1e-3)
        self.assertTrue(all(row["kl_sampler_trainer"] < 1e-9 for row in rows), rows)

    def test_a_killed_run_goes_on_with_the_same_bytes(self):
        options = ("--max_steps", 6, "--save_steps", 2, "--grpo.num_iterations", 2, "--resume_from_checkpoint", "auto")
        self.succeed(*self.grpo(*options, out="whole"), cwd=self.folder)
        process = subprocess.Popen(
            [PROGRAM, *map(str, self.grpo(*options))], cwd=self.folder, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(lambda: (self.folder / "out" / "checkpoint-2").exists() or process.poll() is not None)
        process.kill()
        process.wait()
        self.succeed(*self.grpo(*options), cwd=self.folder)
        self.assertEqual(*((self.folder / out / ADAPTER).read_bytes() for out in ("out", "whole")))
        self.assertEqual(self.ids("out"), self.ids("whole"))

    def test_a_stop_within_rewards_drops_the_generation_and_leaves_no_process(self):
        process = subprocess.Popen(
            [PROGRAM, *map(str, self.grpo(rewards="rewards.py:hangs"))], cwd=self.folder, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        helper = self.folder / "helper.pid"
        until(lambda: (helper.exists() and helper.read_text()) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, SIGTERM_SAVED, err)
        until(lambda: not alive(int(helper.read_text())))
        self.assertFalse((self.folder / "out" / "completions.jsonl").exists())

    def test_what_goes_wrong_with_rewards_ends_the_run_with_its_reason(self):
        for rewards, error, part in (
            ("rewards.py:raises", "reward.failed", "no such answer"),
            ({"py": "rewards.py:hangs", "timeout": 1}, "reward.failed", "hangs"),
            ("rewards.py:too_few", "reward.failed", "too_few"),
            ("rewards.py:dies", "reward.failed", "signal 11"),
            ("rewards.py:nowhere", "reward.not-loaded", "nowhere"),
            ({"regx": "a"}, "reward.bad-entry", "rewards[0]"),
            ({"numeric": {"answer": "answer"}}, "reward.missing-column", "answer"),
        ):
            with self.subTest(str(rewards)):
                result = run(*self.grpo("--max_steps", 1, rewards=rewards), cwd=self.folder)
                self.assertEqual(result.code, error_ids()[error], result)
                self.assertIn(f"error[{error}]: ", result.err)
                self.assertIn(part, result.err)
                self.assertFalse((self.folder / "out" / ADAPTER).exists())

    def test_bench_measures_the_parts_of_a_step(self):
        arguments = self.grpo("--grpo.beta", 0.1)
        arguments[arguments.index("--max_steps") :][:2] = []
        result = self.succeed("bench", "grpo", *arguments, "--steps", 2, "--warmup", 1, "--json", cwd=self.folder)
        measured = json.loads(result.out)
        parts = [measured[name] for name in ("rollout_s", "reward_s", "logps_s", "train_s")]
        self.assertTrue(all(part > 0 for part in parts), measured)
        self.assertLess(max(parts), measured["step_s"])
        self.assertAlmostEqual(measured["samples_per_second"] * measured["step_s"], 16, places=3)
        self.assertLess(measured["rows_in_flight_mean"], 16.5)
        self.assertGreater(measured["rollout_ceiling_tokens_per_second"], 0)
        self.fail_with("option.conflict", "samples completions", "bench", "grpo", "--model.path", LEGAL_BASE)
        step = ("bench", "step", "--model.path", LEGAL_BASE, "--data.train_file", self.train_file)
        self.assertIn("only bench grpo takes options", run(*step).err)

    def test_rows_that_are_no_prompts_are_named(self):
        for row, error, part in (
            ({"text": "a"}, "data.no-prompt", "prompts.jsonl:2"),
            ({"prompt": "word " * 80}, "data.row-too-long", "grpo.max_completion_length"),
            ({"prompt": 5}, "data.prompt-shape", "prompts.jsonl:2"),
            ({"messages": [{"role": "assistant", "content": "a"}]}, "data.prompt-shape", "assistant"),
        ):
            with self.subTest(str(row)[:30]):
                write_rows(self.train_file, [self.prompts[0], row] + self.prompts[1:9])
                self.fail_with(error, part, *self.grpo("--max_steps", 1), cwd=self.folder)
        self.succeed(*self.grpo("--max_steps", 1, "--skip_invalid", "true"), cwd=self.folder)


if __name__ == "__main__":
    main()
