"""The program on GPUs: going on from checkpoints, long runs and long rows on one; several ranks on two and four.

Skipped where there is none, or too few.
"""

import json
import math
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import resume_test
from rank_support import free_port
from support import (
    EndToEnd,
    LLAMA,
    NF4_MODEL,
    OK,
    PROGRAM,
    RUNTIME,
    SIGTERM_SAVED,
    TIMEOUT_S,
    USAGE,
    environment,
    main,
    model,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
)

# Six layers: with +offload four of them leave the device.
BASE = LLAMA | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
ON_HOST = json.dumps({"model.layers": "cpu", "model.embed_tokens": "cpu", "lm_head": 0})
ON_DISK = json.dumps({"": 0, "model.layers.0-2": "disk", "model.layers.4": "cpu", "model.layers.5": "disk"})
POISON = 5  # a token that no row has but the one that is to spoil a step
ADAPTER = "adapter_model.safetensors"


def gpus(wanted):
    """Whether the program finds so many."""
    if not PROGRAM:
        return False
    with tempfile.TemporaryDirectory(prefix="unsloth-e2e-") as folder:
        rows = write_rows(pathlib.Path(folder) / "rows.jsonl", [{"input_ids": [1, 2, 3]}])
        words = ["--model.path", NF4_MODEL, "--data.train_file", rows, "--training.output_dir", folder]
        return run(*words, "--device", f"cuda:{wanted - 1}", "--dtype", "bfloat16", "--max_steps", "0").code == OK


def ids(row, length):
    return [POISON + 1 + (row * 31 + t * t * 7 + 3 * t) % 240 for t in range(length)]


