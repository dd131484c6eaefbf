"""Merged, quantised and pruned models in transformers and bitsandbytes: they load, and give the logits of base and adapter.

Needs a Python with torch, transformers, peft, bitsandbytes and accelerate (scripts/setup.sh --python-peers makes one); UNSLOTH_PYTHON
may name another. Without one the test says so and exits with 77, which ctest shows as skipped.
"""

import json
import shutil

from merge_support import KINDS, Merging
from peers import Peers, main_or_skip, python_with
from pruning import GPT_OSS, QWEN3_MOE
from support import (
    GOLDEN,
    LLAMA,
    LOGITS_TOLERANCE,
    MISTRAL,
    QWEN3,
    float_bytes,
    floats,
    model,
    read_safetensors,
    token_rows,
    write_rows,
    write_safetensors,
)
from vision_test import Seeing

MODULES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")
PYTHON = python_with(*MODULES)
# How far off bitsandbytes' own products, in bf16 and 8 bit, may put the logits, as a part of their spread: measured 0.005.
PRODUCTS_OFF = 0.02

# Quantises a weight with bitsandbytes and prints what differs from this program's file.
COMPARE = """
import sys
import torch
import bitsandbytes.functional as F
from safetensors.torch import load_file
original, quantised, eight = load_file(sys.argv[1]), load_file(sys.argv[2]), load_file(sys.argv[3])
for name, weight in original.items():
    scales = name.replace(".weight", ".SCB")
    if scales in eight:
        codes, maxima, _ = F.int8_vectorwise_quant(weight.half())
        assert torch.equal(codes, eight[name]) and torch.equal(maxima, eight[scales]), name
    if name + ".quant_map" not in quantised:
        continue
    packed, state = F.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    codes = (packed.flatten() != quantised[name].flatten()).sum().item()
    absmax = (state.absmax.int() - quantised[name + ".absmax"].int()).abs().max().item()
    nested = ((state.state2.absmax - quantised[name + ".nested_absmax"]).abs() / state.state2.absmax).max().item()
    print(codes, absmax, nested)
"""

# Positions scaled each way, for the 64 of the tests' model. Rows of 100 tokens go beyond them.
SCALINGS = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "longrope",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 1.5, 2.5, 4.0],
    },
]

# Prints the loss of all rows' tokens together and its gradient's norm over all weights, for each folder.
TRAIN = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
rows, *folders = sys.argv[1:]
rows = [torch.tensor([json.loads(line)["input_ids"]]) for line in open(rows)]
for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    loss = sum(model(input_ids=ids, labels=ids).loss for ids in rows) / len(rows)
    loss.backward()
    squares = sum(weight.grad.double().square().sum().item() for weight in model.parameters())
    print(loss.item(), squares ** 0.5)
"""


# Prunes with Wanda's reference rule, on inputs as hooks see them, and prints of each linear how many places differ from this program's.
WANDA = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
rows, base, half, of_four = sys.argv[1:]
load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
model, half, of_four = load(base), load(half).state_dict(), load(of_four).state_dict()
squares = {}
def hook(name):
    def see(module, inputs):
        squares[name] = squares.get(name, 0) + inputs[0].flatten(0, -2).double().square().sum(0)
    return see
linears = {name: m for name, m in model.named_modules() if name.endswith("_proj")}
for name, module in linears.items():
    module.register_forward_pre_hook(hook(name))
with torch.no_grad():
    for line in open(rows):
        model(input_ids=torch.tensor([json.loads(line)["input_ids"]]))
for name, module in linears.items():
    metric = module.weight.data.abs() * squares[name].sqrt().float()
    order = torch.sort(metric, dim=-1, stable=True)[1][:, : metric.shape[1] // 2]
    mask = torch.zeros_like(metric, dtype=torch.bool).scatter_(1, order, True)
    fours = metric.view(metric.shape[0], -1, 4)
    least = torch.topk(fours, 2, dim=-1, largest=False)[1]
    of_fours = torch.zeros_like(fours, dtype=torch.bool).scatter_(2, least, True).view_as(metric)
    print(name, mask.numel(), ((half[name + ".weight"] == 0) != mask).sum().item(), ((of_four[name + ".weight"] == 0) != of_fours).sum().item())
"""

