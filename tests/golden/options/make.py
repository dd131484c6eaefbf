#!/usr/bin/env python3
"""Makes fields.json: the fields of SFTConfig (TRL), TrainingArguments (transformers) and LoraConfig (PEFT); and
imports.json: those of the configurations that import-config reads (axolotl, LLaMA-Factory, ms-swift, TRL's and Unsloth's
scripts).

    python3 tests/golden/options/make.py

Gets the pinned packages from PyPI into a temporary venv, without what they depend on, and reads their source: nothing of
them is run. Each class stands with the fields that it inherits; a default stands only where it is JSON.
"""

import ast
import json
import pathlib
import subprocess
import sys
import tempfile
import venv

# Today's, and those of the time when most scripts were written.
RELEASES = [
    ["trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"],
    ["trl==0.11.4", "transformers==4.46.3", "peft==0.13.2"],
]
CLASSES = [
    ("transformers/training_args.py", "TrainingArguments", "training"),
    ("trl/trainer/sft_config.py", "SFTConfig", "training"),
    ("peft/tuners/lora/config.py", "LoraConfig", "lora"),
]
MODULES = [path for path, _, _ in CLASSES] + ["trl/trainer/base_config.py", "peft/config.py"]

# Without what they inherit from TrainingArguments, as SFTConfig does.
PREFERENCES = "trl/trainer/base_config.py trl/trainer/[dk]*o_config.py trl/experimental/[co]*po/*_config.py"

SWIFT = "swift/trainers/arguments.py swift/ray_utils/arguments.py swift/arguments/[st]*_args.py swift/arguments/base_args/*.py"
SWIFT_RLHF = "swift/rlhf_trainers/args_mixin.py swift/arguments/rlhf_args.py"  # without what they inherit from SWIFT

# What a configuration file of each program may hold: (packages, {part of the file: (modules, class or function)}).
IMPORTS = {
    "axolotl": (
        ["axolotl==0.19.0"],
        {
            "": ("axolotl/utils/schemas/*.py", "AxolotlInputConfig"),
            "datasets": ("axolotl/utils/schemas/datasets.py", "SFTDataset"),
            "datasets.type": ("axolotl/utils/schemas/datasets.py", "UserDefinedPrompterType"),
            "trl": ("axolotl/utils/schemas/trl.py", "TRLConfig"),
        },
    ),
    "llamafactory": (
        ["llamafactory==0.9.5", "transformers==5.23.0"],
        {
            "model": ("llamafactory/hparams/*.py", "ModelArguments"),
            "data": ("llamafactory/hparams/*.py", "DataArguments"),
            "training": ("llamafactory/hparams/*.py transformers/training_args*.py", "TrainingArguments"),
            "finetuning": ("llamafactory/hparams/*.py", "FinetuningArguments"),
            "generating": ("llamafactory/hparams/*.py", "GeneratingArguments"),
        },
    ),
    "trl": (
        ["trl==1.16.0", "transformers==5.23.0", "unsloth==2026.10.9"],
        {
            "script": ("trl/scripts/utils.py", "ScriptArguments"),
            "model": ("trl/trainer/model_config.py", "ModelConfig"),
            "training": (
                "transformers/training_args.py trl/trainer/base_config.py trl/trainer/sft_config.py",
                "SFTConfig",
            ),
            "dpo": (PREFERENCES, "DPOConfig"),
            "kto": (PREFERENCES, "KTOConfig"),
            "orpo": (PREFERENCES, "ORPOConfig"),
            "cpo": (PREFERENCES, "CPOConfig"),
            "grpo": ("trl/trainer/base_config.py trl/trainer/grpo_config.py", "GRPOConfig"),
            "rloo": ("trl/trainer/base_config.py trl/trainer/rloo_config.py", "RLOOConfig"),
            "grpo script": ("trl/scripts/grpo.py", "GRPOScriptArguments"),
            "unsloth model": ("unsloth/models/llama.py", "FastLlamaModel.from_pretrained"),
            "unsloth adapter": ("unsloth/models/llama.py", "FastLlamaModel.get_peft_model"),
        },
    ),
    "swift": (
        ["ms-swift==4.6.0", "transformers==5.23.0"],
        {
            "swift training": ("transformers/training_args*.py", "Seq2SeqTrainingArguments"),
            "swift sft": (SWIFT, "SftArguments"),
            "swift dpo": (SWIFT_RLHF, "RLHFArguments"),
            "swift grpo": (SWIFT_RLHF, "RLHFArguments"),
        },
    ),
}


