"""What the tests of several processes that train one model share."""

import random
import socket
import subprocess
import time

from support import EndToEnd, LLAMA, PROGRAM, SOURCE, TIMEOUT_S, environment, model, write_rows

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

    def start_ranks(self, arguments_of, size=2):
        """Ranks as a launcher starts them; their stderr is piped."""
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