# Prints each layer's block influence and its neurons' importance, as hooks see them.
IMPORTANCE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
rows, base = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
layers = model.model.layers
states, means = [[] for _ in range(len(layers) + 1)], [[] for _ in layers]
for i, layer in enumerate(layers):
    layer.register_forward_pre_hook(lambda module, inputs, i=i: states[i].append(inputs[0][0].double()))
    layer.mlp.down_proj.register_forward_pre_hook(lambda module, inputs, i=i: means[i].append(inputs[0][0].double().abs().mean(0)))
model.model.norm.register_forward_pre_hook(lambda module, inputs: states[-1].append(inputs[0][0].double()))
with torch.no_grad():
    for line in open(rows):
        model(input_ids=torch.tensor([json.loads(line)["input_ids"]]))
    for i, layer in enumerate(layers):
        x, y = torch.cat(states[i]), torch.cat(states[i + 1])
        influence = 1 - torch.nn.functional.cosine_similarity(x, y, dim=-1).mean().item()
        importance = torch.stack(means[i]).norm(dim=0) * layer.mlp.down_proj.weight.double().norm(dim=0)
        print(json.dumps([influence, importance.tolist()]))
"""


# Prints, for each folder, how many linears are in 4 bit, and how many of these were left as they are.
IN_4BIT = """
import sys
import torch
from bitsandbytes.nn import Linear4bit
from transformers import AutoModelForImageTextToText
for folder in sys.argv[1:]:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16)
    linears = [module for module in model.modules() if isinstance(module, Linear4bit)]
    print(len(linears), sum(module.weight.dtype != torch.uint8 for module in linears))
"""

# Loads adapters of towers in PEFT and prints how many tensors it has as the file has them, and how many there are.
TOWERS = """
import sys
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
for base, adapter in zip(sys.argv[1::2], sys.argv[2::2]):
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), adapter)
    there = get_peft_model_state_dict(model)
    saved = load_file(f"{adapter}/adapter_model.safetensors")
    same = [name for name, values in saved.items() if torch.equal(there[name].float(), values.float())]
    print(len(same), len(there))
