"""What a run shows of itself: TensorBoard's files, its page, the endpoint for Prometheus; watch, compare and report."""

import fcntl
import json
import pathlib
import re
import socket
import struct
import subprocess
import urllib.request

from browser import CHROMIUM, DESKTOP, FLAWS, PHONE, Browser
from peers import python_with
from support import *

PROMETHEUS_SINK = SOURCE / "src" / "report" / "prometheus_sink.cpp"


def events(path):
    """The records of an event file, by their frames alone."""
    data = pathlib.Path(path).read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


class RunFolders(EndToEnd):
    """Folders as runs leave them."""

    def a_run(self, name, steps=40, seed=1, summary=True):
        folder = self.folder / name
        folder.mkdir()
        rows = [
            {
                "step": step,
                "epoch": step / steps,
                "loss": 2 + 1 / step,
                "grad_norm": 0.5,
                "learning_rate": 1e-4,
                "tokens": 1000,
                "trained_tokens": 900,
                "tokens_per_second": 5000.0,
                "step_ms": 200.0,
                "memory_gib": 1.5,
            }
            for step in range(1, steps + 1)
        ]
        if summary:
            rows.append({"event": "summary", "exit_reason": "finished", "seconds": 12.0, "global_step": steps})
        write_rows(folder / "metrics.jsonl", rows)
        config = {"training": {"seed": seed, "output_dir": str(folder), "max_steps": 80}}
        (folder / "run_config.json").write_text(json.dumps(config))
        return folder

    def test_watch(self):
        self.assertIn("one\nstep 40  loss 2.025", self.succeed("watch", self.a_run("one")).out)
        two = self.a_run("two", summary=False)
        killed = "stopped without finishing at step 40 (last heartbeat 20"
        self.assertIn(killed, self.succeed("watch", two).out)
        self.assertIn(killed, self.succeed("compare", two, two).out)
        self.succeed("report", two)
        self.assertIn(killed, (two / "report.html").read_text())
        with open(two / "run.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("left 00:08", self.succeed("watch", two, "--once").out)
        self.fail_with("run.not-a-run", "is no folder", "watch", self.folder / "absent")
        (self.folder / "empty").mkdir()
        self.fail_with("run.no-metrics", "metrics.jsonl", "watch", self.folder / "empty")

    def test_compare(self):
        text = self.succeed("compare", self.a_run("one"), self.a_run("two", seed=7), self.a_run("three")).out
        self.assertIn("training.seed: 1 | 7 | 1", text)
        self.assertNotIn("output_dir", text)
        self.assertEqual(len([line for line in text.splitlines() if line.endswith("finished")]), 3)
        self.fail_with("option.missing", "RUN", "compare")

    def test_values_that_differ_in_the_last_bit_or_fill_a_double(self):
        for name, losses in {"last": (1.0, 1.0000000000000002), "far": (-1.7e308, 1.7e308)}.items():
            folder = self.folder / name
            folder.mkdir()
            write_rows(folder / "metrics.jsonl", [{"step": i, "loss": loss} for i, loss in enumerate(losses)])
            self.succeed("report", folder)
            for text in (
                (folder / "report.html").read_text(),
                self.succeed("watch", folder).out,
                self.succeed("compare", folder, folder).out,
            ):
                self.assertLess(len(text), 1 << 20)
                self.assertNotRegex(text.lower(), r"\b(nan|inf)")

    def test_report(self):
        folder = self.a_run("one")
        self.succeed("report", folder)
        html = (folder / "report.html").read_text()
        for part in ('<svg id="loss"', "finished", "max_steps"):
            self.assertIn(part, html)
        page = self.folder / "page.html"
        self.succeed("report", folder, "--out", page)
        self.assertEqual(page.read_text(), html)


@unittest.skipUnless(CHROMIUM, "no Chromium here: Debian's package chromium")
class InABrowser(EndToEnd):
    def a_run(self):
        """Long, with what is hard to draw: a spike, small and large numbers, many groups, a long name."""
        folder = self.folder / ("a-run-whose-name-is-longer-than-a-telephone-is-wide-" + "x" * 40)
        folder.mkdir()
        rows = []
        for step in range(1, 1201):
            row = {
                "step": step,
                "epoch": step / 500,
                "loss": 9.0 if step == 700 else 1.2 + 2 / step,
                "grad_norm": 0.5 + step % 7 / 10,
            }
            parts = ["embed_tokens", *(f"layers.{layer}" for layer in range(80)), "head"]
            row |= {
                f"grad_norm/{part}": (0.02 + abs(i - 30) / 500) * (40 if step == 700 and 50 < i < 60 else 1 + step % 3)
                for i, part in enumerate(parts)
            }
            row |= {
                "learning_rate": 2e-5 * (1 - step / 1300),
                "tokens": 16384,
                "trained_tokens": 9000,
                "memory_gib": 61.25,
            }
            rows.append(row | {"tokens_per_second": 18500 + step % 13, "step_ms": 884.25 + step % 5})
            if step % 300 == 0:
                rows.append({"step": step, "epoch": step / 500, "eval_loss": 1.3, "eval_tokens": 1000})
        write_rows(folder / "metrics.jsonl", rows)
        groups = {f"group {i} with a name": 2**30 // i for i in range(1, 12)}
        facts = {"total_steps": 2500, "planned_bytes": 2**36, "planned_groups": groups, "row_tokens": [3] * 18}
        facts |= {"device": "NVIDIA H200", "planned_tokens_per_second": 19234.5}
        (folder / "run_facts.json").write_text(json.dumps(facts))
        (folder / "run_config.json").write_text(json.dumps({"model": {"path": "/a/long/path" * 20}}))
        answers = [
            "A termination clause.",
            "",
            "lines\n    of code\n" * 3,
            "no-space-to-break-a-line-at-" * 20,
            "說" * 200,
        ]
        prompts = ["What kind of clause is this?", "https://a.b/" + "c" * 300, "<b>several</b>\nlines"]
        samples = [
            {"step": 300 * i, "epoch": 0.6 * i, "prompt": prompt, "answer": answer}
            for i, answer in enumerate(answers)
            for prompt in prompts
        ]
        write_rows(folder / "samples.jsonl", samples)
        return folder

    def test_the_page_on_a_phone_and_a_desk_in_light_and_dark(self):
        """With UNSLOTH_SCREENSHOTS=FOLDER the pictures stay there, to be looked at."""
        folder = self.a_run()
        self.succeed("report", folder)
        kept = pathlib.Path(os.environ.get("UNSLOTH_SCREENSHOTS") or self.folder)
        with Browser() as browser:
            for size, name in ((PHONE, "phone"), (DESKTOP, "desk")):
                backgrounds = set()
                for scheme in ("light", "dark"):
                    browser.open((folder / "report.html").as_uri(), size, scheme)
                    browser.evaluate("document.querySelector('details').open = true")
                    self.assertEqual(browser.evaluate(FLAWS), [], (name, scheme))
                    self.assertEqual(browser.evaluate("document.querySelectorAll('svg').length"), 9)
                    self.assertEqual(browser.evaluate("document.querySelectorAll('.answers td:last-child').length"), 15)
                    backgrounds.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
                    # The pointer over a curve tells its value.
                    browser.evaluate(
                        "(() => { const svg = document.querySelector('#loss'), box = svg.getBoundingClientRect();"
                        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 20, clientY: box.top + 9})); })()"
                    )
                    self.assertRegex(
                        browser.evaluate("document.querySelector('#loss').parentNode.textContent"),
                        r"step 1[12]\d\d: 1\.2",
                    )
                    self.assertGreater(
                        browser.evaluate(
                            "document.querySelector('#layer_norms path[opacity=\"1.0\"]').getBBox().width"
                        ),
                        0,
                    )
                    self.assertEqual(browser.fetched(), [(folder / "report.html").as_uri()])
                    self.assertEqual(browser.complaints(), [])
                    browser.screenshot(kept / f"report-{name}-{scheme}.png")
                self.assertEqual(len(backgrounds), 2, "light and dark look the same")

    def test_the_picture_as_a_file(self):
        folder = self.a_run()
        picture = folder / "picture.svg"
        self.succeed("report", folder, "--svg", picture)
        with Browser() as browser:
            for scheme in ("light", "dark"):
                page = self.folder / "shows.html"
                page.write_text(f'<body style="margin: 0"><img src="{picture.as_uri()}" width="100%">')
                browser.open(picture.as_uri(), DESKTOP, scheme)
                self.assertEqual(
                    browser.evaluate(
                        FLAWS.replace("behind(e)", "parse(getComputedStyle(document.querySelector('.card')).fill)")
                    ),
                    [],
                )
                browser.open(page.as_uri(), PHONE, scheme)
                self.assertGreater(browser.evaluate("document.images[0].naturalWidth"), 700)
                self.assertEqual(browser.complaints(), [])


