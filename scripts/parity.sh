#!/usr/bin/env bash
# Shows that bf16 learns what fp32 learns: trains an 82 M Llama from scratch (finetuning_type full) in both, then a QLoRA adapter
# on the result in both, on the example's text, and compares the losses step by step. Then the same base with outlier channels:
# QLoRA with the base's products in fp8 (both ways, and backward alone), in int8 and in bf16.
#     scripts/parity.sh BINARY OUT [STEPS] [SEED...]
# BINARY may be a wrapped command ("scripts/run_with_torch.sh .../unsloth-train"). Needs a GPU to take minutes, not hours. The runs
# in 8 bit and beside them are made with each of the seeds (7), of adapters and of the order of rows: of rows that are learnt by
# heart one seed's difference is up to a tenth of a percent off the mean.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra run <<<"$1"
out=$2
steps=${3:-600}
seeds=("${@:4}")
[ ${#seeds[@]} -gt 0 ] || seeds=(7)
mkdir -p "$out"
[ -f examples/legal/corpus.jsonl ] || python3 examples/legal/make_corpus.py
[ -f "$out/init/config.json" ] || "${run[@]}" init --model_config configs/parity/model.json --tokenizer examples/legal/base --dtype bfloat16 \
    --seed 1 --out "$out/init"

common=(--data.train_file examples/legal/corpus.jsonl --format text --max_seq_length 384 --per_device_train_batch_size 16
        --gradient_accumulation_steps 1 --lr_scheduler_type cosine --num_train_epochs 1000 --log_level warning)
for dtype in float32 bfloat16; do
    "${run[@]}" "${common[@]}" --seed 7 --model.path "$out/init" --finetuning_type full --dtype $dtype --max_steps "$steps" --learning_rate 6e-4 \
        --warmup_steps 50 --adam_beta2 0.95 --weight_decay 0.05 --optim adamw_torch --output_dir "$out/full-$dtype" --overwrite_output_dir true
done
for dtype in float32 bfloat16; do
    "${run[@]}" "${common[@]}" --seed 7 --model.path "$out/full-float32" --dtype $dtype --data.train_file examples/legal/train.jsonl --format alpaca \
        --template alpaca --max_steps $((steps / 4)) --learning_rate 5e-4 --warmup_steps 10 --eval_file examples/legal/heldout.jsonl \
        --output_dir "$out/qlora-$dtype" --overwrite_output_dir true
done
# 8 bit against bf16 on the same base with outlier channels (16-bit: in NF4 the small columns that read an outlier would become zero).
[ -d "$out/outliers" ] || python3 scripts/outlier_channels.py "$out/full-float32" "$out/outliers"
# Twice: on the corpus, and on the few hundred rows of the example, which that many steps learn by heart.
for seed in "${seeds[@]}"; do
    for compute in auto fp8_both fp8_backward int8; do
        fp8=("${run[@]}" "${common[@]}" --seed "$seed" --model.path "$out/outliers" --load_in_4bit false --dtype bfloat16
             --compute_dtype $compute --max_steps "$steps" --learning_rate 5e-4 --warmup_steps 10)
        "${fp8[@]}" --output_dir "$out/corpus-$compute-$seed" --overwrite_output_dir true
        "${fp8[@]}" --data.train_file examples/legal/train.jsonl --format alpaca --template alpaca --eval_file examples/legal/heldout.jsonl \
            --output_dir "$out/rows-$compute-$seed" --overwrite_output_dir true
    done
done
python3 - "$out" "${seeds[@]}" <<'PY'
import json, sys
out, seeds = sys.argv[1], sys.argv[2:]
def read(name):
    rows = [json.loads(line) for line in open(f"{out}/{name}/metrics.jsonl")]
    return [r["loss"] for r in rows if "loss" in r], [r["eval_loss"] for r in rows if "eval_loss" in r]
mean = lambda v: sum(v) / len(v)
def compare(kind, first, second):
    (a, ea), (b, eb) = read(first), read(second)
    tail = max(1, len(a) // 10)
    result = {"parity": kind, "reference": first, "compared": second, "steps": len(a), "first_loss": a[0],
              "reference_mean": mean(a), "compared_mean": mean(b), "relative_difference_of_means": mean(b) / mean(a) - 1,
              "reference_last_tenth": mean(a[-tail:]), "compared_last_tenth": mean(b[-tail:]),
              "relative_difference": mean(b[-tail:]) / mean(a[-tail:]) - 1,
              "largest_step_difference": max(abs(x - y) for x, y in zip(a, b))}
    if ea:
        result.update(reference_eval_loss=ea[-1], compared_eval_loss=eb[-1])
    print(json.dumps(result))
    return result["relative_difference_of_means"]
compare("full", "full-float32", "full-bfloat16")
compare("qlora", "qlora-float32", "qlora-bfloat16")
for compute in ("fp8_both", "fp8_backward", "int8"):
    for data in ("corpus", "rows"):
        kind = f"{compute} {data}"
        differences = [compare(kind, f"{data}-auto-{seed}", f"{data}-{compute}-{seed}") for seed in seeds]
        if len(seeds) < 2:
            continue
        variance = sum((d - mean(differences)) ** 2 for d in differences) / (len(seeds) - 1)
        print(json.dumps({"parity": kind, "seeds": len(seeds), "relative_difference_of_means": mean(differences),
                          "standard_error": (variance / len(seeds)) ** 0.5}))
PY
