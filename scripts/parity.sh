#!/usr/bin/env bash
# Shows that bf16 learns what fp32 learns: trains an 82 M Llama from scratch (finetuning_type full) in both, then a QLoRA adapter
# on the result in both, on the example's text, and compares the losses step by step. Then the same base with outlier channels:
# QLoRA with the base's products in fp8 (both ways, and backward alone), in int8 and in bf16.
#     scripts/parity.sh BINARY OUT [STEPS]
# BINARY may be a wrapped command ("scripts/run_with_torch.sh .../unsloth-train"). Needs a GPU to take minutes, not hours.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra run <<<"$1"
out=$2
steps=${3:-600}
mkdir -p "$out"
[ -f examples/legal/corpus.jsonl ] || python3 examples/legal/make_corpus.py
[ -f "$out/init/config.json" ] || "${run[@]}" init --model_config configs/parity/model.json --tokenizer examples/legal/base --dtype bfloat16 \
    --seed 1 --out "$out/init"

common=(--data.train_file examples/legal/corpus.jsonl --format text --max_seq_length 384 --per_device_train_batch_size 16
        --gradient_accumulation_steps 1 --lr_scheduler_type cosine --num_train_epochs 1000 --seed 7 --log_level warning)
for dtype in float32 bfloat16; do
    "${run[@]}" "${common[@]}" --model.path "$out/init" --finetuning_type full --dtype $dtype --max_steps "$steps" --learning_rate 6e-4 \
        --warmup_steps 50 --adam_beta2 0.95 --weight_decay 0.05 --optim adamw_torch --output_dir "$out/full-$dtype" --overwrite_output_dir true
done
for dtype in float32 bfloat16; do
    "${run[@]}" "${common[@]}" --model.path "$out/full-float32" --dtype $dtype --data.train_file examples/legal/train.jsonl --format alpaca \
        --template alpaca --max_steps $((steps / 4)) --learning_rate 5e-4 --warmup_steps 10 --eval_file examples/legal/heldout.jsonl \
        --output_dir "$out/qlora-$dtype" --overwrite_output_dir true
done
# 8 bit against bf16 on the same base with outlier channels (16-bit: in NF4 the small columns that read an outlier would become zero).
[ -d "$out/outliers" ] || python3 scripts/outlier_channels.py "$out/full-float32" "$out/outliers"
# Twice: on the corpus, and on the few hundred rows of the example, which that many steps learn by heart.
for compute in auto fp8_both fp8_backward int8; do
    fp8=("${run[@]}" "${common[@]}" --model.path "$out/outliers" --load_in_4bit false --dtype bfloat16 --compute_dtype $compute
         --max_steps "$steps" --learning_rate 5e-4 --warmup_steps 10)
    "${fp8[@]}" --output_dir "$out/corpus-$compute" --overwrite_output_dir true
    "${fp8[@]}" --data.train_file examples/legal/train.jsonl --format alpaca --template alpaca --eval_file examples/legal/heldout.jsonl \
        --output_dir "$out/rows-$compute" --overwrite_output_dir true
done
python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
def read(name):
    rows = [json.loads(line) for line in open(f"{out}/{name}/metrics.jsonl")]
    return [r["loss"] for r in rows if "loss" in r], [r["eval_loss"] for r in rows if "eval_loss" in r]
for kind, first, second in (("full", "full-float32", "full-bfloat16"), ("qlora", "qlora-float32", "qlora-bfloat16"),
                            ("fp8_both corpus", "corpus-auto", "corpus-fp8_both"), ("fp8_both rows", "rows-auto", "rows-fp8_both"),
                            ("fp8_backward corpus", "corpus-auto", "corpus-fp8_backward"),
                            ("fp8_backward rows", "rows-auto", "rows-fp8_backward"),
                            ("int8 corpus", "corpus-auto", "corpus-int8"), ("int8 rows", "rows-auto", "rows-int8")):
    (a, ea), (b, eb) = read(first), read(second)
    tail = max(1, len(a) // 10)
    mean = lambda v: sum(v) / len(v)
    result = {"parity": kind, "reference": first, "compared": second, "steps": len(a), "first_loss": a[0],
              "reference_mean": mean(a), "compared_mean": mean(b), "relative_difference_of_means": mean(b) / mean(a) - 1,
              "reference_last_tenth": mean(a[-tail:]), "compared_last_tenth": mean(b[-tail:]),
              "relative_difference": mean(b[-tail:]) / mean(a[-tail:]) - 1,
              "largest_step_difference": max(abs(x - y) for x, y in zip(a, b))}
    if ea:
        result.update(reference_eval_loss=ea[-1], compared_eval_loss=eb[-1])
    print(json.dumps(result))
PY
