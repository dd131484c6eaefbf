"""quantize: 4 and 8-bit models as bitsandbytes writes them."""

import json

from merge_support import Merging
from support import (
    GOLDEN,
    LLAMA,
    NF4_MODEL,
    QWEN3,
    USAGE,
    floats,
    main,
    model,
    read_safetensors,
)


class Quantize(Merging):
    def golden_original(self):
        return self.golden_sixteen_bit("original")

    def quantize(self, source, *options, out="quantised"):
        self.succeed("quantize", "--model", source, "--out", self.folder / out, *options)
        return self.folder / out

    def test_equals_what_bitsandbytes_wrote(self):
        # The bounds of the golden files' README: packed codes exact, absmax codes within 1, offset and nested maxima to 1e-6.
        ours = read_safetensors(self.quantize(self.golden_original()) / "model.safetensors")
        theirs = read_safetensors(NF4_MODEL / "model.safetensors")
        self.assertEqual(set(ours), set(theirs))
        facts = json.loads((GOLDEN / "formats" / "small_llama" / "nf4_dq.linears.json").read_text())
        linears = 0
        for name, (dtype, shape, data) in theirs.items():
            got_dtype, got_shape, got = ours[name]
            self.assertEqual(got_dtype, dtype, name)
            if name.endswith("quant_state.bitsandbytes__nf4"):
                linears += 1
                state, expected = json.loads(got), json.loads(data)
                self.assertAlmostEqual(state.pop("nested_offset") / expected.pop("nested_offset"), 1, delta=1e-6)
                self.assertEqual(state, expected, name)
                continue
            self.assertEqual(got_shape, shape, name)
            if name.endswith(".absmax"):
                self.assertLessEqual(max(abs(a - b) for a, b in zip(got, data)), 1, name)
                # Theirs come from a coarse table; ours are the nearest.
                self.assertEqual(
                    sum(a != b for a, b in zip(got, data)),
                    facts[name.removesuffix(".absmax")]["absmax_codes_not_nearest"],
                    name,
                )
            elif name.endswith(".nested_absmax"):
                self.assertLess(max(abs(a / b - 1) for a, b in zip(floats(got), floats(data))), 1e-6, name)
            else:  # packed codes, both maps, and what is not quantised
                self.assertEqual(got, data, name)
        self.assertEqual(linears, 14)

    def test_is_what_loading_in_4_bit_makes(self):
        for number, (config, dtype) in enumerate(((LLAMA, "bfloat16"), (QWEN3, "float32"))):
            base, rows = model(config, dtype=dtype), self.rows(4)
            quantised = self.quantize(base, "--max_shard_size", "30KB", out=f"out{number}")
            self.assertGreater(len(list(quantised.glob("*.safetensors"))), 1)
            self.assertEqual(self.logits(quantised, rows), self.logits(base, rows, None, "--load_in_4bit", "true"))

    def test_8_bit_models_are_read_trained_on_and_merged_into(self):
        base, rows = model(LLAMA, dtype="bfloat16"), self.rows(4)
        quantised = self.quantize(base, "--type", "int8", "--max_shard_size", "30KB")
        self.succeed("inspect", quantised)
        one, other = self.logits(quantised, rows), self.logits(base, rows)
        self.assertNotEqual(one, other)
        self.assertLess(self.distance(one, other), 0.05 * (max(other) - min(other)))
        # Weights of 8 bit are not quantised again.
        self.assertEqual(one, self.logits(quantised, rows, None, "--load_in_4bit", "true"))
        for number, flag in enumerate(("true", "false")):
            adapter = self.adapter(quantised, "--r", "4", "--load_in_4bit", flag, name=f"adapter{number}")
            merged, result = self.merge(adapter, quantised, "--dtype", "fp32", out=f"merged{number}")
            self.assertNotIn(" W ", result.err)
            self.same_logits(quantised, adapter, merged)
        self.fail_with(
            "model.not-trainable", ["8-bit"], *self.train_arguments(quantised, rows, "--finetuning_type", "full")
        )
        plan = self.succeed(*self.train_arguments(quantised, rows, "--max_steps", "0")).err
        self.assertIn("14 linears in 8 bit (int8) as stored", plan)

    def test_types_by_module(self):
        base, rows = model(LLAMA, dtype="bfloat16"), self.rows(4)
        types = {"model.layers.0": "bf16", "model.layers.1.mlp.down_proj": "int8", "model.layers.1.self_attn": "fp4"}
        types |= {"default": "nf4", "lm_head": "int8", "model.embed_tokens": "nf4"}
        result = self.succeed(
            "quantize", "--model", base, "--out", self.folder / "mixed", "--precision", json.dumps(types)
        )
        self.assertIn("transformers cannot load this folder: 4-bit and 8-bit linears in one model", result.err)
        self.assertIn("transformers cannot load this folder: model.embed_tokens", result.err)
        mixed = self.folder / "mixed"
        self.succeed("inspect", mixed)
        named = ("--precision", json.dumps(types))
        self.assertEqual(self.logits(mixed, rows), self.logits(base, rows, None, *named))
        self.assertNotEqual(self.logits(mixed, rows), self.logits(base, rows))
        # An adapter of it is merged into the values that it was trained on, whichever way it is said.
        adapter = self.adapter(base, "--r", "4", *named)
        for said, words in (("named", named), ("as trained", ())):
            merged, result = self.merge(adapter, base, "--dtype", "fp32", *words, out=said)
            self.assertNotIn(" W ", result.err)
            self.same_logits(mixed, adapter, merged)
        own = ("--load_in_4bit", "false", "--no_verify")
        _, result = self.merge(adapter, base, "--dtype", "fp32", *own, out="without")
        self.assertIn("the adapter was trained with model.precision, and is merged without", result.err)
        for wrong, said in (
            ({"model.layers.1.mlp.down_prj": "nf4"}, "Did you mean model.layers.1.mlp.down_proj?"),
            ({"lm_head": "int4"}, "Types are nf4"),
            ({"model.layers.7": "nf4"}, "the model has layers 0 to 1"),
        ):
            self.fail_with(USAGE, said, *self.train_arguments(base, rows, "--precision", json.dumps(wrong)))

    def test_trains_as_a_base(self):
        quantised = self.quantize(model(LLAMA, dtype="bfloat16"))
        merged, _ = self.merge(self.adapter(quantised, "--r", "4"), quantised)
        self.succeed("inspect", merged)

    def test_refusals(self):
        self.fail_with(
            "model.already-quantized",
            ["quantised already"],
            "quantize",
            "--model",
            NF4_MODEL,
            "--out",
            self.folder / "out",
        )
        self.assertEqual(list(self.folder.iterdir()), [])
        self.fail_with(
            USAGE, ["--type"], "quantize", "--model", NF4_MODEL, "--out", self.folder / "out", "--type", "q4"
        )


if __name__ == "__main__":
    main()
