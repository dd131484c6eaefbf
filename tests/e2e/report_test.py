"""What a run shows of itself: watch, compare and report."""

from support import *


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
        self.assertIn("left 00:08", self.succeed("watch", self.a_run("two", summary=False), "--once").out)
        self.fail_with(INPUT, "is no folder", "watch", self.folder / "absent")
        (self.folder / "empty").mkdir()
        self.fail_with(INPUT, "metrics.jsonl", "watch", self.folder / "empty")

    def test_compare(self):
        text = self.succeed("compare", self.a_run("one"), self.a_run("two", seed=7), self.a_run("three")).out
        self.assertIn("training.seed: 1 | 7 | 1", text)
        self.assertNotIn("output_dir", text)
        self.assertEqual(len([line for line in text.splitlines() if line.endswith("finished")]), 3)
        self.fail_with(USAGE, "RUN", "compare")

    def test_report(self):
        folder = self.a_run("one")
        self.succeed("report", folder)
        html = (folder / "report.html").read_text()
        for part in ('<svg id="loss"', "finished", "max_steps"):
            self.assertIn(part, html)
        page = self.folder / "page.html"
        self.succeed("report", folder, "--out", page)
        self.assertEqual(page.read_text(), html)


if __name__ == "__main__":
    main()