class OnGpu(EndToEnd):
    def arguments(self, out, *extra, base=None, rows=None):
        given = {str(word) for word in extra}
        words = ["--device", "cuda", "--shuffle", "false"]
        if "--training.deterministic" not in given:
            words += ["--training.deterministic", "true"]
        if "--dtype" not in given:
            words += ["--dtype", "bfloat16"]
        if "--gradient_accumulation_steps" not in given:
            words += ["--gradient_accumulation_steps", "1"]
        if "--finetuning_type" not in given:
            words += ["--load_in_4bit", "true"]
        return self.train_arguments(base or model(BASE, dtype="bfloat16"), rows or self.data, *words, *extra, out=out)

    def write(self, lengths, name="rows.jsonl"):
        return write_rows(self.folder / name, [{"input_ids": ids(row, n)} for row, n in enumerate(lengths)])

    def setUp(self):
        super().setUp()
        self.data = self.write([9 + row * 5 % 40 for row in range(64)])

    def launch(self, ranks, *arguments):
        done = subprocess.run(
            [PROGRAM, "launch", "--nproc_per_node", str(ranks), *map(str, arguments)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stderr

    def start(self, *arguments):
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        self.addCleanup(lambda: (watchdog.cancel(), process.kill(), process.wait(), process.stderr.close()))
        return process

    def poisoned(self, value):
        """The model with one row of embeddings overwritten."""
        folder = self.copied_model(model(BASE, dtype="bfloat16"))
        file = folder / "model.safetensors"
        tensors = read_safetensors(file)
        kind, shape, data = tensors["model.embed_tokens.weight"]
        self.assertEqual(kind, "BF16")
        bits = struct.pack("<f", value)[2:] * shape[1]  # bfloat16: the upper half of a float's bits
        at = POISON * len(bits)
        tensors["model.embed_tokens.weight"] = (kind, shape, data[:at] + bits + data[at + len(bits) :])
        write_safetensors(file, tensors)
        return folder

    def poison_row(self, at, count=16):
        rows = [{"input_ids": ids(row, 12)} for row in range(count)]
        rows[at]["input_ids"][3] = POISON
        return write_rows(self.folder / "poisoned.jsonl", rows)


class Resuming(OnGpu):
    COMMON = resume_test.Resuming.COMMON
    figures = resume_test.Resuming.figures
    compare = resume_test.Resuming.compare

    def arguments(self, out, *extra, **given):
        return super().arguments(out, *self.COMMON, *extra, **given)

    def setUp(self):
        super().setUp()
        self.data = self.write([9 + row * 5 % 11 for row in range(14)])

    def test_in_the_middle_of_an_epoch(self):
        self.compare(at=5)

    def test_with_recorded_passes(self):
        self.data = self.write([16] * 14)
        self.compare("--cuda_graphs", "true", at=5)

    def test_with_offloaded_activations(self):
        self.compare("--gradient_checkpointing", "mlp+offload", at=4)

    def test_with_layers_in_host_memory(self):
        self.compare("--device_map", ON_HOST, at=4)

    def test_with_packing(self):
        self.compare("--packing", "true", "--max_seq_length", "32", at=3)

    def test_half_precision_with_its_loss_scale(self):
        self.compare("--dtype", "float16", at=4)

    def test_full_training(self):
        self.compare("--finetuning_type", "full", at=3, files=("model.safetensors",))

    def check_fp8(self, compute):
        if self.succeed_or_refuse("--compute_dtype", compute) == OK:
            self.compare("--compute_dtype", compute, at=4)

    def test_fp8(self):
        self.check_fp8("fp8_both")

    def test_fp8_in_the_backward_pass(self):
        self.check_fp8("fp8_backward")

    def test_int8(self):
        self.check_fp8("int8")

    def succeed_or_refuse(self, *extra):
        """Cards that do not multiply such matrices refuse when they plan."""
        result = run(*self.arguments("planned", *extra, "--max_steps", "0"))
        if result.code != OK:
            self.assertIn("compute capability 9.0", result.err)
        return result.code


class Kernels(OnGpu):
    def train(self, out, *extra):
        """The table that the run leaves, and that of its second checkpoint; None: none."""
        result = run(*self.arguments(out, "--max_steps", "2", "--save_steps", "1", *extra))
        self.assertEqual(result.code, OK, result.err)
        self.assertRegex(result.err, r"kernels +(all|\d+ of) 10 ")
        files = [self.folder / out / "kernels.json", self.folder / out / "checkpoint-2" / "kernels.json"]
        left, saved = [json.loads(file.read_text()) if file.exists() else None for file in files]
        self.assertEqual(left, saved)
        return left

    def test_a_run_that_goes_on_keeps_its_table(self):
        table = self.train("first")
        if table is None:
            self.skipTest("this card was not measured")
        self.assertIsNone(self.train("library", "--hardware.kernels", "library"))
        table["kernels"]["choices"] = table["kernels"]["choices"][:3]
        given = self.folder / "given.json"
        given.write_text(json.dumps(table))
        self.assertEqual(self.train("given", "--hardware.kernels", given), table)
        went_on = ["--resume_from_checkpoint", self.folder / "given" / "checkpoint-1"]
        self.assertEqual(self.train("again", *went_on), table)
        self.assertIsNone(self.train("otherwise", *went_on, "--hardware.kernels", "library"))
        table["kernels"]["card"] = "NVIDIA Test"
        given.write_text(json.dumps(table))
        result = run(*self.arguments("refused", "--hardware.kernels", given))
        self.assertEqual(result.code, USAGE, result.err)
        self.assertIn("NVIDIA Test", result.err)


class Offload(OnGpu):
    """Layers that do not lie on the GPU: the same adapters, losses and evaluations as with all of them there."""

    def compare(self, name, *extra, base=None):
        self.data = self.write([16] * 64)  # one shape: passes are recorded
        words = ["--max_steps", "6", "--val_size", "8", "--eval_steps", "2", "--lora_dropout", "0.1", *extra]

        def result(out, *more):
            run_ = self.succeed("train", *self.arguments(out, *words, *more, base=base))
            folder = self.folder / out
            figures = [[s["loss"], s["grad_norm"]] for s in self.steps(folder)]
            evaluations = [row["eval_loss"] for row in self.evaluations(folder)]
            return run_, (folder / ADAPTER).read_bytes(), figures, evaluations

        _, *resident = result(f"{name}-resident")
        for number, device_map in enumerate((ON_HOST, ON_DISK)):
            offload = ("--device_map", device_map, "--offload_folder", self.folder / "weights")
            log, *moved = result(f"{name}-moved{number}", *offload)
            self.assertIn("copied to the device ahead of use", log.err)
            self.assertEqual(moved, resident, device_map)

    def test_quantised_while_loading(self):
        self.compare("accumulated", "--gradient_accumulation_steps", "4")

    def test_a_4bit_base(self):
        base = model(BASE, dtype="bfloat16", quantize="nf4")
        self.compare("offloaded", "--gradient_checkpointing", "full+offload", base=base)
        self.compare("issued", "--gradient_checkpointing", "mlp", "--cuda_graphs", "false", base=base)

    def test_a_16bit_base(self):
        in_16bit = ("--finetuning_type", "lora", "--load_in_4bit", "false")
        self.compare("plain", "--gradient_checkpointing", "attention", *in_16bit)

    def test_scores(self):
        base = model(BASE, dtype="bfloat16", quantize="nf4")
        words = ["score", "--model.path", base, "--data.train_file", self.data, "--device", "cuda"]
        words += ["--hardware.kernels", "library"]  # which read no tiles: layers on the disk lie as rows
        self.succeed(*words, "--out", self.folder / "resident")
        for device_map in (ON_HOST, ON_DISK):
            self.succeed(*words, "--out", self.folder / "moved", "--device_map", device_map)
            self.assertEqual((self.folder / "moved").read_bytes(), (self.folder / "resident").read_bytes())

    def test_runs_that_were_started_apart_have_one_copy(self):
        base = model(BASE, dtype="bfloat16", quantize="nf4")
        on_host = ("--device_map", ON_HOST)

        def six_steps(out, *extra):
            err = self.succeed("train", *self.arguments(out, "--max_steps", "6", *extra, base=base)).err
            return err, (self.folder / out / ADAPTER).read_bytes()

        _, alone = six_steps("alone")
        first = self.start("train", *self.arguments("first", "--max_steps", "1000000", *on_host, base=base))
        said = "host memory of the base, once for all processes with it: "
        self.assertIn("0.0 MiB found", next(line for line in first.stderr if said in line))
        err, second = six_steps("second", *on_host)
        self.assertIn(said + "0.0 MiB loaded", err)
        self.assertIn("of it are there", err, "the plan does not count it")
        self.assertNotIn("could have in common is this one's own", err)
        first.kill()
        first.wait()
        err, third = six_steps("third", *on_host)
        self.assertIn("0.0 MiB found", err, "nothing stays of a run that was killed")
        self.assertEqual((second, third), (alone, alone))


class LongRuns(OnGpu):
    def resident(self, process):
        """MiB of anonymous memory (pages of mapped libraries come and go as they are used); None once it has ended."""
        try:
            text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return None
        for line in text.splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return None

    def test_a_thousand_steps_in_steady_memory(self):
        """More shapes than are recorded, offloading, evaluations and checkpoints."""
        self.data = self.write([16] * 200 + [8 + row * 13 % 120 for row in range(600)])
        process = self.start(
            *self.arguments(
                "long",
                "--max_steps",
                "1000",
                "--per_device_train_batch_size",
                "1",
                "--shuffle",
                "true",
                "--gradient_checkpointing",
                "attention+offload",
                "--val_size",
                "16",
                "--eval_steps",
                "100",
                "--save_steps",
                "50",
                "--save_total_limit",
                "2",
                "--logging_steps",
                "1",
            )
        )
        errors = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        metrics, seen = self.folder / "long" / "metrics.jsonl", []
        while process.poll() is None:
            step = metrics.read_text().count('"loss"') if metrics.exists() else 0
            resident = self.resident(process)
            if resident is not None:
                seen.append((step, resident))
            time.sleep(0.05)
        reader.join()
        self.assertEqual(process.returncode, OK, errors)
        steps = self.steps(self.folder / "long")
        self.assertEqual(len(steps), 1000)
        self.assertTrue(all(math.isfinite(s["loss"]) for s in steps))
        early = [r for step, r in seen if 150 <= step < 400]
        late = [r for step, r in seen if step >= 600]
        self.assertTrue(early and late, "too quick to be sampled")
        print(f"host MiB, steps 150 to 400: {max(early):.0f}, from 600: {max(late):.0f}", file=sys.stderr)
        self.assertLess(max(late), max(early) + 24)
        # The peak of the device's allocator: the plan, from the first shapes on.
        self.assertEqual({s["memory_gib"] for s in steps[100:]}, {steps[99]["memory_gib"]})

    def test_a_step_of_32768_tokens(self):
        base = model(BASE | {"max_position_embeddings": 32768}, dtype="bfloat16")
        whole = write_rows(self.folder / "whole.jsonl", [{"input_ids": ids(0, 32768)}])
        pieces = write_rows(self.folder / "pieces.jsonl", [{"input_ids": ids(row, 2048)} for row in range(16)])
        for rows, batch in ((whole, 1), (pieces, 16)):

            def losses(*extra, rows=rows, batch=batch):
                out = f"out{batch}{''.join(extra)}"
                words = ["--max_seq_length", "32768", "--max_steps", "2", "--learning_rate", "0.001"]
                words += ["--per_device_train_batch_size", str(batch), *extra]
                self.succeed(*self.arguments(out, *words, base=base, rows=rows))
                steps = self.steps(self.folder / out)
                self.assertEqual([s["tokens"] for s in steps], [32768, 32768])
                return [(s["loss"], s["grad_norm"]) for s in steps]

            with self.subTest(batch=batch):
                kept = losses("--gradient_checkpointing", "none")
                self.assertEqual(losses("--gradient_checkpointing", "full+offload"), kept)
                for (loss, norm), (exact, exact_norm) in zip(kept, losses("--dtype", "float32")):
                    self.assertAlmostEqual(loss, exact, delta=0.01 * exact)
                    self.assertAlmostEqual(norm, exact_norm, delta=0.1 * exact_norm)

    def test_the_gpus_figures_are_told(self):
        """The driver's, to programs and to Prometheus."""
        port = str(free_port())
        words = ["--max_steps", "1000000", "--progress", "json"]
        endpoint = (pathlib.Path(PROGRAM).parent / "libunsloth_prometheus.so").exists()
        if endpoint:
            words += ["--report_to", "prometheus", "--metrics_port", port]
        process = subprocess.Popen(
            [PROGRAM, "train", *map(str, self.arguments("out", *words))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        try:
            row = next(row for row in map(json.loads, process.stdout) if row.get("step") == 50)
            if endpoint:
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        finally:
            process.terminate()
            process.stdout.read()
            self.assertEqual(process.wait(TIMEOUT_S), SIGTERM_SAVED)
            process.stdout.close()
        self.assertTrue(0 <= row["gpu_utilization"] <= 1, row)
        self.assertGreater(row["gpu_memory_gib"], 0)
        if not endpoint:
            return
        figures = dict(re.findall(r"(?m)^unsloth_train_gpu_(\S+) (\S+)$", text))
        used, total = float(figures["memory_used_bytes"]), float(figures["memory_total_bytes"])
        self.assertTrue(0 < used <= total, figures)
        self.assertTrue(0 <= float(figures["utilization_ratio"]) <= 1, figures)
        self.assertTrue(10 < float(figures["power_watts"]) < 2000, figures)
        self.assertTrue(10 < float(figures["temperature_celsius"]) < 110, figures)
        for reason in ("power_cap", "heat", "power_brake"):
            self.assertIn(figures[f'throttled{{reason="{reason}"}}'], ("0", "1"))

    def test_a_run_takes_the_table_that_tune_wrote(self):
        table = self.folder / "kernels.json"
        words = ["--model.path", model(BASE, dtype="bfloat16"), "--batch", "2", "--seq", "64", "--steps", "1"]
        self.succeed("tune", *words, "--seconds", "1", "--out", table)
        versions = json.loads(table.read_text())["kernels"]["versions"]
        self.assertEqual(list(versions), ["driver", "cublaslt", "cudnn", "own"])
        self.assertRegex(versions["driver"], r"^\d{3}\.\d+")
        self.succeed(*self.arguments("out", "--max_steps", "1", "--hardware.kernels", table))

    def test_regrouped_passes_train_on_the_same_rows(self):
        words = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "8", "--max_steps", "3"]
        words += ["--dtype", "float32", "--learning_rate", "0.001", "--training.deterministic", "false"]
        self.succeed(*self.arguments("given", *words, "--micro_batch", "as_given"))
        log = self.succeed(*self.arguments("auto", *words)).err
        rows, passes = map(int, re.search(r"passes +of (\d+) rows, (\d+) a step", log).groups())
        self.assertGreater(rows, 2)
        self.assertEqual(passes, -(-16 // rows))
        for given, regrouped in zip(self.steps(self.folder / "given"), self.steps(self.folder / "auto")):
            self.assertEqual(regrouped["tokens"], given["tokens"])
            self.assertAlmostEqual(regrouped["loss"], given["loss"], delta=1e-4 * given["loss"])
            self.assertAlmostEqual(regrouped["grad_norm"], given["grad_norm"], delta=1e-3 * given["grad_norm"])

    def test_a_run_ends_with_what_the_allocator_took(self):
        told = []
        for steps in ("2", "60"):
            log = self.succeed(*self.arguments(f"out{steps}", "--max_steps", steps, "--allocator", "low_memory")).err
            line = re.search(r"memory +allocated .*: ([\d.]+) % of the plan's; fragmentation ([\d.]+) %", log)
            told.append((line.group(), *map(float, line.groups())))
        self.assertEqual(told[0][1], told[1][1], told)  # the peak, after 60 steps as after 2
        self.assertLessEqual(told[0][1], 100.0)
        self.assertLessEqual(told[1][2], 50.0)  # of 20 MiB of a small model

    def test_inputs_wait_in_8_bits(self):
        words = ["--gradient_checkpointing", "full+offload", "--max_steps", "2"]
        self.succeed(*self.arguments("same", *words, "--keep_inputs_in", "same"))
        self.succeed(*self.arguments("codes", *words, "--keep_inputs_in", "fp8"))
        same, codes = self.steps(self.folder / "same"), self.steps(self.folder / "codes")
        self.assertEqual(codes[0]["loss"], same[0]["loss"])
        self.assertNotEqual(codes[0]["grad_norm"], same[0]["grad_norm"])
        self.assertAlmostEqual(codes[0]["grad_norm"], same[0]["grad_norm"], delta=0.05 * same[0]["grad_norm"])

    def test_a_signal_during_an_evaluation(self):
        """It ends the evaluation, and the run with its result: there are 30 s until SIGKILL."""
        held_out = write_rows(self.folder / "held_out.jsonl", [{"input_ids": ids(row, 40)} for row in range(40_000)])
        process = self.start(
            *self.arguments("out", "--eval_file", held_out, "--eval_steps", "2", "--max_steps", "1000000")
        )
        for line in process.stderr:
            if "step 2/" in line:
                break
        time.sleep(0.2)  # the evaluation has begun
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        self.assertEqual(process.wait(), SIGTERM_SAVED, rest)
        took = time.monotonic() - began
        self.assertEqual(self.evaluations(self.folder / "out"), [], "the evaluation was not interrupted")
        self.assertLess(took, 15)
        self.assertTrue((self.folder / "out" / ADAPTER).exists())
        state = json.loads((self.folder / "out" / "trainer_state.json").read_text())
        self.assertEqual(state["global_step"], 2)


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoRanks(OnGpu):
    RANKS = 2

    def check_as_alone(self, tolerance, *extra):
        """RANKS ranks with a row each against one process with as many rows."""
        words = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch", *extra]
        self.succeed(*self.arguments("alone", *words, "--per_device_train_batch_size", str(self.RANKS)))
        code, err = self.launch(self.RANKS, *self.arguments("together", *words, "--per_device_train_batch_size", "1"))
        self.assertEqual(code, OK, err)
        alone, together = (self.steps(self.folder / out) for out in ("alone", "together"))
        self.assertEqual(len(together), 6)
        for got, expected in zip(together, alone):
            self.assertEqual((got["tokens"], got["trained_tokens"]), (expected["tokens"], expected["trained_tokens"]))
            self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
            self.assertAlmostEqual(
                got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
            )
        return err

    def test_adapters(self):
        self.check_as_alone(1e-4, "--dtype", "float32")

    def check_split(self, kind, dtype, tolerance):
        """Two micro-batches a step, so that sums come back to what left before."""
        words = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch", "--dtype", dtype, *kind]
        words += ["--gradient_accumulation_steps", "2"]
        self.succeed(*self.arguments("alone", *words, "--per_device_train_batch_size", str(self.RANKS)))
        alone = self.steps(self.folder / "alone")
        on_host = ["--offload_optimizer", "cpu"]
        self.succeed(*self.arguments("host", *words, *on_host, "--per_device_train_batch_size", str(self.RANKS)))
        runs = {"one process on the host": self.folder / "host"}
        for number, form in enumerate(
            (["--zero_stage", "2"], ["--zero_stage", "3"], ["--zero_stage", "3", *on_host], on_host)
        ):
            out = f"form{number}"
            code, err = self.launch(
                self.RANKS,
                *self.arguments(out, *words, *form, "--per_device_train_batch_size", "1", "--save_steps", "3"),
            )
            self.assertEqual(code, OK, f"{form}: {err}")
            runs[" ".join(form)] = self.folder / out
        for name, folder in runs.items():
            for got, expected in zip(self.steps(folder), alone, strict=True):
                self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"], msg=name)
                self.assertAlmostEqual(
                    got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"], msg=name
                )
        code, err = self.launch(
            self.RANKS, *self.arguments("rest", *words, "--zero_stage", "3", "--per_device_train_batch_size", "1",
                                        "--resume_from_checkpoint", self.folder / "form1" / "checkpoint-3"),
        )  # fmt: skip
        self.assertEqual(code, OK, err)
        whole = self.steps(self.folder / "form1")[3:]
        self.assertEqual([s["loss"] for s in self.steps(self.folder / "rest")], [s["loss"] for s in whole])

    def test_full_training_is_split(self):
        self.check_split(["--finetuning_type", "full"], "float32", 1e-4)

    def test_full_training_in_bfloat16_is_split(self):
        self.check_split(["--finetuning_type", "full"], "bfloat16", 5e-3)

    def test_adapters_are_split(self):
        self.check_split(["--modules_to_save", "lm_head"], "float32", 1e-4)

    def test_buckets_beside_the_backward_pass(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--ddp_bucket_cap_mb", "1")

    def test_half_precision(self):
        self.check_as_alone(5e-3, "--dtype", "float16")

    def test_full_training(self):
        self.check_as_alone(1e-3, "--dtype", "float32", "--finetuning_type", "full")

    def test_packing(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--packing", "true", "--max_seq_length", "96")

    def test_offloaded_activations(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--gradient_checkpointing", "mlp+offload")

    def test_layers_in_host_memory(self):
        err = self.check_as_alone(1e-4, "--dtype", "float32", "--device_map", ON_HOST)
        self.assertIn("in host memory, once for all processes with this base", err)
        self.assertNotIn("could have in common is this one's own", err)

    def test_going_on(self):
        """Bit for bit, with dropout and 8-bit moments."""
        words = ["--lora.lora_dropout", "0.1", "--r", "16", "--max_steps", "8"]
        for name, more in (("adapter", []), ("full", ["--finetuning_type", "full"])):
            if more:
                words = ["--max_steps", "8"]
            file = "model.safetensors" if more else ADAPTER
            with self.subTest(name):
                for out, extra in (
                    (f"{name}-whole", ["--save_steps", "3"]),
                    (f"{name}-rest", ["--resume_from_checkpoint", self.folder / f"{name}-whole" / "checkpoint-3"]),
                ):
                    code, err = self.launch(self.RANKS, *self.arguments(out, *words, *more, *extra))
                    self.assertEqual(code, OK, err)
                whole, rest = (self.folder / f"{name}-{part}" for part in ("whole", "rest"))
                self.assertEqual(
                    [(s["loss"], s["grad_norm"]) for s in self.steps(rest)],
                    [(s["loss"], s["grad_norm"]) for s in self.steps(whole)[3:]],
                )
                self.assertEqual((rest / file).read_bytes(), (whole / file).read_bytes())

    def test_one_rank_s_nan_stops_all_before_the_update(self):
        base = self.poisoned(math.nan)
        rows = self.poison_row(3 * self.RANKS + 1)  # of the second rank in step 4
        words = ["--lr_scheduler_type", "constant", "--per_device_train_batch_size", "1", "--logging_steps", "1"]
        code, err = self.launch(self.RANKS, *self.arguments("good", *words, "--max_steps", "3", base=base, rows=rows))
        self.assertEqual(code, OK, err)
        code, err = self.launch(
            self.RANKS, *self.arguments("spoiled", *words, "--max_steps", "8", base=base, rows=rows)
        )
        self.assertEqual(code, RUNTIME, err)
        self.assertIn("step 4: the", err)
        self.assertRegex(err, r"Rank 1: First seen at: the embeddings")
        self.assertEqual(
            (self.folder / "spoiled" / ADAPTER).read_bytes(), (self.folder / "good" / ADAPTER).read_bytes()
        )
        self.assertEqual(len(self.steps(self.folder / "spoiled")), 3)

    def test_one_rank_s_overflow_is_skipped_by_all(self):
        """float16: the scale is halved, and the run goes on as one process would."""
        base = self.poisoned(math.inf)
        rows = self.poison_row(2 * self.RANKS + 1, count=8 * self.RANKS)
        words = [
            "--dtype",
            "float16",
            "--max_steps",
            "8",
            "--learning_rate",
            "0.001",
            "--lr_scheduler_type",
            "constant",
        ]
        losses = []
        for ranks in (1, self.RANKS):
            out = f"over{ranks}"
            arguments = self.arguments(
                out, *words, "--per_device_train_batch_size", str(self.RANKS // ranks), base=base, rows=rows
            )
            code, err = self.launch(ranks, *arguments)
            self.assertEqual(code, OK, err)
            self.assertIn("step 3: gradients overflowed", err)
            self.assertNotIn("step 4: gradients overflowed", err)
            losses.append([s["loss"] for s in self.steps(self.folder / out)])
        self.assertEqual(len(losses[0]), 8)
        for step, (alone, together) in enumerate(zip(*losses), 1):
            if step == 3:
                continue
            self.assertAlmostEqual(together, alone, delta=5e-3 * alone, msg=f"step {step}")

    def test_a_signal_to_one_rank(self):
        process = self.start(
            "launch", "--nproc_per_node", str(self.RANKS), *self.arguments("out", "--max_steps", "1000000")
        )
        for line in process.stderr:
            if "step 3/" in line:
                break
        process.terminate()
        rest = process.stderr.read()
        self.assertEqual(process.wait(), SIGTERM_SAVED, rest)
        self.assertTrue((self.folder / "out" / ADAPTER).exists())


class SharedModel(OnGpu):
    """GPUs that share a model, against one with the same micro-batches."""

    RANKS = 2
    WORDS = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch",
             "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4"]  # fmt: skip

    def words(self):
        return self.WORDS

    def check_meshes(self, tolerance, meshes, *extra):
        self.succeed(*self.arguments("alone", *self.WORDS, *extra))
        alone = self.steps(self.folder / "alone")
        for name, mesh in meshes.items():
            with self.subTest(name):
                code, err = self.launch(self.RANKS, *self.arguments(name, *self.words(), *mesh, *extra))
                self.assertEqual(code, OK, err)
                together = self.steps(self.folder / name)
                self.assertEqual(len(together), 6)
                for got, expected in zip(together, alone):
                    self.assertEqual(got["tokens"], expected["tokens"])
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
                    self.assertAlmostEqual(
                        got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
                    )


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoSlices(SharedModel):
    """Tensor parallel. Rows' lengths are such that many micro-batches have an odd number of tokens."""

    def check_as_alone(self, tolerance, *extra):
        self.check_meshes(tolerance, {"slices": ["--tp_size", "2"]}, *extra)

    def test_adapters(self):
        self.check_as_alone(
            1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--neftune_noise_alpha", "5",
            "--modules_to_save", "embed_tokens,lm_head",
        )  # fmt: skip

    def test_half_precision(self):
        self.check_as_alone(2e-3, "--dtype", "bfloat16")

    def test_dora(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--use_dora", "true")

    def test_full_training_of_what_is_computed_again(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--gradient_checkpointing", "full")

    def test_offloaded_activations(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--gradient_checkpointing", "mlp+offload")

    def test_products_in_fp8(self):
        self.check_as_alone(2e-2, "--dtype", "bfloat16", "--compute_dtype", "fp8_both")

    def test_products_for_dx_in_fp8(self):
        self.check_as_alone(2e-2, "--dtype", "bfloat16", "--compute_dtype", "fp8_backward")

    def test_preferences(self):
        pairs = [
            {"prompt": ids(r, 3 + r % 4), "chosen": ids(r + 100, 4 + r % 5), "rejected": ids(r + 200, 5 + r % 3)}
            for r in range(64)
        ]
        self.data = write_rows(self.folder / "pairs.jsonl", pairs)
        self.check_as_alone(1e-4, "--dtype", "float32", "--objective", "dpo")


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoStages(SharedModel):
    PIPELINE = ["--pp_size", "2"]

    def check_as_alone(self, tolerance, *extra):
        """Through two stages in either order."""
        schedules = {s: [*self.PIPELINE, "--pipeline_schedule", s] for s in ("1f1b", "interleaved")}
        self.check_meshes(tolerance, schedules, *extra)

    def test_adapters(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1")

    def test_half_precision_over_rows_of_equal_length(self):
        """Not recorded as CUDA graphs, as one GPU's passes are."""
        self.data = self.write([1024] * 32)
        self.check_as_alone(1e-3, "--dtype", "bfloat16")

    def test_full_training(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full")

    def test_full_training_with_the_optimizer_on_the_host(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--offload_optimizer", "cpu")

    def test_going_on(self):
        """Bit for bit, with dropout and 8-bit moments."""
        words = ["--lora.lora_dropout", "0.1", "--r", "64", "--max_steps", "6", *self.PIPELINE]
        words += ["--gradient_accumulation_steps", "4", "--per_device_train_batch_size", "1"]
        for out, extra in (
            ("whole", ["--save_steps", "3"]),
            ("rest", ["--resume_from_checkpoint", self.folder / "whole" / "checkpoint-3"]),
        ):
            code, err = self.launch(2, *self.arguments(out, *words, *extra))
            self.assertEqual(code, OK, err)
        whole, rest = self.folder / "whole", self.folder / "rest"
        self.assertEqual(
            [(s["loss"], s["grad_norm"]) for s in self.steps(rest)],
            [(s["loss"], s["grad_norm"]) for s in self.steps(whole)[3:]],
        )
        self.assertEqual((rest / ADAPTER).read_bytes(), (whole / ADAPTER).read_bytes())

    def test_device_map_starts_a_process_a_gpu(self):
        words = ["--dtype", "float32", *self.WORDS]
        self.succeed(*self.arguments("alone", *words))
        alone = self.steps(self.folder / "alone")
        own = json.dumps({"model.embed_tokens": 0, "model.layers.0-1": 0, "model.layers.2-5": 1, "lm_head": 1})
        for name, device_map, stages in (
            ("own", own, "layers 0 to 1 | 2 to 5;"),
            ("balanced", "balanced", "2 stages of layers 0 to"),
            ("sequential", "sequential", "layers 0 to 4 | 5 to 5;"),
        ):
            with self.subTest(name):
                err = self.succeed(*self.arguments(name, *words, "--device_map", device_map)).err
                self.assertIn("2 GPUs have the layers in turn, a process each", err)
                self.assertIn(stages, err)
                for got, expected in zip(self.steps(self.folder / name), alone, strict=True):
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=1e-5 * expected["loss"])


@unittest.skipUnless(gpus(2), "needs two GPUs")
class TwoContexts(OnGpu):
    WORDS = ["--max_steps", "6", "--learning_rate", "0.0001", "--optim", "adamw_torch",
             "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"]  # fmt: skip

    def check_as_alone(self, tolerance, *extra):
        """The same rows on one GPU, and cut over two."""
        self.succeed(*self.arguments("alone", *self.WORDS, *extra))
        code, err = self.launch(2, *self.arguments("both", *self.WORDS, "--cp_size", "2", *extra))
        self.assertEqual(code, OK, err)
        self.assertNotIn("slower portable kernels", err)
        alone, both = (self.steps(self.folder / out) for out in ("alone", "both"))
        self.assertEqual(len(both), 6)
        for got, expected in zip(both, alone):
            self.assertEqual(got["tokens"], expected["tokens"])
            self.assertAlmostEqual(got["loss"], expected["loss"], delta=tolerance * expected["loss"])
            self.assertAlmostEqual(
                got["grad_norm"], expected["grad_norm"], delta=20 * tolerance * expected["grad_norm"]
            )

    def test_adapters(self):
        self.check_as_alone(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--packing", "true")

    def test_half_precision(self):
        for keep in ("none", "attention", "full"):
            with self.subTest(keep):
                self.check_as_alone(1e-3, "--dtype", "bfloat16", "--gradient_checkpointing", keep, "--overwrite_output_dir", "true")  # fmt: skip

    def test_full_training(self):
        self.check_as_alone(1e-4, "--dtype", "float32", "--finetuning_type", "full", "--zero_stage", "2")


@unittest.skipUnless(gpus(4), "needs four GPUs")
class FourStages(SharedModel):
    """Two stages, each of two ranks that share what it trains and its frozen base."""

    RANKS = 4

    def words(self):
        return [*self.WORDS[:-1], "2"]

    def check_forms(self, tolerance, *extra):
        forms = (["--zero_stage", "2"], ["--zero_stage", "3"], ["--zero_stage", "3", "--offload_optimizer", "cpu"],
                 ["--zero_stage", "3", "--pipeline_schedule", "interleaved"])  # fmt: skip
        meshes = {f"form{number}": ["--pp_size", "2", *form] for number, form in enumerate(forms)}
        self.check_meshes(tolerance, meshes, *extra)

    def test_full_training(self):
        self.check_forms(1e-4, "--dtype", "float32", "--finetuning_type", "full")

    def test_adapters(self):
        self.check_forms(1e-5, "--dtype", "float32", "--lora.lora_dropout", "0.1", "--modules_to_save", "lm_head")


@unittest.skipUnless(gpus(4), "needs four GPUs")
class FourRanks(TwoRanks):
    RANKS = 4


if __name__ == "__main__":
    if not gpus(1):
        print("no GPU")
        sys.exit(77)
    main()
