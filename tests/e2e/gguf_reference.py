"""Compares an exported GGUF file with its source by means of the package `gguf` alone; gguf_test.py runs it.

    gguf_reference.py model FOLDER FILE.gguf TYPE      fields, tensors and bytes of a model
    gguf_reference.py adapter BASE FILE.gguf ADAPTER   of an adapter

Prints "all equal" and the errors of each type. Names come from gguf's tensor mapping, bytes from gguf.quants.quantize; types that
it cannot quantise to (Q4_K, Q5_K, Q6_K) are dequantised, and must be nearer than plain rounding with exact scales.
"""

import json
import pathlib
import re
import struct
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_k_m": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k_m": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
}
BASE_TYPES = {
    "f32": Type.F32,
    "f16": Type.F16,
    "bf16": Type.BF16,
    "q8_0": Type.Q8_0,
    "q4_0": Type.Q4_0,
    "q4_k_m": Type.Q4_K,
    "q5_k_m": Type.Q5_K,
    "q6_k": Type.Q6_K,
}
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def with_experts_joined(weights):
    """Those of all experts of a layer as one, under the name without their number."""
    joined = {}
    for name, weight in weights.items():
        joined.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append((name, weight))
    number = lambda item: int(re.search(r"\.experts\.(\d+)\.", item[0])[1])
    return {
        name: np.stack([weight for _, weight in sorted(parts, key=number)]) if ".experts." in name else parts[0][1]
        for name, parts in joined.items()
    }


def equal(found, expected, what):
    if isinstance(found, np.ndarray) or isinstance(expected, np.ndarray):
        same = np.array_equal(found, expected)
    else:
        same = found == expected
    if not same:
        sys.exit(f"{what}: found {str(found)[:300]}, expected {str(expected)[:300]}")


def fields_of(reader):
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


def turned(weight, heads):
    """Halves of each head interleaved."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def turn_if_needed(config, name, weight):
    if ARCHITECTURES[config["model_type"]] == gguf.MODEL_ARCH.LLAMA:
        for module, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{module}." in name:
                return turned(weight, config[heads])
    return weight


def wanted_type(config, kind, name, shape):
    """llama-quantize's choice."""
    base = BASE_TYPES[kind]
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return Type.F32
    block = gguf.GGML_QUANT_SIZES[base][0]
    head = name == "output.weight" or (name == "token_embd.weight" and config["tie_word_embeddings"])
    if head and block > 1 and base != Type.Q8_0:
        base = Type.Q8_0 if shape[-1] % block else Type.Q6_K
    elif block > 1 and config.get("num_experts") == 8 and ("attn_k." in name or "attn_v." in name):
        base = Type.Q8_0
    elif kind == "q4_k_m" and config.get("num_experts") == 8 and "attn_output" in name:
        base = Type.Q5_K
    elif kind in ("q4_k_m", "q5_k_m") and ("attn_v" in name or "ffn_down" in name):
        layer, layers = int(name.split(".")[1]), config["num_hidden_layers"]
        if layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2:
            base = Type.Q6_K
    if shape[-1] % gguf.GGML_QUANT_SIZES[base][0]:
        base = {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}.get(base, base)
        if shape[-1] % gguf.GGML_QUANT_SIZES[base][0]:
            base = Type.F16
    return base


def rounded_plainly(x, kind):
    """Codes of each group spread over its range (Q6_K: from the extreme value to its negative); scale and minimum exact."""
    if kind == Type.Q6_K:
        groups = x.reshape(-1, 16).astype(np.float64)
        scale = np.take_along_axis(groups, np.abs(groups).argmax(1, keepdims=True), 1) / -32
        return (np.clip(np.round(groups / scale), -32, 31) * scale).reshape(x.shape)
    groups = x.reshape(-1, 32).astype(np.float64)
    low, step = groups.min(1, keepdims=True), np.ptp(groups, axis=1, keepdims=True) / (15 if kind == Type.Q4_K else 31)
    return (np.round((groups - low) / step) * step + low).reshape(x.shape)


