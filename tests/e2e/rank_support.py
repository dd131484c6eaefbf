"""What the tests of several processes that train one model share."""

import random
import signal
import socket
import subprocess
import time

from support import (
    EndToEnd,
    LLAMA,
    OK,
    PROGRAM,
    RUNTIME,
    SIGTERM_SAVED,
    SOURCE,
    TIMEOUT_S,
    environment,
    floats,
    model,
    read_safetensors,
    write_rows,
)

LAUNCH = SOURCE / "scripts" / "launch.sh"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(EndToEnd):
    def launch(self, processes, arguments):
        done = subprocess.run(
            [
                LAUNCH,
                "--nproc_per_node",
                str(processes),
                "--master_port",
                str(free_port()),
                "--program",
                PROGRAM,
                *map(str, arguments),
            ],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stderr

    def start_ranks(self, arguments_of, size=2, environments={}):
        """Ranks as a launcher starts them; their stderr is piped. `environments`: more for some, by rank."""
        port = free_port()
        ranks = []
        for rank in range(size):
            env = environment(
                RANK=rank,
                WORLD_SIZE=size,
                LOCAL_RANK=rank,
                LOCAL_WORLD_SIZE=size,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **environments.get(rank, {}),
            )
            ranks.append(
                subprocess.Popen(
                    [PROGRAM, *map(str, arguments_of(rank))],
                    env=env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        self.addCleanup(lambda: [(r.kill(), r.wait(), r.stderr.close()) for r in ranks])
        return ranks

    def arguments(self, out, batch, accumulation, *extra):
        length = [] if "--max_steps" in extra else ["--max_steps", 6]
        return self.train_arguments(
            model(LLAMA),
            self.rows(32),
            "--per_device_train_batch_size",
            batch,
            "--gradient_accumulation_steps",
            accumulation,
            "--lora.lora_dropout",
            "0.1",
            *length,
            *extra,
            out=out,
        )

    def preference_rows(self, objective, count):
        draw = random.Random(7)
        rows = []
        for i in range(count):
            row = {"prompt": [draw.randrange(3, 60) for _ in range(draw.randrange(2, 6))]}
            good, bad = ([draw.randrange(*span) for _ in range(draw.randrange(3, 9))] for span in ((60, 90), (90, 120)))
            if objective == "kto":
                row |= {"completion": good if i % 3 else bad, "label": bool(i % 3)}
            else:
                row |= {"chosen": good, "rejected": bad}
            rows.append(row)
        return write_rows(self.folder / f"{objective}.jsonl", rows)

    def wait_for(self, condition, ranks):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            for rank in ranks:
                if rank.poll() is not None:
                    self.fail(rank.stderr.read())
            time.sleep(0.05)

    def wait_for_steps(self, out, ranks):
        metrics = self.folder / out / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        return ranks

    def expect_ended_by(self, rank, pattern, within_s):
        """The rank ends, soon enough, by an error that says so of another one."""
        began = time.monotonic()
        err = rank.communicate(timeout=TIMEOUT_S)[1]
        self.assertEqual(rank.returncode, RUNTIME, err)
        self.assertRegex(err, pattern)
        self.assertLess(time.monotonic() - began, within_s)

    def expect_stopped_rank_named(self, ranks):
        ranks[1].send_signal(signal.SIGSTOP)
        self.expect_ended_by(ranks[0], r"rank 1 \(.*\) gives no sign of life", 30)

    def expect_all_save_when_one_is_asked_to_stop(self, ranks):
        ranks[1].send_signal(signal.SIGTERM)
        for rank in ranks:
            err = rank.communicate(timeout=TIMEOUT_S)[1]
            self.assertEqual(rank.returncode, SIGTERM_SAVED, err)


class SharedModel(Ranks):
    """Ranks that share a model's layers, beside one process."""

    def run_ranks(self, processes, arguments):
        code, err = self.launch(processes, arguments)
        self.assertEqual(code, OK, err)
        return err

    # Adam takes a step of the rate's size however small a gradient is: rounding turns a few of the smallest round.
    def assert_same_values(self, out, other, file="adapter_model.safetensors", delta=2e-4):
        expected = read_safetensors(self.folder / other / file)
        found = read_safetensors(self.folder / out / file)
        self.assertEqual(found.keys(), expected.keys())
        for name, (_, shape, data) in found.items():
            self.assertEqual(shape, expected[name][1], name)
            for a, b in zip(floats(data), floats(expected[name][2])):
                self.assertAlmostEqual(a, b, delta=delta, msg=name)

    def assert_same_course(self, out, other):
        """All metrics of the steps and evaluations that depend on products."""
        steps, expected = self.steps(self.folder / out), self.steps(self.folder / other)
        self.assertEqual(len(steps), len(expected))
        for got, one in zip(steps, expected):
            self.assertEqual((got["tokens"], got["trained_tokens"]), (one["tokens"], one["trained_tokens"]))
            self.assertAlmostEqual(got["loss"], one["loss"], delta=2e-5 * one["loss"])
            self.assertAlmostEqual(got["grad_norm"], one["grad_norm"], delta=5e-4 * one["grad_norm"])
            # Not rewards/accuracies: of the first step's margins, which are zero, rounding decides.
            for name in ("rewards/margins", "logps/chosen"):
                if name in one:
                    self.assertAlmostEqual(got[name], one[name], delta=1e-4)
        rows, expected = self.evaluations(self.folder / out), self.evaluations(self.folder / other)
        self.assertEqual(len(rows), len(expected))
        for got, one in zip(rows, expected):
            self.assertEqual(got["eval_tokens"], one["eval_tokens"])
            self.assertAlmostEqual(got["eval_loss"], one["eval_loss"], delta=1e-5 * one["eval_loss"])
            self.assertEqual("eval_token_accuracy" in got, "eval_token_accuracy" in one)
            if "eval_token_accuracy" in one:  # rounding may decide of one target
                delta = 1.01 / one["eval_tokens"]
                self.assertAlmostEqual(got["eval_token_accuracy"], one["eval_token_accuracy"], delta=delta)
