"""The memory of a run on the CPU does not grow with its steps.

Some hundred steps, or 5,000 with UNSLOTH_TEST_ALL=1.
"""

import json
import os
import random
import re
import subprocess
import time

import support
from support import EndToEnd

STEPS = 5000 if os.environ.get("UNSLOTH_TEST_ALL") == "1" else 200
SETTLED = 50  # steps until every shape of the run has been met
GROWTH = 0.01


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(re.search(r"RssAnon:\s+(\d+) kB", status.read()).group(1))


def last_step(metrics):
    """The step of the last whole line."""
    try:
        lines = metrics.read_text().splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


class SteadyMemory(EndToEnd):
    def test_anonymous_memory_stays_where_it_was_after_fifty_steps(self):
        # Rows of any length: no two steps want buffers of the same sizes.
        draw = random.Random(1)
        rows = [{"input_ids": [draw.randrange(128) for _ in range(draw.randrange(2, 250))]} for _ in range(1000)]
        arguments = self.train_arguments(
            support.model(support.LLAMA | {"max_position_embeddings": 512}),
            support.write_rows(self.folder / "rows.jsonl", rows),
            "--per_device_train_batch_size",
            "2",
            "--logging_steps",  # what is logged is also remembered, for trainer_state.json
            "10",
            "--save_steps",
            "0",
            "--max_steps",
            str(STEPS),
        )
        log = self.folder / "log"
        with (
            open(log, "w", encoding="utf-8") as output,
            subprocess.Popen(
                [support.PROGRAM, "train", *map(str, arguments)],
                stdout=output,
                stderr=output,
                env=support.environment(),
            ) as run,
        ):
            metrics = self.folder / "out" / "metrics.jsonl"
            seen = {}
            while run.poll() is None and (step := last_step(metrics)) < STEPS:
                if step >= SETTLED:
                    seen[step] = anonymous_kib(run.pid)
                time.sleep(0.05)
            self.assertEqual(run.wait(), support.OK, log.read_text(encoding="utf-8")[-2000:])
        self.assertGreater(len(seen), 5, "the run was too quick to be watched")
        first, last = seen[min(seen)], seen[max(seen)]
        # What is planned is a small part of what the process takes: the log says both.
        said = log.read_text(encoding="utf-8")
        (before,) = re.findall(r"memory     ([\d.]+) MiB are taken already", said)
        ((most, planned),) = re.findall(r"the process took ([\d.]+) MiB at most, ([\d.]+) MiB of it planned", said)
        self.assertIn(f"in all {planned} MiB", said)
        self.assertLess(last / 1024, float(most))
        self.assertLess(float(planned), float(before))
        self.assertLess(float(before), float(most))
        self.assertGreater(max(seen), STEPS * 0.8)
        self.assertLess(
            last, (1 + GROWTH) * first, f"KiB by step: {dict(list(seen.items())[:: max(1, len(seen) // 10)])}"
        )


if __name__ == "__main__":
    support.main()
