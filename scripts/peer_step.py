#!/usr/bin/env python3
"""What a peer's QLoRA step takes for what `unsloth-train bench step` measures, on the same folder:

    python3 scripts/peer_step.py unsloth|hf MODEL [--batch 8] [--seq 2048] [--r 16] [--checkpointing off|on|unsloth]

A 4-bit folder (`unsloth-train init --quantize nf4`; Unsloth also wants a tokenizer.json in it), LoRA on all
projections, bf16, 8-bit AdamW, clipping, random tokens: three steps ahead, then the median of eight. Needs a GPU and
Unsloth, or transformers, peft and bitsandbytes (scripts/python_peers.txt).
"""

import argparse
import json
import time

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS += ["in_proj_qkv", "in_proj_z", "out_proj"]  # of gated delta nets


def of_unsloth(asked):
    from unsloth import FastLanguageModel  # before torch, as it asks for
    import torch

    model, _ = FastLanguageModel.from_pretrained(
        asked.model, max_seq_length=asked.seq, dtype=torch.bfloat16, load_in_4bit=True
    )
    checkpointing = {"off": False, "on": True, "unsloth": "unsloth"}[asked.checkpointing]
    return FastLanguageModel.get_peft_model(
        model, r=asked.r, target_modules=PROJECTIONS, lora_alpha=asked.r, use_gradient_checkpointing=checkpointing
    )


def of_transformers(asked):
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        asked.model, dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa"
    )
    model.requires_grad_(False)
    config = peft.LoraConfig(r=asked.r, lora_alpha=asked.r, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    if asked.checkpointing != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    for value in model.parameters():
        if value.requires_grad:
            value.data = value.data.float()
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["unsloth", "hf"])
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--r", type=int, default=16)
    parser.add_argument("--checkpointing", choices=["off", "on", "unsloth"], default="off")
    asked = parser.parse_args()

    model = {"unsloth": of_unsloth, "hf": of_transformers}[asked.peer](asked).train()
    import bitsandbytes
    import torch

    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    random = torch.Generator(device="cuda").manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (asked.batch, asked.seq), device="cuda", generator=random)
    seconds = []
    for step in range(11):
        if step == 3:
            seconds.clear()
            torch.cuda.reset_peak_memory_stats()
        begun = time.monotonic()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begun)
    median = sorted(seconds)[len(seconds) // 2]
    print(
        json.dumps(
            vars(asked)
            | {
                "step_ms": round(median * 1e3, 1),
                "tokens_per_second": round(asked.batch * asked.seq / median),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
