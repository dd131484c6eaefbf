#!/usr/bin/env python3
"""Times a peer's QLoRA step on rows with images, of a Qwen2.5-VL folder with random weights.

    peer_vision_step.py {unsloth|hf} MODEL {unsloth|on|off} BATCH LENGTH IMAGES SIDE {frozen|tower}

MODEL: what `unsloth-train init --shape qwen2.5-vl-7b --quantize nf4` wrote, with tokenizer and processor files beside.
IMAGES of SIDE x SIDE pixels a row, a multiple of 28. tower: adapters in the tower, too. Needs torch, transformers, peft,
bitsandbytes and, for unsloth, unsloth. Prints one line of JSON.
"""

import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", UNSLOTH_DISABLE_STATISTICS="1", TOKENIZERS_PARALLELISM="false")
RANK = 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def unsloth_model(folder, length, checkpointing, tower):
    from unsloth import FastVisionModel

    model, _ = FastVisionModel.from_pretrained(
        folder, max_seq_length=length, load_in_4bit=True, use_gradient_checkpointing=checkpointing
    )
    model = FastVisionModel.get_peft_model(
        model,
        finetune_vision_layers=tower,
        finetune_language_layers=True,
        finetune_attention_modules=True,
        finetune_mlp_modules=True,
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0,
        bias="none",
        random_state=1,
    )
    FastVisionModel.for_training(model)
    return model


def hf_model(folder, checkpointing, tower):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa"
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    targets = TARGETS if tower else r".*language_model.*\.(" + "|".join(TARGETS) + ")"
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets, lora_dropout=0))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train()
    return model


def inputs(config, batch, length, images, side):
    import torch

    patches, merge = side // config.vision_config.patch_size, config.vision_config.spatial_merge_size
    tokens = patches * patches // merge**2
    ids = torch.randint(1000, 100000, (batch, length), device="cuda")
    place = 0
    for _ in range(images):
        ids[:, place] = config.vision_start_token_id
        ids[:, place + 1 : place + 1 + tokens] = config.image_token_id
        place += 1 + tokens
    seen = ids == config.image_token_id
    values = (
        config.vision_config.in_channels * config.vision_config.temporal_patch_size * config.vision_config.patch_size**2
    )
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(seen, -100),
        "mm_token_type_ids": seen.int(),
        "pixel_values": torch.randn(batch * images * patches * patches, values, device="cuda"),
        "image_grid_thw": torch.tensor([[1, patches, patches]] * (batch * images), device="cuda"),
    }


def main():
    who, folder, checkpointing, batch, length, images, side, part = sys.argv[1:9]
    keep = {"unsloth": "unsloth", "on": True, "off": False}[checkpointing]
    if who == "unsloth":
        model = unsloth_model(folder, int(length), keep, part == "tower")
    else:
        model = hf_model(folder, keep, part == "tower")
    import bitsandbytes
    import torch

    given = inputs(model.config, int(batch), int(length), int(images), int(side))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(6):
        start = time.monotonic()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    median = sorted(times)[len(times) // 2]
    print(
        json.dumps(
            {
                "peer": who,
                "options": sys.argv[3:],
                "step_ms": round(median * 1e3, 1),
                "tokens_per_second": round(int(batch) * int(length) / median),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
                "trained": sum(parameter.numel() for parameter in trained),
                "loss": round(loss.item(), 4),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
