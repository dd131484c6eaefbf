#!/usr/bin/env python3
"""Counts how other programs' example configurations are imported.

    scripts/import_counts.py FOLDER [--program PATH] [--at_least SHARE] [--losses] [--markdown]

FOLDER holds a copy of each program's repository, or of its examples: axolotl/, llamafactory/, handbook/, trl/, studio/.
import-config runs on every configuration there. A file is
  whole      nothing that changes training is lost;
  with losses  fields are lost that change training, and each is named;
  other model  its model is of a family that is not trained here, or it learns pictures, sound or rewards;
  other task   no configuration of a training: a launcher's file, a service's, one of inference or merging;
  not read     refused for another reason.
The share is that of whole files among whole ones and those with losses. A second share leaves out files whose method
is not here: another optimizer, loss or kind of adapter, training in rounded numbers, experts in full. Exit code 1 when
a program's first share is below --at_least, or when a file is not read.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

PEERS = ("axolotl", "llamafactory", "handbook", "trl", "studio")

# Families that are trained, by the names that their models have on the hub. The first line that fits decides.
FAMILIES = [
    ("qwen2_5_vl", r"qwen2\.5-vl"),
    ("qwen3_vl", r"qwen3-vl-(?!.*a\d+b)"),
    ("mllama", r"llama-3\.2-\d+b-vision"),
    (
        None,
        r"vision|[-_ ]vl[-_ .]|-omni|-audio|pixtral|llava|voxtral|smolvlm|internvl|paddleocr|csm-|whisper|spark-tts",
    ),
    (None, r"embedding|gte-|bge-|minilm|modernbert"),
    (None, r"nvfp4|gptq|awq|aqlm|prequantized|linearized|llama-4|mixtral|moe-|qwen3\.5|qwen3-next|gemma-3n|gemma-4"),
    (None, r"mistral-small-4|mistral-medium|falcon|nemotron|granite-4|deepseek-v|ernie|lfm|glm"),
    ("gpt_oss", r"gpt-oss"),
    ("qwen3_moe", r"qwen3-\d+b-a\d+b"),
    ("qwen3", r"qwen3|plano-orchestrator"),
    ("qwen2", r"qwen(1\.5|2|2\.5)-|deepcoder-14b|cogito-v1-preview-qwen|qwen2\.5"),
    ("gemma3", r"(?<!code)gemma-?3|functiongemma"),
    ("phi3", r"phi-?(3|3\.5|4)\b"),
    ("olmo3", r"olmo-?3"),
    ("granite", r"granite-3"),
    ("smollm3", r"smollm3"),
    ("ministral3", r"ministral-3"),
    ("mistral", r"mistral|magistral|devstral|zephyr-7b-(sft|beta)"),
    ("llama", r"llama|smollm|\byi-|orpheus|llasa|outetts"),
]


# Losses that say that no model for texts is trained: pictures, sound, rewards.
OTHER_MODEL = re.compile(r"(processor_type|freeze_mm_modules|image_size|reward_model|process_reward_model|stage: rm)\b")
# Losses that say that the file is of a method that is not here.
OTHER_METHOD = re.compile(
    r"(optimizer|optim|use_(adam_mini|apollo|badam|galore|muon)"
    r"|rl: ebft|diffusion|use_(eaft|asft_loss|dft_loss|eaft_loss)|loss_type: apo"
    r"|relora|lisa_n_layers|peft: .*loftq|pissa_init|finetuning_type: (oft|freeze)|mixture_of_depths"
    r"|qat|fp8|llmcompressor|as a whole: models of experts)\b"
)
# Fields that name rows to train on.
ROWS = ("datasets", "dataset", "dataset_name", "dataset_mixer", "pretraining_dataset")


def family_of(model):
    """The family that is trained, or None."""
    for family, pattern in FAMILIES:
        if re.search(pattern, model.lower()):
            return family
    return None


def model_of(path, config):
    """What the file trains: named in it, or, as in the files that describe one model each, by its own name."""
    model = config.get("model", {}).get("path", "")
    return model or path.stem.replace("_", "/", 1)


def configurations(folder):
    """Every YAML file under `folder`, with the folder from which its relative paths are meant."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml") and path.is_file())


