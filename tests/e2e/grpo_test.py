"""Reinforcement learning: TRL's runs replayed, completions that the program samples itself, and what is learnt of them."""

import json
import os
import shutil
import signal
import subprocess

from launch_support import alive, until
from rank_support import SharedModel
from support import (
    GOLDEN,
    LEGAL_BASE,
    PROGRAM,
    SIGTERM_SAVED,
    SOURCE,
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
ADAPTER = "adapter_model.safetensors"


REWARDS = '''
import os, random, re, sys, time

def sentence(completions, **columns):
    """One whole sentence. A part of the reward for any end of one: whole ones are rare at first."""
    return [1.0 if re.fullmatch(r"[^.]*[.]", text) else 0.2 if "." in text else 0.0 for text in completions]

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

    def grpo(self, *extra, out="out", rewards="rewards.py:sentence", batch=16, base=LEGAL_BASE):
        given = {str(word) for word in extra}
        arguments = [
            "--objective", "grpo", "--max_seq_length", 64, "--per_device_train_batch_size", batch,
            "--gradient_accumulation_steps", 1, "--logging_steps", 1, "--learning_rate", 0.003,
            "--lr_scheduler_type", "constant", "--lora_alpha", 32,
            "--grpo.num_generations", 8, "--grpo.max_completion_length", 16, "--grpo.log_completions", "true",
            "--grpo.rewards", json.dumps([rewards]),
        ]  # fmt: skip
        return self.train_arguments(base, self.train_file, *arguments, *extra, out=out)

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
                *self.grpo("--max_steps", 30, *self.held_out(), out=name, rewards=f"rewards.py:{name}", batch=32),
                cwd=self.folder,
            )
            rewards[name] = [row["eval_reward"] for row in self.evaluations(name)]
            self.assertLess(max(row["kl_sampler_trainer"] for row in self.steps(self.folder / name)), 1e-9)
        self.assertEqual(len(rewards["sentence"]), 2)
        self.assertLess(rewards["sentence"][0], 0.3)
        self.assertGreater(rewards["sentence"][1], 0.8)
        self.assertLess(rewards["shuffled"][1], 0.5)
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

    def hybrid_base(self):
        """Random weights of a model most of whose layers have gated delta nets, and the example's tokenizer."""
        config = json.loads((GOLDEN / "families" / "qwen3_5_text" / "model" / "config.json").read_text())
        config |= {"vocab_size": 2048, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.1}
        (self.folder / "config.json").write_text(json.dumps(config))
        base = self.folder / "hybrid"
        self.succeed("init", "--model_config", self.folder / "config.json", "--seed", 3, "--out", base)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(LEGAL_BASE / name, base / name)
        return base

    def test_gated_delta_nets_sample_what_they_train_and_go_on(self):
        """Prompts of a page and more, whose states a group shares, and large steps: a stale state would show."""
        texts = [row["input"] for row in read_rows(SOURCE / "examples" / "legal" / "train.jsonl")]
        words = [" ".join(text.split()[:40]) for text in dict.fromkeys(texts) if len(text.split()) > 40]
        self.train_file = write_rows(self.folder / "long.jsonl", [{"prompt": text} for text in words[:2]])
        base = self.hybrid_base()
        options = (
            "--max_seq_length", 160, "--max_steps", 4, "--learning_rate", 0.1, "--save_steps", 2, "--grpo.beta", 0.05,
            "--grpo.num_iterations", 2,
        )  # fmt: skip
        whole = self.grpo(*options, out="whole", rewards="rewards.py:words", base=base)
        self.assertIn("gated delta nets", self.succeed(*whole, cwd=self.folder).err)
        rows = self.steps(self.folder / "whole")
        self.assertGreater(rows[-1]["kl"], 1e-2, rows)
        sampled = [row["kl_sampler_trainer"] for row in rows if "kl_sampler_trainer" in row]
        self.assertEqual(len(sampled), 2)
        self.assertLess(max(sampled), 1e-9)
        three = self.grpo(*options, "--grpo.max_rows_in_flight", 3, out="three", rewards="rewards.py:words", base=base)
        self.succeed(*three, cwd=self.folder)
        self.assertEqual(self.ids("three"), self.ids("whole"))
        part = self.grpo(
            *options, "--stop_at_step", 3, "--resume_from_checkpoint", "auto", out="part", rewards="rewards.py:words",
            base=base,
        )  # fmt: skip
        self.succeed(*part, cwd=self.folder)
        self.succeed(
            *self.grpo(*options, "--resume_from_checkpoint", "auto", out="part", rewards="rewards.py:words", base=base),
            cwd=self.folder,
        )
        self.assertEqual(*((self.folder / out / ADAPTER).read_bytes() for out in ("part", "whole")))
        self.assertEqual(self.ids("part"), self.ids("whole"))

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
            ({"prompt": "a", "images": ["a.png"]}, "image.text-model", "reinforcement learning"),
            ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "image.text-model", "prompts.jsonl:2"),
            ({"messages": [{"role": "assistant", "content": "a"}]}, "data.prompt-shape", "assistant"),
        ):
            with self.subTest(str(row)[:30]):
                write_rows(self.train_file, [self.prompts[0], row] + self.prompts[1:9])
                self.fail_with(error, part, *self.grpo("--max_steps", 1), cwd=self.folder)
        self.succeed(*self.grpo("--max_steps", 1, "--skip_invalid", "true"), cwd=self.folder)


if __name__ == "__main__":
    main()
