"""Adapters and models that this program trained, in transformers and PEFT: they load, and give the same logits.

Needs a Python with torch, transformers and peft (scripts/setup.sh --python-peers makes one); UNSLOTH_PYTHON may name another. Without
one the test says so and exits with 77, which ctest shows as skipped.
"""

from peers import Peers, main_or_skip, python_with
from support import LLAMA, LOGITS_TOLERANCE, MISTRAL, QWEN3, model

MODULES = ("torch", "transformers", "peft")
PYTHON = python_with(*MODULES)


class Reference(Peers):
    python = PYTHON

    def compare(self, rows, cases):
        """`cases`: (name, model, adapter or "")."""
        references = self.references(rows, *[(base, adapter) for _, base, adapter in cases])
        for (name, base, adapter), (reference, _, _) in zip(cases, references):
            with self.subTest(name):
                self.assertGreater(max(reference) - min(reference), 0.1, "logits without content would agree anyhow")
                own = self.logits(base, rows, adapter or None)
                self.assertLess(self.distance(own, reference), LOGITS_TOLERANCE)
                if adapter:
                    self.assertGreater(
                        self.distance(own, self.logits(base, rows)), 100 * LOGITS_TOLERANCE, "the adapter must matter"
                    )

    def test_adapters_on_every_kind_of_model(self):
        rows = self.rows(4)
        variants = {
            "llama": (LLAMA, ["--r", "4", "--lora_alpha", "16"]),
            "llama, patterns": (
                LLAMA,
                [
                    "--rank_pattern",
                    '{"v_proj": 2}',
                    "--alpha_pattern",
                    '{"layers.1.self_attn.q_proj": 5}',
                    "--use_rslora",
                    "true",
                    "--target_modules",
                    "q_proj,v_proj,down_proj",
                ],
            ),
            "llama, saved modules": (
                LLAMA,
                ["--r", "4", "--modules_to_save", "embed_tokens,lm_head", "--layers_to_transform", "1"],
            ),
            "qwen3": (QWEN3, ["--r", "4"]),
            "qwen3, DoRA": (QWEN3, ["--r", "4", "--use_dora", "true", "--use_rslora", "true"]),
            "mistral, window": (MISTRAL, ["--r", "4"]),
        }
        cases = []
        for name, (config, options) in variants.items():
            base = model(config)
            cases.append(
                (name, base, self.train(base, rows, "--learning_rate", "0.03", *options, out=f"adapter{len(cases)}"))
            )
        sixteen = model(LLAMA, dtype="bfloat16")
        cases.append(
            ("16-bit base", sixteen, self.train(sixteen, rows, "--learning_rate", "0.03", "--r", "4", out="sixteen"))
        )
        self.compare(rows, cases)

    def test_fully_trained_models(self):
        rows = self.rows(4)
        self.compare(
            rows,
            [
                (
                    config["model_type"],
                    self.train(model(config), rows, "--finetuning_type", "full", out=config["model_type"]),
                    "",
                )
                for config in (LLAMA, QWEN3)
            ],
        )


if __name__ == "__main__":
    main_or_skip(PYTHON, *MODULES, setup="scripts/setup.sh --python-peers")