def default_of(node):
    """The default's text, or None: that of dataclasses.field() or pydantic's Field() stands among its arguments."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("field", "Field"):
        given = {word.arg: word.value for word in node.keywords}
        return node.args[0] if node.args else given.get("default")
    return node


def fields_of(node):
    fields = {}
    for member in node.body:
        if not isinstance(member, ast.AnnAssign) or ast.unparse(member.annotation).startswith("ClassVar"):
            continue
        field = {"name": member.target.id, "type": ast.unparse(member.annotation)}
        try:
            field["default"] = ast.literal_eval(default_of(member.value))
        except (ValueError, TypeError):
            pass  # made when the class is: not known from the source
        fields[field["name"]] = field
    return fields


def inherited(classes, name):
    if name not in classes:
        return {}
    fields = {}
    for base in reversed(classes[name].bases):
        fields |= inherited(classes, ast.unparse(base))
    return fields | fields_of(classes[name])


def read_release(site, packages):
    classes = {}
    for module in MODULES:
        if (site / module).exists():
            tree = ast.parse((site / module).read_text(encoding="utf-8"))
            classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return [
        {"packages": packages, "class": name, "section": section, "fields": list(inherited(classes, name).values())}
        for _, name, section in CLASSES
    ]


def parameters_of(node):
    """The fields that a function's parameters make."""
    plain = node.args.args + node.args.kwonlyargs
    defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + node.args.defaults + node.args.kw_defaults
    fields = {}
    for parameter, default in zip(plain, defaults):
        field = {"name": parameter.arg}
        try:
            field["default"] = ast.literal_eval(default)
        except (ValueError, TypeError):
            pass
        fields[parameter.arg] = field
    fields.pop("model", None)
    return fields


def read_part(site, modules, name):
    """Names and defaults. A class of the same name may be a base: LLaMA-Factory's TrainingArguments."""
    classes = {}
    for pattern in modules.split():
        for path in sorted(site.glob(pattern)):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    classes.setdefault(node.name, node)
                    classes[f"{path.parts[-3]}/{path.parts[-2]}:{node.name}"] = node
    if "." in name:
        owner, function = name.split(".")
        (node,) = (one for one in classes[owner].body if isinstance(one, ast.FunctionDef) and one.name == function)
        fields = parameters_of(node)
    elif name == "TrainingArguments":  # of LLaMA-Factory: Seq2SeqTrainingArguments, and some of their own
        own = [node for key, node in classes.items() if key.startswith("llamafactory/") and key.endswith("Arguments")]
        theirs = [
            node
            for key, node in classes.items()
            if key.endswith(("/transformers:TrainingArguments", ":Seq2SeqTrainingArguments"))
        ]
        fields = {}
        for node in theirs + [one for one in own if one.name in ("RayArguments", "Fp8Arguments", "TrainingArguments")]:
            fields |= fields_of(node)
    else:
        fields = inherited(classes, name)
    return [{key: value for key, value in field.items() if key != "type"} for field in fields.values()]


def install(folder, packages):
    venv.create(folder, with_pip=True)
    python = pathlib.Path(folder) / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
    (site,) = pathlib.Path(folder).glob("lib/python*/site-packages")
    return site


def write(name, found, count):
    target = pathlib.Path(__file__).with_name(name)
    target.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{target}: {count} fields", file=sys.stderr)


def main():
    found = []
    for packages in RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            found += read_release(install(folder, packages), packages)
    write("fields.json", found, sum(len(one["fields"]) for one in found))

    imports = []
    for program, (packages, parts) in IMPORTS.items():
        with tempfile.TemporaryDirectory() as folder:
            site = install(folder, packages)
            for part, (modules, name) in parts.items():
                fields = read_part(site, modules, name)
                imports.append(
                    {"program": program, "packages": packages, "part": part, "class": name, "fields": fields}
                )
    write("imports.json", imports, sum(len(one["fields"]) for one in imports))


if __name__ == "__main__":
    main()