def rms(x):
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def compare_tensor(tensor, expected, kind, errors):
    equal(tensor.tensor_type, kind, f"{tensor.name}: type")
    equal([int(n) for n in tensor.shape], list(reversed(expected.shape)), f"{tensor.name}: shape")
    data = np.ascontiguousarray(tensor.data)
    values = gguf.quants.dequantize(data, kind).reshape(expected.shape).astype(np.float64)
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        error, bound = rms(values - expected), rms(rounded_plainly(expected, kind) - expected)
        if error > bound:
            sys.exit(f"{tensor.name}: {kind.name} is off by {error}, plain rounding by {bound}")
    else:
        ours = np.ascontiguousarray(gguf.quants.quantize(np.ascontiguousarray(expected), kind))
        equal(data.view(np.uint8).reshape(-1), ours.view(np.uint8).reshape(-1), f"{tensor.name}: {kind.name}")
    squares = errors.setdefault(kind.name, [0.0, 0.0])
    squares[0] += float(np.square(values - expected).sum())
    squares[1] += float(np.square(expected, dtype=np.float64).sum())


def expected_fields(config, folder, kind):
    arch = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    fields = {
        "general.architecture": arch,
        "general.type": "model",
        "general.name": folder.name,
        "general.file_type": int(FILE_TYPES[kind]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": config["head_dim"],
        f"{arch}.attention.value_length": config["head_dim"],
        f"{arch}.vocab_size": config["vocab_size"],
        f"{arch}.attention.layer_norm_rms_epsilon": float(np.float32(config["rms_norm_eps"])),
        f"{arch}.rope.freq_base": config["rope_theta"],
        f"{arch}.rope.dimension_count": config["head_dim"],
    }
    if "num_experts" in config:
        fields |= {
            f"{arch}.expert_count": config["num_experts"],
            f"{arch}.expert_used_count": config["num_experts_per_tok"],
            f"{arch}.expert_feed_forward_length": config["moe_intermediate_size"],
        }
    if config.get("rope_scaling", {}).get("rope_type") == "linear":
        fields |= {
            f"{arch}.rope.scaling.type": "linear",
            f"{arch}.rope.scaling.factor": config["rope_scaling"]["factor"],
        }
    return fields


def looks_like_control(text):
    return text.startswith("<|") and text.endswith("|>")


def compare_vocabulary(found, config, folder):
    """What tokenizer.json says, apart from the scores that it has none of."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    model = tokenizer["model"]
    texts = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    kinds = [int(gguf.TokenType.UNUSED)] * len(texts)
    sentencepiece = model["byte_fallback"]
    for text, i in model["vocab"].items():
        byte = sentencepiece and len(text) == 6 and text.startswith("<0x")
        texts[i], kinds[i] = text, int(gguf.TokenType.BYTE if byte else gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        control = token["special"] or looks_like_control(token["content"])
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = int(gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED)
    equal(found.pop("tokenizer.ggml.tokens"), texts, "tokens")
    equal(found.pop("tokenizer.ggml.token_type"), kinds, "token types")
    equal(found.pop("tokenizer.ggml.model"), "llama" if sentencepiece else "gpt2", "tokenizer.ggml.model")
    pre = "default" if sentencepiece else {True: "llama-bpe", False: "qwen2"}[model["ignore_merges"]]
    equal(found.pop("tokenizer.ggml.pre"), pre, "tokenizer.ggml.pre")
    if sentencepiece:
        scores = dict(zip(texts, found.pop("tokenizer.ggml.scores")))
        merged = [scores["".join(m.split(" ") if isinstance(m, str) else m)] for m in model["merges"]]
        equal(merged, sorted(merged, reverse=True), "scores by rank")
        equal(found.pop("tokenizer.ggml.add_space_prefix"), True, "add_space_prefix")
    else:
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        equal(found.pop("tokenizer.ggml.merges"), merges, "merges")
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]} | model["vocab"]
    for role, key in (("bos", "bos"), ("eos", "eos"), ("padding", "pad"), ("unknown", "unk")):
        entry = settings.get(f"{key}_token")
        text = entry["content"] if isinstance(entry, dict) else entry
        value = found.pop(f"tokenizer.ggml.{role}_token_id", None)
        if text is not None:
            equal(value, ids[text], f"{role} token")
    for side in ("bos", "eos"):
        processor = json.dumps(tokenizer["post_processor"])
        template = (
            f'"id": {json.dumps(settings.get(side + "_token"))}' in processor and "TemplateProcessing" in processor
        )
        equal(found.pop(f"tokenizer.ggml.add_{side}_token"), template, f"add_{side}_token")
    if isinstance(settings.get("chat_template"), str):
        equal(found.pop("tokenizer.chat_template"), settings["chat_template"], "chat template")


def compare_model(folder, path, kind):
    config = json.loads((folder / "config.json").read_text())
    reader = gguf.GGUFReader(path)
    found = fields_of(reader)
    compare_vocabulary(found, config, folder)
    equal(found, expected_fields(config, folder, kind), "fields")
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    tensors, errors = {tensor.name: tensor for tensor in reader.tensors}, {}
    for name, weight in with_experts_joined(read_safetensors(folder / "model.safetensors")).items():
        renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
        compare_tensor(
            tensors.pop(renamed),
            turn_if_needed(config, name, weight),
            wanted_type(config, kind, renamed, weight.shape),
            errors,
        )
    if config.get("rope_scaling", {}).get("rope_type") == "llama3":
        compare_divisors(np.asarray(tensors.pop("rope_freqs.weight").data), config)
    equal(list(tensors), [], "tensors that nobody asked for")
    print("all equal; relative errors:", {name: f"{np.sqrt(a / b):.2e}" for name, (a, b) in errors.items()})


def compare_divisors(found, config):
    """Llama 3.1's formula: slow turns are slowed down by the factor, fast ones not, and between them it goes over smoothly."""
    scaling, d = config["rope_scaling"], config["head_dim"]
    wavelengths = 2 * np.pi * config["rope_theta"] ** (np.arange(0, d, 2) / d)
    original, low, high = (
        scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    if not np.allclose(found, expected, rtol=1e-6, atol=0):
        sys.exit(f"rope_freqs: found {found}, expected {expected}")


def compare_adapter(base, path, adapter):
    config, lora = (json.loads((p).read_text()) for p in (base / "config.json", adapter / "adapter_config.json"))
    arch = ARCHITECTURES[config["model_type"]]
    reader = gguf.GGUFReader(path)
    found = fields_of(reader)
    alpha = found.pop("adapter.lora.alpha")
    equal(
        found,
        {
            "general.architecture": gguf.MODEL_ARCH_NAMES[arch],
            "general.type": "adapter",
            "adapter.type": "lora",
            "general.name": adapter.name,
            "general.quantization_version": gguf.GGML_QUANT_VERSION,
        },
        "fields",
    )
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors = {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}
    weights = with_experts_joined(read_safetensors(adapter / "adapter_model.safetensors"))
    for name, a in weights.items():
        if not name.endswith(".lora_A.weight"):
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        renamed = names.get_name(module + ".weight", try_suffixes=(".weight",))
        b = turn_if_needed(config, module + ".", weights[name.replace("lora_A", "lora_B")])
        last = module.split(".")[-1]
        if ".experts." in module and last != "down_proj":  # llama.cpp's gate and up have the A of both
            own = slice(0, a.shape[1]) if last == "gate_proj" else slice(a.shape[1], 2 * a.shape[1])
            both = np.zeros((*b.shape[:2], 2 * b.shape[2]), b.dtype)
            both[..., own] = b
            found_a = tensors.pop(renamed + ".lora_a")
            equal(found_a[:, own], a, renamed + ".lora_a")
            a, b = found_a, both
        else:
            equal(tensors.pop(renamed + ".lora_a"), a, renamed + ".lora_a")
        rank = lora.get("rank_pattern", {}).get(last, lora["r"])
        own_alpha = lora.get("alpha_pattern", {}).get(last, lora["lora_alpha"])
        scale = own_alpha / (np.sqrt(rank) if lora.get("use_rslora") else rank)
        found_rank = a.shape[-2]
        equal(found_rank, rank if b.shape[-1] == rank else 2 * rank, "rank")
        if not np.allclose(tensors.pop(renamed + ".lora_b") * (alpha / found_rank), b * scale, rtol=1e-6, atol=0):
            sys.exit(f"{renamed}: another scale than PEFT's {scale}")
    equal(list(tensors), [], "tensors that nobody asked for")
    print("all equal")


if __name__ == "__main__":
    what, source, path, more = sys.argv[1:]
    if what == "model":
        compare_model(pathlib.Path(source), path, more)
    else:
        compare_adapter(pathlib.Path(source), path, pathlib.Path(more))
