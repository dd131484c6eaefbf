#!/usr/bin/env python3
"""What transformers' generate takes for what `unsloth-train bench generate` measures, on the same folder:

    python3 scripts/peer_generate.py MODEL [--rows 1 64] [--prompt 256] [--new 512] [--adapter DIR]

Greedy answers to random prompts, all rows as long as each other; needs a GPU, transformers, bitsandbytes for a 4-bit
folder and peft for an adapter (scripts/python_peers.txt). One JSON line for each number of rows.
"""

import argparse
import json
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--adapter")
    asked = parser.parse_args()

    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        asked.model, dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa"
    )
    if asked.adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, asked.adapter)
    model.eval()
    generator = torch.Generator(device="cuda").manual_seed(0)
    for rows in asked.rows:
        shape = (rows, asked.prompt)
        ids = torch.randint(0, model.config.vocab_size, shape, device="cuda", generator=generator)

        def seconds(new, ids=ids):
            torch.cuda.synchronize()
            begin = time.time()
            with torch.inference_mode():
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    min_new_tokens=new,
                    max_new_tokens=new,
                    pad_token_id=0,
                )
            torch.cuda.synchronize()
            return time.time() - begin

        seconds(8)
        prompts, took = seconds(1), seconds(asked.new)
        result = {
            "peer": "transformers " + transformers.__version__,
            "device": torch.cuda.get_device_name(0),
            "rows": rows,
            "prompt_tokens": asked.prompt,
            "new_tokens": asked.new,
            "prompt_tokens_per_second": rows * asked.prompt / prompts,
            "tokens_per_second": rows * asked.new / took,
            "decode_tokens_per_second": rows * (asked.new - 1) / (took - prompts),
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
