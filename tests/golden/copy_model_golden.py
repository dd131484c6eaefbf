#!/usr/bin/env python3
"""Copies what tests/model and tests/train need from the reference collection into models/, forward/ and trajectory/.

usage: copy_model_golden.py EXPANDED COMPRESSED   (the expanded collection, and the one with .xz files)

Large reference tensors are thinned out: every tensor's L2 norm, sum and sum of a signed pattern go to checksums.json (fp64
sums), and only the tensors that `keep` accepts are stored in full.
"""

import array
import json
import math
import pathlib
import shutil
import struct
import sys

expanded, compressed = (pathlib.Path(p) for p in sys.argv[1:3])
here = pathlib.Path(__file__).parent
ARCHITECTURES = ["llama_tied", "llama_bias", "mistral_window", "qwen2", "qwen3"]


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        for name, t in header.items()
    }


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, (_, _, data) in sorted(tensors.items()))
    )


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def checksums(tensors):
    sums = {}
    for name, (dtype, _, data) in sorted(tensors.items()):
        assert dtype == "F32"
        values = array.array("f", data)
        sums[name] = {
            "l2": math.sqrt(math.fsum(v * v for v in values)),
            "sum": math.fsum(values),
            "pattern": math.fsum(v * ((i * 7 + 3) % 11 - 5) for i, v in enumerate(values)),
        }
    return sums


def first_rows(tensor, rows):
    dtype, shape, data = tensor
    width = 4 * math.prod(shape[1:])
    return dtype, [rows, *shape[1:]], data[: rows * width]


def models():
    for name in ["small_llama/bf16", "tiny_llama/nf4_dq"] + [f"forward/arch/{a}" for a in ARCHITECTURES]:
        target = here / "models" / name.replace("forward/arch/", "")
        copy(expanded / name / "config.json", target / "config.json")
        copy(compressed / name / "model.safetensors.xz", target / "model.safetensors.xz")


def forward():
    for name in ARCHITECTURES:
        copy(expanded / f"forward/arch/{name}.json", here / f"forward/{name}.json")
        logits = read(expanded / f"forward/arch/{name}.logits.safetensors")
        write(here / f"forward/{name}.logits.safetensors", logits)
    for name in ["main_inputs.json", "main_checksums.json", "rope_types.json", "rope_logits.safetensors"]:
        copy(expanded / "forward" / name, here / "forward" / name)
    main = read(expanded / "forward/main_logits.safetensors")
    write(here / "forward/main_nf4_dq.safetensors", {"logits.every4th": main["logits.nf4_dq.every4th"]})


def trajectory(name, keep_gradient, keep_final, xz_initial=False):
    source, target = expanded / "trajectory" / name, here / "trajectory" / name
    for file in ["batches.json", "metrics.json", "initial/adapter_config.json"]:
        copy(source / file, target / file)
    if xz_initial:
        copy(
            compressed / "trajectory" / name / "initial/adapter_model.safetensors.xz",
            target / "initial/adapter_model.safetensors.xz",
        )
    else:
        copy(source / "initial/adapter_model.safetensors", target / "initial/adapter_model.safetensors")
    kept = {}
    gradients, final = read(source / "gradients_step1.safetensors"), read(source / "final/adapter_model.safetensors")
    for prefix, tensors, keep in (("gradient_step1.", gradients, keep_gradient), ("final.", final, keep_final)):
        for tensor_name, tensor in tensors.items():
            if "layers" not in tensor_name:
                kept[prefix + tensor_name] = first_rows(tensor, 64)
            elif keep(tensor_name):
                kept[prefix + tensor_name] = tensor
    write(target / "selected.safetensors", kept)
    (target / "checksums.json").write_text(
        json.dumps({"gradient_step1": checksums(gradients), "final": checksums(final)}, indent=0) + "\n"
    )


def full():
    for file in ["batches.json", "metrics.json", "tensors.json", "selected.safetensors"]:
        copy(expanded / "trajectory/full" / file, here / "trajectory/full" / file)


def everything(_):
    return True


models()
forward()
trajectory("lora", lambda n: ".layers.0." in n, lambda n: ".layers.3.self_attn" in n, xz_initial=True)
trajectory("rslora", lambda n: ".layers.0." in n, lambda n: ".layers.1." in n)
trajectory("packed", lambda n: ".layers.0." in n, lambda n: ".layers.1." in n)
trajectory("patterns", everything, everything)
trajectory("modules_to_save", everything, everything, xz_initial=True)
trajectory("dpo", lambda n: ".layers.0." in n, lambda n: ".layers.1." in n)
trajectory("lora_plus", lambda n: ".layers.0." in n, lambda n: ".layers.1." in n)
trajectory("dora", lambda n: ".layers.0." in n, lambda n: ".layers.1." in n, xz_initial=True)
full()