class Reports(EndToEnd):
    def test_tensorboard_reads_what_a_run_wrote(self):
        out = self.train(model(LLAMA), self.rows(), "--report_to", "tensorboard", "--val_size", "2")
        (file,) = (out / "tensorboard").iterdir()
        self.assertRegex(file.name, r"^events\.out\.tfevents\.\d+\.")
        records = list(events(file))
        self.assertIn(b"brain.Event:2", records[0])
        self.assertEqual(len(records), 2 + 3 + 1 + 1)  # version, configuration, steps, evaluation, summary
        python = python_with("tensorboard")
        if python is None:
            self.skipTest("no tensorboard: scripts/setup.sh --python-peers")
        script = (
            "import json, sys\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "read = EventAccumulator(sys.argv[1]).Reload()\n"
            "scalars = {t: [[e.step, e.value] for e in read.Scalars(t)] for t in read.Tags()['scalars']}\n"
            "print(json.dumps([scalars, [e.tensor_proto.string_val[0].decode() for e in read.Tensors('configuration')]]))\n"
        )
        done = subprocess.run([python, "-W", "ignore", "-c", script, file.parent], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        scalars, texts = json.loads(done.stdout)
        for tag in ("loss", "grad_norm", "learning_rate", "tokens_per_second"):
            rows = [[row["step"], struct.unpack("f", struct.pack("f", row[tag]))[0]] for row in self.steps(out)]
            self.assertEqual(scalars["train/" + tag], rows)
        (evaluation,) = self.evaluations(out)
        self.assertAlmostEqual(scalars["eval/loss"][0][1], evaluation["eval_loss"], places=5)
        self.assertIn('"report_to"', texts[0])

    def test_a_runs_page(self):
        out = self.train(model(LLAMA), self.rows(), "--report_to", "html")
        html = (out / "report.html").read_text()
        for part in ('<svg id="loss"', '<svg id="row_tokens"', "finished", "learning_rate", "3 / 3"):
            self.assertIn(part, html)
        self.assertNotIn("http-equiv", html)
        facts = json.loads((out / "run_facts.json").read_text())
        self.assertEqual(facts["total_steps"], 3)
        self.assertEqual(sum(facts["row_tokens"]), 16)
        page = self.folder / "page.html"
        self.succeed("report", out, "--out", page)
        self.assertEqual(page.read_text(), html)

    def test_answers_as_the_run_goes_on(self):
        base = model(TEXT_LLAMA, tokenizer=LEGAL_BASE)
        prompts = write_rows(self.folder / "prompts.jsonl", [{"text": "This licence"}, {"text": "The seller shall"}])
        rows = self.rows(16, vocab=50)
        extra = ["--val_size", "2", "--eval_steps", "2", "--eval_on_start", "--max_steps", "4", "--save_steps", "2"]
        samples = ["--sample_prompts", prompts, "--sample_max_new_tokens", "6", "--report_to", "html"]
        out = self.train(base, rows, *extra, *samples)
        answers = read_rows(out / "samples.jsonl")
        self.assertEqual([row["step"] for row in answers], [0, 0, 2, 2, 4, 4])
        self.assertEqual({row["prompt"] for row in answers}, {"This licence", "The seller shall"})
        generated = self.succeed(
            "generate", "--model.path", base, "--adapter_name_or_path", out, "--file", prompts, "--max_new_tokens",
            "6", "--device", "cpu", "--json", *FP32,
        )  # fmt: skip
        texts = [json.loads(line)["text"] for line in generated.out.splitlines()]
        self.assertEqual([row["answer"] for row in answers[4:]], texts)
        self.assertIn("<summary>The seller shall</summary>", (out / "report.html").read_text())
        # The run is what it is without.
        without = self.train(base, rows, *extra, out="without")
        self.assertEqual([s["loss"] for s in self.steps(out)], [s["loss"] for s in self.steps(without)])
        # Going on from a checkpoint keeps the answers up to there.
        again = ["--resume_from_checkpoint", out / "checkpoint-2"]
        shutil.rmtree(out / "checkpoint-4"), (out / "trainer_state.json").unlink()
        self.train(base, rows, *extra, *samples, *again)
        self.assertEqual(read_rows(out / "samples.jsonl"), answers)
        long = ["--sample_prompts", prompts, "--sample_max_new_tokens", "600"]
        self.fail_with(
            "model.too-many-positions", "sample_max_new_tokens", *self.train_arguments(base, rows, *long, out="long")
        )

    def test_progress_for_programs(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(), "--val_size", "2", "--progress", "json", "--quiet")
        result = self.succeed("train", *arguments)
        rows = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual([row["event"] for row in rows], ["step"] * 3 + ["evaluation", "summary"])
        self.assertEqual([row["step"] for row in rows[:3]], [1, 2, 3])
        self.assertEqual(rows[0]["total_steps"], 3)
        self.assertEqual(rows[2]["loss"], self.steps(self.folder / "out")[2]["loss"])
        self.assertEqual(rows[-1]["exit_reason"], "finished")
        self.assertEqual([line for line in result.err.splitlines() if "] I " in line], [], "what is no warning")

    def test_programs_are_told_all_that_an_evaluation_says(self):
        pairs = [{"prompt": [5, 6], "chosen": [7 + i % 9, 8], "rejected": [30 + i % 7, 31]} for i in range(8)]
        pairs = write_rows(self.folder / "pairs.jsonl", pairs)
        files = json.dumps({"a": str(pairs), "b": str(pairs)})
        extra = ["--objective", "dpo", "--eval_files", files, "--max_steps", "2", "--progress", "json"]
        result = self.succeed("train", *self.train_arguments(model(LLAMA), pairs, *extra))
        rows = [json.loads(line) for line in result.out.splitlines()]
        told = next(row for row in rows if row["event"] == "evaluation")
        self.assertIn("rewards/accuracies", rows[0])
        (written,) = self.evaluations(self.folder / "out")
        self.assertLess({"eval_a_loss", "eval_b_loss", "eval_rewards/margins"}, set(written))
        self.assertEqual({key: told[key] for key in written if key not in ("epoch", "eval_tokens")},
                         {key: written[key] for key in written if key not in ("epoch", "eval_tokens")})  # fmt: skip

    def test_the_endpoint_while_a_run_goes_on(self):
        arguments = self.train_arguments(model(LLAMA), self.rows(), "--max_steps", "100000", "--logging_steps", "1")
        env = environment()
        extra = ["--report_to", "prometheus,html", "--metrics_port", self.port()]
        process = subprocess.Popen([PROGRAM, "train", *map(str, arguments), *extra], stderr=subprocess.PIPE, env=env)
        try:
            address = None
            for line in process.stderr:
                found = re.search(rb"http://\S+/metrics", line)
                if found:
                    address = found.group().decode()
                if b"prometheus" in line and b"installed" in line:
                    self.skipTest("built without prometheus-cpp")
                if b"step 2/" in line:
                    break
            self.assertIsNotNone(address)
            port = int(re.search(r":(\d+)/", address).group(1))
            listening = [line.split()[1] for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
            self.assertIn(f"0100007F:{port:04X}", listening, "at 127.0.0.1")
            self.assertNotIn(f"00000000:{port:04X}", listening)
            text = urllib.request.urlopen(address, timeout=10).read().decode()
            self.assertRegex(text, r"(?m)^unsloth_train_step [1-9]")
            self.assertRegex(text, r"(?m)^unsloth_train_tokens_total [1-9]")
            self.assertRegex(text, r"(?m)^unsloth_train_planned_memory_bytes [1-9]")
            exported = set(re.findall(r"(?m)^# TYPE (unsloth_\S+)", text))  # the library has some of its own
            page = (self.folder / "out" / "report.html").read_text()
            self.assertIn("http-equiv", page)
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(TIMEOUT_S)
            process.stderr.close()
        self.assertEqual(process.returncode, SIGTERM_SAVED)
        self.check_dashboard(exported)

    def port(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return str(free.getsockname()[1])

    def check_dashboard(self, exported):
        """Each query of the dashboard asks for a metric that exists, and each metric is asked for."""
        board = json.loads((SOURCE / "configs" / "grafana" / "unsloth-train.json").read_text())
        asked = set()
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                asked |= set(re.findall(r"unsloth_[a-z_]+", target["expr"]))
        self.assertTrue(asked)
        # Without rows to evaluate on there is no such loss, without a GPU nothing of one, alone no rank's time.
        known = exported | set(re.findall(r"\"(unsloth_train_\w+)\"", PROMETHEUS_SINK.read_text()))
        self.assertEqual(asked - known, set())
        self.assertEqual(known - asked, set())


if __name__ == "__main__":
    main()
