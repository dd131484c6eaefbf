"""Makes tower_lora/ of qwen3_vl, qwen2_5_vl and mllama: eight steps of LoRA on the tower's linears and some of the
language model's by transformers, PEFT and torch.optim.AdamW, in fp32 on the CPU, of the rows and images of lora/.

Run with transformers 5.24.0 (mllama: 5.23.0) and PEFT 0.21.2: python3 make_tower_lora.py [FAMILY...]
"""

import copy
import json
import lzma
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, save
from transformers import AutoModelForImageTextToText
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

HERE = Path(__file__).parent
TOWER = {
    "qwen2_5_vl": r".*visual\.(.*\.)?(attn\.qkv|attn\.proj|gate_proj|up_proj|down_proj|mlp\.0|mlp\.2)",
    "qwen3_vl": r".*visual\.(.*\.)?(attn\.qkv|attn\.proj|linear_fc1|linear_fc2)",
    "mllama": r".*(vision_model\.(.*\.)?(q_proj|k_proj|v_proj|o_proj|fc1|fc2)|multi_modal_projector)",
}


def read(path):
    packed = path.with_name(path.name + ".xz")
    return lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if path.suffix == ".xz" else data)


class Rows:
    def __init__(self, folder):
        self.grids = json.loads(read(folder / "images.json"))
        self.bytes = load(read(folder / "pixels_uint8.safetensors"))
        self.batches = json.loads(read(folder / "lora/batches.json"))
        config = json.loads(read(folder / "model/processor_config.json"))["image_processor"]
        self.mean, self.std = (torch.tensor(config[key]).view(1, 3, 1) for key in ("image_mean", "image_std"))

    def pixels(self, name):
        """The processor's: both frames of a patch are the same."""
        values = ((self.bytes[name].double() / 255).float() - self.mean) / self.std
        return values.unsqueeze(2).expand(-1, -1, 2, -1).flatten(1)

    def inputs(self, row, dtype):
        ids = torch.tensor([row["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if row["images"]:
            inputs["mm_token_type_ids"] = (ids == 6).int()
            inputs["pixel_values"] = torch.cat([self.pixels(name) for name in row["images"]]).to(dtype)
            inputs["image_grid_thw"] = torch.tensor([self.grids[name]["image_grid_thw"] for name in row["images"]])
        return inputs


class TiledRows(Rows):
    """Of mllama, whose images are tiles; those of padding are zeros."""

    def pixels(self, name):
        values = ((self.bytes[name].double() / 255).float() - self.mean.unsqueeze(-1)) / self.std.unsqueeze(-1)
        return torch.nn.functional.pad(values, (0, 0, 0, 0, 0, 0, 0, 4 - len(values)))

    def inputs(self, row, dtype):
        ids = torch.tensor([row["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if row["images"]:
            tiles = [len(self.bytes[name]) for name in row["images"]]
            places = get_cross_attention_token_mask(row["input_ids"], 296)
            mask = convert_sparse_cross_attention_mask_to_dense([places], [tiles], 4, ids.shape[1])
            inputs["cross_attention_mask"] = torch.tensor(mask)
            inputs["pixel_values"] = torch.stack([self.pixels(name) for name in row["images"]])[None].to(dtype)
            inputs["aspect_ratio_ids"] = torch.tensor([[self.grids[name]["aspect_ratio_id"] for name in row["images"]]])
            inputs["aspect_ratio_mask"] = torch.tensor([[[int(t < n) for t in range(4)] for n in tiles]])
        return inputs


def train(model, rows, rates, dtype):
    """Losses, norms before clipping, tokens, and the first step's gradients by the adapter's names."""
    model = copy.deepcopy(model).to(dtype)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.0, weight_decay=0.01)
    steps, first = [], {}
    for number, (step, rate) in enumerate(zip(rows.batches, rates, strict=True)):
        total = 0
        tokens = sum(label != -100 for micro in step for row in micro for label in row["labels"][1:])
        for micro in step:
            for row in micro:
                logits = model(**rows.inputs(row, dtype)).logits[0, :-1]
                labels = torch.tensor(row["labels"][1:])
                loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens
                loss.backward()
                total += loss.item()
        if number == 0:
            first = {name.replace(".default", ""): p.grad.clone().float() for name, p in trained.items()}
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), 1.0).item()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"step": number + 1, "loss": total, "grad_norm": norm, "lr": rate, "tokens": tokens})
    return steps, first


def spread(steps, first, other_steps, other_first):
    pairs = list(zip(steps, other_steps, strict=True))
    return {
        "loss_max_abs": max(abs(a["loss"] - b["loss"]) for a, b in pairs),
        "grad_norm_max_rel": max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in pairs),
        "first_grad_max_rel_frobenius": max(
            ((first[name] - other).norm() / other.norm()).item() for name, other in other_first.items()
        ),
    }


def make(family):
    folder = HERE / family
    with tempfile.TemporaryDirectory() as name:
        for file in (folder / "model").iterdir():
            plain = file.name.removesuffix(".xz")
            (Path(name) / plain).write_bytes(read(file.with_name(plain)))
        base = AutoModelForImageTextToText.from_pretrained(name, dtype=torch.float32, attn_implementation="eager")
    targets = rf"(.*language_model\.layers\.([0-9]+)\..*(q_proj|v_proj))|({TOWER[family]})"
    torch.manual_seed(23)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_B" in key:
                value.copy_((torch.randn_like(value) * 0.05).bfloat16())
            if "lora_A" in key:
                value.copy_((torch.randn_like(value) / value.shape[1] ** 0.5).bfloat16())
    model.peft_config["default"].base_model_name_or_path = f"{family}/model"
    rows = TiledRows(folder) if family == "mllama" else Rows(folder)
    rates = [step["lr"] for step in json.loads(read(folder / "lora/metrics.json"))["steps"]]
    out = folder / "tower_lora"
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        write(out / "initial/adapter_config.json", (Path(name) / "adapter_config.json").read_bytes())
        write(out / "initial/adapter_model.safetensors.xz", (Path(name) / "adapter_model.safetensors").read_bytes())
    steps, first = train(model, rows, rates, torch.float32)
    double = spread(steps, first, *train(model, rows, rates, torch.float64))
    metrics = {
        "settings": {"base": f"{family}/model", "steps": len(steps), "weight_decay": 0.01, "max_grad_norm": 1.0},
        "tolerance": {
            "loss_max_abs": max(1e-5, 20 * double["loss_max_abs"]),
            "grad_norm_max_rel": max(2e-5, 20 * double["grad_norm_max_rel"]),
        },
        "spread": {"fp64": double},
        "steps": steps,
    }
    write(out / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode())
    write(out / "gradients_step1.safetensors.xz", save({k: v.contiguous() for k, v in first.items()}))
    of_tower = [name for name in first if ".language_model." not in name]
    print(family, len(of_tower), "of", len(first), "of the tower; fp64:", double, "losses", [s["loss"] for s in steps])
    assert all(first[name].norm() > 0 for name in of_tower)


def main():
    torch.set_num_threads(1)
    for family in sys.argv[1:] or TOWER:
        make(family)


main()
