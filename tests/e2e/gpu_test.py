"""The program on one GPU: going on from checkpoints, kernels' tables, layers off the GPU, long runs and long rows.

Skipped where there is none.
"""

import json
import math
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import resume_test
from gpu_support import ADAPTER, BASE, ON_DISK, ON_HOST, OnGpu, gpus, ids
from rank_support import free_port
from support import OK, PROGRAM, SIGTERM_SAVED, TIMEOUT_S, USAGE, environment, main, model, run, write_rows


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

    def test_prune(self):
        base = model(BASE, dtype="bfloat16")
        words = ["prune", "--model.path", base, "--calibration", self.data, "--layers", "4", "--intermediate", "384"]
        words += ["--training.deterministic", "true"]
        reports = []
        for number, more in enumerate(([], ["--device_map", ON_HOST], ["--device_map", ON_DISK])):
            out = self.folder / f"pruned{number}"
            self.succeed(*words, "--device", "cuda", "--out", out, *more)
            reports.append((out / "prune_report.json").read_bytes())
        self.assertEqual(reports, reports[:1] * 3)
        on_cpu = self.folder / "on cpu"
        self.succeed(*words, "--out", on_cpu, "--device", "cpu", "--dtype", "float32")
        here, there = json.loads((on_cpu / "prune_report.json").read_text()), json.loads(reports[0])
        self.assertAlmostEqual(here["loss_before"], there["loss_before"], delta=0.02)
        pairs = zip(here["num_hidden_layers"]["block_influence"], there["num_hidden_layers"]["block_influence"])
        for one, other in pairs:
            self.assertAlmostEqual(one, other, delta=0.05 * one)

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
        self.assertNotIn("could share is this one's own", err)
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


if __name__ == "__main__":
    if not gpus(1):
        print("no GPU")
        sys.exit(77)
    main()
