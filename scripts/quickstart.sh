#!/usr/bin/env bash
# Gets what is needed, builds, and fine-tunes the tiny example model on contract clauses (about a minute on two CPU cores):
#     scripts/quickstart.sh [PRESET] [--section.key VALUE...]
# Where dist/ holds a wheel (scripts/wheel.sh) and no PRESET is named, it installs that into .deps/wheel and compiles nothing.
# Ends with the held-out loss and one answer before and after, the falling loss, and where the adapter lies. More arguments go to
# the training run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

preset=
case "${1-}" in
    -h | --help) sed -n '2,/^set /{/^# /p}' "scripts/${0##*/}" | cut -c3-; exit ;;
    "" | --*) ;;
    *) preset=$1; shift ;;
esac
config=examples/legal/quickstart.json
base=examples/legal/base
out=out/legal

[ -f "$base/model.safetensors" ] || fail "$base/model.safetensors is missing; it is part of the repository." \
    "Restore it (git checkout -- $base), or train it again as examples/legal/README.md says under 'The recipe'."

pip_install() { .deps/wheel/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: "$@" </dev/null; }
# Sets `program`: that of the newest wheel, with all that pip gets for it, in an environment of its own.
install_wheel() {
    local wheel=$1 hash
    program=.deps/wheel/bin/unsloth-train
    say "Using $wheel; nothing is compiled (scripts/quickstart.sh release compiles)"
    hash=$(sha256sum "$wheel" | cut -d' ' -f1)
    [ "$(cat .deps/wheel/stamp 2>/dev/null)" != "$hash" ] || return 0
    python3 -c 'import ensurepip, venv' 2>/dev/null || fail "This python3 has no venv." "On Debian and Ubuntu: apt-get install python3-venv"
    rm -rf .deps/wheel
    mkdir -p .deps
    python3 -m venv .deps/wheel
    say "Getting LibTorch and CUDA from PyPI (2.8 GB; 40 seconds on a fast line)"
    # uv downloads and unpacks in parallel, in a fifth of pip's time; but it knows no index that pip was configured for.
    if ! { pip_install uv==0.13.9 && .deps/wheel/bin/uv pip install --quiet --no-cache --python .deps/wheel/bin/python "$wheel" </dev/null; }; then
        say "uv could not install it; pip tries"
        pip_install --no-compile "$wheel" ||
            fail "pip could not install $wheel." "Check the network and the free space here (6 GB), then repeat."
    fi
    echo "$hash" >.deps/wheel/stamp
}

wheel=  # the newest; there may be no dist
for found in dist/unsloth_train-*.whl; do
    if [ -f "$found" ] && { [ -z "$wheel" ] || [ "$found" -nt "$wheel" ]; }; then wheel=$found; fi
done
if [ -z "$preset" ] && [ -n "$wheel" ]; then
    install_wheel "$wheel"
else
    scripts/build.sh "${preset:-release}"
    program=build/${preset:-release}/unsloth-train
fi

# One held-out clause as a prompt, in the words of the alpaca template.
mkdir -p "$out"
python3 - >"$out/prompt.jsonl" <<'PY'
import json
rows = [json.loads(line) for line in open("examples/legal/heldout.jsonl", encoding="utf-8")]
row = next(row for row in rows if row["instruction"] == "What kind of clause is this?")
user = f"{row['instruction']}\n\n### Input:\n{row['input']}"
messages = [{"role": "system", "content": row["system"]}] * bool(row["system"]) + [{"role": "user", "content": user}]
print(json.dumps({"messages": messages}))
PY
ask() {
    "$program" generate --model.path "$base" --dtype float32 --template alpaca --file "$out/prompt.jsonl" --max_new_tokens 64 --json \
        --log_level warning "$@"
}

say "The base model's answer to a held-out question"
ask >"$out/answer_before.json"
python3 -c 'import json; print(json.load(open("'"$out"'/answer_before.json"))["text"])'

say "Training: $program --config $config"
"$program" --config "$config" --output_dir "$out" --overwrite_output_dir true "$@"
ask --model.adapter_name_or_path "$out" >"$out/answer_after.json"

python3 - "$out" "$program" <<'PY'
import json
import sys

out, program = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{out}/metrics.jsonl", encoding="utf-8")]
losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
held_out = [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]
prompt = json.loads(open(f"{out}/prompt.jsonl", encoding="utf-8").readline())["messages"][-1]["content"]
before, after = (json.load(open(f"{out}/answer_{when}.json", encoding="utf-8"))["text"].strip() for when in ("before", "after"))
few = max(1, len(losses) // 10)
mean = lambda part: sum(loss for _, loss in part) / len(part)

print("\n== What the run did")
print(f"loss on training rows   {mean(losses[:few]):.3f} (first {few} logged) -> {mean(losses[-few:]):.3f} (last {few}), "
      f"steps {losses[0][0]} to {losses[-1][0]}")
print("loss on held-out rows   " + " -> ".join(f"{loss:.3f} (step {step})" for step, loss in held_out))
print("question                " + prompt.replace("\n\n### Input:\n", "\n                        "))
print("answer before           " + before.replace("\n", "\n                        "))
print("answer after            " + after.replace("\n", "\n                        "))
print(f"adapter                 {out}/adapter_model.safetensors (PEFT format; metrics in {out}/metrics.jsonl)")
print(f"ask it yourself         {program} generate --model.path examples/legal/base --model.adapter_name_or_path {out} \\\n"
      f"                            --template alpaca --file {out}/prompt.jsonl")
if held_out[-1][1] >= held_out[0][1]:
    sys.exit("error: the held-out loss did not fall")
PY
