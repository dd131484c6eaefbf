"""Makes smollm3/: a tiny random SmolLM3, two rows' logits and greedy answers, in fp32 on the CPU.

Run with transformers 5.23.0: python3 make_smollm3.py FOLDER
"""

import json
import lzma
import sys
from pathlib import Path

import torch
from safetensors.torch import save
from transformers import SmolLM3Config, SmolLM3ForCausalLM


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if path.suffix == ".xz" else data)


def main(folder):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = SmolLM3Config(
        vocab_size=304, hidden_size=64, intermediate_size=104, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True,
        sliding_window=9, pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters={"rope_type": "default",
        "rope_theta": 10000.0}, attn_implementation="eager",
    )  # fmt: skip
    model = SmolLM3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            drawn = torch.randn_like(value) * (0.3 if value.dim() == 1 else 1.2 / value.shape[-1] ** 0.5)
            value.copy_((drawn + 1 if value.dim() == 1 else drawn).bfloat16().float())
    rows = [torch.randint(3, 304, (40,)).tolist(), torch.randint(3, 304, (21,)).tolist()]
    logits = {f"logits.{i}": model(torch.tensor([row])).logits[0].detach() for i, row in enumerate(rows)}
    double = model.double()
    off = max(
        (double(torch.tensor([r])).logits[0] - logits[f"logits.{i}"]).abs().max().item() for i, r in enumerate(rows)
    )
    model = model.float()
    answers = []
    for length in (5, 30):
        ids = rows[0][:length]
        for _ in range(12):
            ids = ids + [model(torch.tensor([ids])).logits[0, -1].argmax().item()]
        answers.append({"text": str(length), "prompt_ids": ids[:length], "ids": ids[length:]})
    with torch.autocast("cpu", torch.bfloat16):
        rounded = [model(torch.tensor([row])).logits[0].float() for row in rows]
    rms = max((got - logits[f"logits.{i}"]).square().mean().sqrt().item() for i, got in enumerate(rounded))
    state = {k: v.bfloat16() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    config.dtype = "bfloat16"
    config.architectures = ["SmolLM3ForCausalLM"]
    forward = {"rows": [{"input_ids": row} for row in rows], "tolerance": {"logits_max_abs": max(20 * off, 2e-5)},
               "spread": {"fp64_max_abs": off, "bf16_rms": rms}}  # fmt: skip
    write(folder / "model/config.json", (config.to_json_string(use_diff=False)).encode())
    write(folder / "model/model.safetensors.xz", save(state))
    write(folder / "forward.json.xz", json.dumps(forward).encode())
    write(folder / "logits.safetensors.xz", save(logits))
    write(folder / "generate.json", json.dumps(answers, indent=1).encode())
    print("off fp64", off, "bf16 rms", rms, "logits rms", logits["logits.0"].square().mean().sqrt().item())


main(Path(sys.argv[1]))
