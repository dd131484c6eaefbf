"""What the tests of several processes that train one model share."""

import random
import signal
import socket
import time

from support import (
    EndToEnd,
    LLAMA,
    OK,
    RUNTIME,
    SIGTERM_SAVED,
    TIMEOUT_S,
    environment,
    finish,
    floats,
    model,
    read_safetensors,
    start,
    write_rows,
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(EndToEnd):
    def launch(self, processes, arguments):
        """Ranks as `launch` starts them (launch_test): the code of the first that did not succeed, and all they wrote."""
        results = [finish(rank) for rank in self.start_ranks(lambda rank: arguments, processes)]
        failed = [result.code for result in results if result.code != OK]
        return failed[0] if failed else OK, "".join(result.err for result in results)

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
            ranks.append(start(*arguments_of(rank), env=env))
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
                    self.fail(finish(rank).err)
            time.sleep(0.05)

    def wait_for_steps(self, out, ranks):
        metrics = self.folder / out / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, ranks)
        return ranks

    def expect_code(self, rank, code):
        """What the rank has written when it has ended with this code."""
        done = finish(rank)
        self.assertEqual(done.code, code, done)
        return done.err

    def expect_ended_by(self, rank, pattern, within_s):
        """The rank ends, soon enough, by an error that says so of another one."""
        began = time.monotonic()
        self.assertRegex(self.expect_code(rank, RUNTIME), pattern)
        self.assertLess(time.monotonic() - began, within_s)

    def expect_stopped_rank_named(self, ranks):
        """Of ranks with a short ddp_timeout; ddp_test: what a long one makes of it."""
        ranks[1].send_signal(signal.SIGSTOP)
        self.expect_ended_by(ranks[0], r"rank 1 .*(has sent no heartbeat|did not come to)", 30)

    def expect_all_save_when_one_is_asked_to_stop(self, ranks):
        ranks[1].send_signal(signal.SIGTERM)
        for rank in ranks:
            self.expect_code(rank, SIGTERM_SAVED)


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
