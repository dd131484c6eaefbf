#!/usr/bin/env python3
"""Makes fields.json: the fields of SFTConfig (TRL), TrainingArguments (transformers) and LoraConfig (PEFT).

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


def default_of(node):
    """The default's text, or None: that of dataclasses.field() stands among its arguments."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "field":
        given = {word.arg: word.value for word in node.keywords}
        return given.get("default")
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


def main():
    found = []
    for packages in RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python = pathlib.Path(folder) / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
            (site,) = pathlib.Path(folder).glob("lib/python*/site-packages")
            found += read_release(site, packages)
    target = pathlib.Path(__file__).with_name("fields.json")
    target.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{target}: {sum(len(one['fields']) for one in found)} fields", file=sys.stderr)


if __name__ == "__main__":
    main()