"""

# Quantises all linears of a model, its tower's too, as transformers does where nobody asks for anything else.
QUANTISE = """
import sys
import torch
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
AutoModelForImageTextToText.from_pretrained(sys.argv[1], quantization_config=config).save_pretrained(sys.argv[2])
"""


class InTransformers(Merging, Peers, Seeing):
    python = PYTHON

    def test_adapters_in_towers_load_in_peft(self):
        pairs = []
        for name in ("qwen3_vl", "mllama"):
            folder, _, rows, _ = self.family(name)
            out = self.train(folder, rows, "--lora.vision", "true", "--r", 4, "--max_steps", 1, out=name + "-out")
            pairs += [folder, out]
        folder, _, rows, _ = self.family("qwen2_5_vl")
        packed = folder.with_name("packed")
        self.in_python(QUANTISE, folder, packed)
        for file in folder.iterdir():
            if not (packed / file.name).exists():
                shutil.copy(file, packed)
        header = read_safetensors(packed / "model.safetensors")
        self.assertIn("visual.blocks.0.mlp.down_proj.weight.quant_state.bitsandbytes__nf4", header)
        out = self.train(packed, rows, "--lora.vision", "true", "--r", 4, "--max_steps", 1, out="packed-out")
        merged = packed.with_name("merged")
        self.succeed("merge", "--adapter", out, "--base", packed, "--out", merged, "--verify", rows)
        self.assertNotIn("quant_state", (merged / "model.safetensors.index.json").read_text())
        pairs += [packed, out]
        for folder, line in zip(pairs[::2], self.in_python(TOWERS, *pairs).splitlines(), strict=True):
            same, there = map(int, line.split())
            self.assertEqual(same, there, folder)
            self.assertGreater(same, 60)

    def test_models_with_towers_load_in_4bit(self):
        folders = []
        for family in ("qwen2_5_vl", "qwen3_vl", "mllama"):
            config = GOLDEN / "families" / family / "model" / "config.json"
            made, plain = self.folder / f"{family} made", self.folder / family
            self.succeed("init", "--model_config", config, "--quantize", "nf4", "--out", made)
            self.succeed("init", "--model_config", config, "--out", plain)
            folders += [made, self.quantized(plain, out=f"{family} quantized")]
        for folder, line in zip(folders, self.in_python(IN_4BIT, *folders).splitlines(), strict=True):
            with self.subTest(folder.name):
                linears, plain = map(int, line.split())
                self.assertGreater(linears, 0)
                self.assertEqual(plain, 0)

    def test_merged_models_give_the_logits_of_peft(self):
        rows, pairs, names = self.rows(4), [], []
        for config, kinds in ((LLAMA, list(KINDS)), (QWEN3, ["saved modules", "all of it"])):
            for kind in kinds:
                base, name = model(config), f"{config['model_type']} {kind}"
                adapter = self.adapter(base, *KINDS[kind], name=f"adapter of {name}")
                merged, _ = self.merge(
                    adapter, base, "--dtype", "fp32", "--max_shard_size", "50KB", "--no_verify", out=f"merged {name}"
                )
                names.append(name)
                pairs += [(merged, ""), (base, adapter)]
        found = [logits for logits, _, _ in self.references(rows, *pairs)]
        for number, name in enumerate(names):
            with self.subTest(name):
                merged, adapted = found[2 * number : 2 * number + 2]
                self.assertLess(self.distance(merged, adapted), LOGITS_TOLERANCE)
                self.assertLess(self.distance(merged, self.logits(pairs[2 * number][0], rows)), LOGITS_TOLERANCE)

    def test_16_bit_results_load(self):
        rows, base = self.rows(4), model(LLAMA, dtype="bfloat16")
        adapter = self.adapter(base, "--r", "4")
        merged = [self.merge(adapter, base, "--dtype", dtype, out=dtype)[0] for dtype in ("bf16", "fp16")]
        for folder, (logits, _, _) in zip(merged, self.references(rows, *[(folder, "") for folder in merged])):
            self.assertLess(self.distance(logits, self.logits(folder, rows)), LOGITS_TOLERANCE)

    def test_scaled_positions_train_and_merge_as_there(self):
        base = self.copied_model(model(LLAMA), "base")
        weights = read_safetensors(base / "model.safetensors")
        for name, (dtype, shape, data) in weights.items():  # so that attention, and with it positions, matter
            times = 20 if "q_proj" in name or "k_proj" in name else 5 if "proj" in name else 1
            weights[name] = (dtype, shape, float_bytes(times * value for value in floats(data)))
        mark = lambda header: header.update(__metadata__={"format": "pt"})  # transformers reads no others
        write_safetensors(base / "model.safetensors", weights, mark)
        long = write_rows(self.folder / "long.jsonl", token_rows(4, shortest=100, longest=100))
        scaled, merged, ours = [], [], []
        for scaling in SCALINGS:
            name, options = scaling["rope_type"], ["--rope_scaling", json.dumps(scaling), "--max_seq_length", "100"]
            scaled.append(self.copied_model(base, f"scaled {name}"))
            config = json.loads((scaled[-1] / "config.json").read_text())
            config.pop("rope_parameters", None)
            config |= {"rope_scaling": scaling, "rope_theta": LLAMA["rope_theta"]}
            (scaled[-1] / "config.json").write_text(json.dumps(config))
            adapter = self.train(base, long, "--max_steps", "4", "--learning_rate", "0.03", *options, out=name)
            merged.append(self.merge(adapter, base, "--dtype", "fp32", "--no_verify", out=f"merged {name}")[0])
            full = ("--finetuning_type", "full", "--max_steps", "1", "--per_device_train_batch_size", "4")
            whole = self.train(base, long, *full, "--gradient_accumulation_steps", "1", *options, out=f"whole {name}")
            step = self.steps(whole)[0]
            ours.append((step["loss"], step["grad_norm"], self.logits(base, long, adapter)))
        lines = self.in_python(TRAIN, long, *scaled).splitlines()
        self.assertEqual(len(lines), len(SCALINGS))
        pairs = [(folder, "") for folder in merged]
        for scaling, line, found, (logits, _, _) in zip(SCALINGS, lines, ours, self.references(long, *pairs)):
            with self.subTest(scaling["rope_type"]):
                loss, norm = map(float, line.split())
                self.assertAlmostEqual(found[0], loss, delta=1e-5 * loss)
                self.assertAlmostEqual(found[1], norm, delta=1e-4 * norm)
                self.assertLess(self.distance(logits, found[2]), LOGITS_TOLERANCE)
        norms = sorted(float(line.split()[1]) for line in lines)
        for one, other in zip(norms, norms[1:]):
            self.assertGreater(other, 1.001 * one, "each scales in another way")

    def pruned(self, base, rows, *options, out):
        words = ["--calibration", rows, "--device", "cpu", "--dtype", "float32", *options]
        self.succeed("prune", "--model.path", base, "--out", self.folder / out, *words)
        return self.folder / out

    def test_pruned_models(self):
        rows, folders = self.rows(4), []
        cut = ("--layers", "2", "--intermediate", "40")
        windows = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
        for number, config in enumerate((LLAMA, QWEN3, MISTRAL, QWEN3 | windows)):
            base = model(config | {"num_hidden_layers": 4})
            folders.append(self.pruned(base, rows, *cut, out=f"pruned{number}"))
        for config in (QWEN3_MOE, GPT_OSS):
            name = config["model_type"]
            folders.append(self.pruned(model(config), rows, "--experts", "6", out=name))
        blocks = model(GPT_OSS, dtype="bfloat16", quantize="mxfp4")
        for cut in (("--experts", "6"), ("--layers", "1")):
            folders.append(self.pruned(blocks, rows, *cut, out=f"mxfp4 {cut[0]}"))
        for folder, (logits, _, _) in zip(folders, self.references(rows, *[(folder, "") for folder in folders])):
            with self.subTest(folder.name):
                self.assertLess(self.distance(logits, self.logits(folder, rows)), LOGITS_TOLERANCE)
        report = json.loads((folders[0] / "prune_report.json").read_text())
        lines = self.in_python(IMPORTANCE, rows, model(LLAMA | {"num_hidden_layers": 4})).splitlines()
        expected = [json.loads(line) for line in lines]
        for (influence, _), found in zip(expected, report["num_hidden_layers"]["block_influence"], strict=True):
            self.assertAlmostEqual(found, influence, delta=1e-4 * influence)
        kept = [i for i in range(4) if i not in report["num_hidden_layers"]["removed"]]
        for layer, found in zip(kept, report["intermediate_size"]["importance"], strict=True):
            for one, other in zip(found, expected[layer][1], strict=True):
                self.assertAlmostEqual(one, other, delta=1e-3 * other)  # the report has four digits
        half, of_four = (
            self.pruned(model(LLAMA), rows, "--wanda", kind, out=name)
            for kind, name in (("0.5", "half"), ("2:4", "24"))
        )
        lines = self.in_python(WANDA, rows, model(LLAMA), half, of_four).splitlines()
        self.assertEqual(len(lines), 14)
        for line in lines:  # of products that are equal but for rounding, either may go
            _, places, *differ = line.split()
            self.assertLessEqual(max(map(int, differ)), int(places) // 500, line)

    def quantized(self, base, *options, out):
        self.succeed("quantize", "--model", base, "--out", self.folder / out, *options)
        return self.folder / out

    def test_quantised_results_and_adapters_on_them_load_with_bitsandbytes(self):
        # bitsandbytes' CPU kernel is right for multiples of 64 alone.
        shape = LLAMA | {"hidden_size": 64, "intermediate_size": 192}
        rows, base = self.rows(4), model(shape, dtype="bfloat16")
        four, eight = self.quantized(base, out="four"), self.quantized(base, "--type", "int8", out="eight")
        on_four, on_eight = (
            self.adapter(four, "--r", "4", name="on_four"),
            self.adapter(eight, "--r", "4", name="on_eight"),
        )
        merged, _ = self.merge(on_four, four, "--dtype", "nf4")
        types = {"model.layers.0": "bf16", "model.layers.1.self_attn": "fp4", "lm_head": "nf4"}
        mixed = self.quantized(base, "--precision", json.dumps(types), out="mixed")
        pairs = [(four, ""), (four, on_four), (eight, ""), (eight, on_eight), (merged, ""), (mixed, "")]
        for (folder, adapter), (logits, linears, off) in zip(pairs, self.references(rows, *pairs)):
            with self.subTest(f"{folder.name} {adapter and adapter.name}"):
                self.assertEqual(linears, 8 if folder == mixed else 14)
                self.assertLess(self.distance(logits, self.logits(folder, rows, adapter or None)), LOGITS_TOLERANCE)
                self.assertLess(off, PRODUCTS_OFF)
        # The bounds of the golden files' README.
        lines = self.in_python(COMPARE, *[folder / "model.safetensors" for folder in (base, four, eight)]).splitlines()
        self.assertEqual(len(lines), 14)
        for line in lines:
            codes, absmax, nested = map(float, line.split())
            self.assertEqual(codes, 0)
            self.assertLessEqual(absmax, 1)
            self.assertLess(nested, 1e-6)


if __name__ == "__main__":
    main_or_skip(PYTHON, *MODULES, setup="scripts/setup.sh --python-peers")
