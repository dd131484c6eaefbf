#!/usr/bin/env python3
"""Loads exported files with llama.cpp: its logits against transformers' (tests/golden/forward), its tokens against ours.

    pip install llama-cpp-python==0.3.36 numpy      (builds llama.cpp; LLAMA_CPP_LIB_PATH names a folder with its libraries instead)
    UNSLOTH_TRAIN=build/release/unsloth-train gguf_llama_cpp.py [TOKENIZER_FOLDER TEXTS.jsonl]

Run by hand; exit status 1 when something differs by more than fp32's noise. Without arguments it exports the golden models as f32 (architectures,
RoPE types, a 4-bit base); with a tokenizer's folder and rows of {"text"} it counts the texts that llama.cpp splits otherwise.
"""

import ctypes
import json
import lzma
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np

PROGRAM = os.environ["UNSLOTH_TRAIN"]
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TOLERANCE = 1e-4
UNSUPPORTED = {"dynamic", "yarn_options"}  # llama.cpp has no dynamic RoPE, and takes YaRN's betas from its command line


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {
        name: np.frombuffer(body[slice(*e["data_offsets"])], np.float32).reshape(e["shape"])
        for name, e in header.items()
        if name != "__metadata__"
    }


def export(folder, out, *more):
    done = subprocess.run(
        [PROGRAM, "export", "gguf", "--model", folder, "--out", out, *more], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)


def load(path, vocab_only=False):
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = vocab_only
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        sys.exit(f"llama.cpp does not load {path}")
    return model


def logits(path, ids):
    model, parameters = load(path), llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 256
    parameters.type_k = parameters.type_v = 0  # the cache in fp32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    if llama_cpp.llama_decode(context, batch):
        sys.exit(f"llama.cpp cannot run {path}")
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (width,)).copy() for i in range(len(ids))]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def unpack(source, target, changes):
    target.mkdir()
    for file in source.iterdir():
        data = file.read_bytes()
        (target / file.name.removesuffix(".xz")).write_bytes(lzma.decompress(data) if file.suffix == ".xz" else data)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((GOLDEN / "tokenizer" / "llama3_small" / "tokenizer.json").read_text())
    vocab = {chr(33 + i): i for i in range(90)} | {"ab": 90}  # fits the smallest model
    tokenizer |= {
        "added_tokens": [],
        "post_processor": None,
        "model": tokenizer["model"] | {"vocab": vocab, "merges": [["a", "b"]]},
    }
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))


def compare(name, folder, source, ids, expected, rows, changes=None):
    unpack(GOLDEN / source, folder / name, changes or {})
    export(folder / name, folder / f"{name}.gguf", "--type", "f32")
    found = logits(folder / f"{name}.gguf", ids)[rows]
    worst = float(np.abs(found - expected).max())
    print(
        f"{name:16} {len(ids)} tokens: largest difference {worst:.1e}, spread {float(np.ptp(expected)):.1f}, "
        f"same choices {(found.argmax(1) == expected.argmax(1)).mean():.0%}"
    )
    return worst < TOLERANCE


def compare_models(folder):
    forward, good = GOLDEN / "forward", True
    for name in ("llama_bias", "llama_tied", "mistral_window", "qwen2", "qwen3"):
        facts, expected = (
            json.loads((forward / f"{name}.json").read_text()),
            read_safetensors(forward / f"{name}.logits.safetensors")["logits"],
        )
        row = next(i for i, mask in enumerate(facts["attention_mask"]) if all(mask))
        seen = slice(0, 16) if name == "mistral_window" else slice(None)  # llama.cpp knows no window
        good &= compare(name, folder, f"models/{name}", facts["input_ids"][row], expected[row][seen], seen)
    ropes, expected = (
        json.loads((forward / "rope_types.json").read_text()),
        read_safetensors(forward / "rope_logits.safetensors"),
    )
    for name, facts in ropes["types"].items():
        if name not in UNSUPPORTED:
            good &= compare(
                f"rope_{name}",
                folder,
                "models/small_llama/bf16",
                ropes["input_ids"],
                expected[name],
                slice(1, None, 2),
                facts["config"],
            )
    inputs = json.loads((forward / "main_inputs.json").read_text())
    row = next(i for i, mask in enumerate(inputs["attention_mask"]) if all(mask))
    expected = next(iter(read_safetensors(forward / "main_nf4_dq.safetensors").values()))[row]
    good &= compare(
        "tiny_llama_nf4",
        folder,
        "models/tiny_llama/nf4_dq",
        inputs["input_ids"][row],
        expected,
        slice(0, 4 * len(expected), 4),
    )
    return good


def compare_tokens(folder, source, texts):
    """Exports the smallest model that the vocabulary fits, and counts the texts whose tokens differ."""
    rows = texts.read_text().splitlines()
    encoded = subprocess.run(
        [PROGRAM, "tokenize", "--tokenizer", source], input="\n".join(rows), capture_output=True, text=True, check=True
    ).stdout
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    size = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": size,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    norms = ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
    linears = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    shapes = {"model.embed_tokens.weight": [size, 32]} | {f"{name}.weight": [32] for name in norms}
    shapes |= {f"model.layers.0.{name}.weight": [32, 32] for name in linears}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    export(folder, folder / "m.gguf", "--tokenizer", source, "--type", "q8_0")
    vocab = llama_cpp.llama_model_get_vocab(load(folder / "m.gguf", vocab_only=True))
    other = 0
    for row, line in zip(rows, encoded.strip().split("\n")):
        text = json.loads(row)["text"].encode()
        buffer = (llama_cpp.llama_token * (len(text) + 16))()
        count = llama_cpp.llama_tokenize(vocab, text, len(text), buffer, len(buffer), True, True)
        if list(buffer[:count]) != json.loads(line)["ids"]:
            other += 1
            print("differs:", text.decode()[:100])
    print(f"{other} of {len(rows)} texts differ")
    return other == 0


if __name__ == "__main__":
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        ok = (
            compare_tokens(scratch, *map(pathlib.Path, sys.argv[1:3])) if len(sys.argv) > 2 else compare_models(scratch)
        )
    sys.exit(not ok)
