"""Shares of other programs' configurations that are imported whole: of copies of their repositories' examples where they
lie beside the project (../peers_configs), and of the miniatures that are shipped."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COPIES = REPOSITORY.parent / "peers_configs"
MINIATURES = REPOSITORY / "tests" / "golden" / "peers"


def count(folder, *words):
    program = os.environ["UNSLOTH_TRAIN"]
    command = [sys.executable, REPOSITORY / "scripts" / "import_counts.py", folder, "--program", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class ImportCounts(unittest.TestCase):
    def test_miniatures(self):
        told = count(MINIATURES, "--at_least", "0.8")
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertIn("axolotl: 6 files; 1 other model, 4 whole, 1 with losses; 80%", told.stdout)
        self.assertIn("llamafactory: 3 files; 1 other task, 2 whole; 100%", told.stdout)
        self.assertIn("handbook: 2 files; 2 whole", told.stdout)
        self.assertIn("studio: 1 files; 1 whole", told.stdout)

    def test_a_missed_share_fails(self):
        told = count(MINIATURES, "--at_least", "0.9")
        self.assertEqual(told.returncode, 1)
        self.assertIn("below the share: axolotl", told.stderr)

    @unittest.skipUnless(COPIES.is_dir(), "no copies of other programs' examples beside the project")
    def test_copies(self):
        # Shares of 2026-11-28 (docs/how-to/migrate/README.md). All files are read.
        told = count(COPIES)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertNotIn("not read", told.stdout)
        for peer, least in (("axolotl", 50), ("llamafactory", 30), ("handbook", 45), ("trl", 100), ("studio", 90)):
            lines = [line for line in told.stdout.splitlines() if line.startswith(peer + ": ")]
            self.assertTrue(lines, peer)
            for line in lines:
                self.assertGreaterEqual(int(re.search(r"(\d+)% of those whose models", line)[1]), least, line)
                self.assertGreaterEqual(int(re.search(r"(\d+)% of those whose methods", line)[1]), 80, line)


if __name__ == "__main__":
    unittest.main()