def read(program, root, path, peer):
    command = [program, "import-config", str(path), "--json"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", check=False)
    result = {"file": str(path.relative_to(root)), "lost": [], "aside": [], "why": "", "family": None}
    if done.returncode:
        error = (done.stderr.strip() or "nothing was said").splitlines()[0]
        other = "import.wrong-program" in error or "config.not-an-object" in error
        return result | {"kind": "other task" if other else "not read", "why": error}
    told = json.loads(done.stdout)
    result |= {"lost": told["losses"], "aside": told["aside"]}
    result["family"] = family_of(model_of(path, told["config"]))
    data, adapter = told["config"].get("data", {}), told["config"].get("lora", {})
    rows = "train_file" in data or "datasets" in data
    if peer != "studio" and not rows and not any(field_of(loss).startswith(ROWS) for loss in told["losses"]):
        return result | {"kind": "other task"}
    if result["family"] is None or any(OTHER_MODEL.match(loss) for loss in told["losses"]):
        return result | {"kind": "other model"}
    if result["family"] in ("qwen3_moe", "gpt_oss") and adapter.get("finetuning_type") == "full":
        result["lost"].append("as a whole: models of experts are trained by adapters")
    result["method"] = not any(OTHER_METHOD.match(loss) for loss in result["lost"])
    return result | {"kind": "with losses" if result["lost"] else "whole"}


def field_of(loss):
    """ "datasets.split" of "datasets[0].split: train[:3]: …"."""
    return re.sub(r"\[\d+\]", "", loss.split(": ")[0])


def commit_of(folder):
    """What COMMIT in a copy says: the repository's commit and its date."""
    file = folder / "COMMIT"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def count(program, folder, peer, workers):
    paths = configurations(folder)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda path: read(program, folder, path, peer), paths))


def shares_of(results):
    """The share of whole files, and the same among those whose method is here; None: there are none."""
    trained = [result for result in results if result["kind"] in ("whole", "with losses")]
    here = [result for result in trained if result["method"]]
    whole = sum(result["kind"] == "whole" for result in trained)
    return [whole / len(counted) if counted else None for counted in (trained, here)]


def report(peer, results, show_losses):
    kinds = collections.Counter(result["kind"] for result in results)
    share, share_here = shares_of(results)
    print(
        f"{peer}: {len(results)} files; "
        + ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        + ("" if share is None else f"; {share:.0%} of those whose models are trained are whole")
        + ("" if share_here is None else f", {share_here:.0%} of those whose methods are here too")
    )
    lost = collections.Counter()
    for result in results:
        if result["kind"] == "with losses":
            lost.update({field_of(loss) for loss in result["lost"]})
    for field, number in lost.most_common(10):
        print(f"    {number:4} {field}")
    for result in results:
        if result["kind"] == "not read":
            print(f"    not read: {result['file']}: {result['why']}")
        if show_losses and result["kind"] == "with losses":
            print(f"  {result['file']} ({result['family']})")
            for loss in result["lost"]:
                print(f"      {loss[:200]}")
    return share, kinds


def row_of(peer, commit, results):
    """Of the table that docs/how-to/migrate/README.md has."""
    kinds = collections.Counter(result["kind"] for result in results)
    trained = [result for result in results if result["kind"] in ("whole", "with losses")]
    here = sum(result["method"] for result in trained)
    numbers = [len(results), len(results) - kinds["other task"], len(trained), here, kinds["whole"]]
    shares = ["–" if share is None else f"{share:.0%}".replace("%", " %") for share in shares_of(results)]
    return "| " + " | ".join([peer, commit, *map(str, numbers), *shares]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/unsloth-train")
    parser.add_argument("--at_least", type=float, default=0.0, help="share of whole files that each has to have")
    parser.add_argument("--losses", action="store_true", help="print every loss of every file")
    parser.add_argument("--markdown", action="store_true", help="print a table as docs/ has it")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    missed, rows = [], []
    for peer in PEERS:
        folder = (arguments.folder / peer).resolve()
        if not folder.is_dir():
            continue
        results = count(program, folder, peer, arguments.workers)
        share, kinds = report(peer, results, arguments.losses)
        rows.append(row_of(peer, commit_of(folder), results))
        if kinds["not read"] or (share is not None and share < arguments.at_least):
            missed.append(peer)
    if not rows:
        sys.exit(f"{arguments.folder}: none of {', '.join(PEERS)} is there")
    if arguments.markdown:
        print("| examples | commit | files | of a training | model here | method too | whole | share | of methods |")
        print("|" + " -- |" * 9, *rows, sep="\n")
    if missed:
        sys.exit("below the share: " + ", ".join(missed))


if __name__ == "__main__":
    main()
