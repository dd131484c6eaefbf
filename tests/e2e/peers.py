"""For tests against Python packages: which Python has them, and the logits that transformers and PEFT compute."""

import functools
import json
import os
import pathlib
import subprocess
import sys

from support import EndToEnd, SOURCE, environment, floats, main

SKIP_CODE = 77


def candidates():
    """UNSLOTH_PYTHON alone where it is set; else what scripts/setup.sh made, and the system's."""
    chosen = os.environ.get("UNSLOTH_PYTHON")
    if chosen:
        return [chosen]
    made = [SOURCE / ".deps" / folder / "bin" / "python" for folder in ("peers", "venv")]
    return [str(python) for python in made if python.exists()] + ["python3"]


def python_with(*modules):
    """The first Python that has all of these modules, or None. A module that is there but fails to import is for the test to show."""
    code = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))"
    for python in candidates():
        if subprocess.run([python, "-c", code, *modules], capture_output=True).returncode == 0:
            return python
    return None


def main_or_skip(python, *modules, setup):
    """Runs the tests of the calling file; without a Python says why not, and ends with the code that ctest shows as skipped."""
    if python is None:
        print(
            f"skipped: {' and '.join(candidates())} cannot import all of {', '.join(modules)}: {setup} installs them, UNSLOTH_PYTHON may name another Python"
        )
        sys.exit(SKIP_CODE)
    main()


# Runs in the other Python, once for many models: rows, output's stem, then pairs of a model and an adapter ("" for none). Everything
# computes in fp32. Writes STEM.0, STEM.1, … with all logits as fp32 and prints a line per model: how many quantised linears it has, and
# for a quantised one how far its logits lie from those that bitsandbytes' own products give, as a part of their spread.
REFERENCE = """
import copy, json, sys
import torch
from transformers import AutoModelForCausalLM
rows, stem, *pairs = sys.argv[1:]
torch.set_num_threads(1)
rows = [torch.tensor([json.loads(line)["input_ids"]]) for line in open(rows)]

def logits_of(model):
    with torch.no_grad():
        return torch.cat([model(input_ids=ids).logits[0].float() for ids in rows])

for number, (base, adapter) in enumerate(zip(pairs[::2], pairs[1::2])):
    options = {}
    if json.load(open(base + "/config.json")).get("quantization_config", {}).get("quant_method") == "mxfp4":
        from transformers import Mxfp4Config
        options["quantization_config"] = Mxfp4Config(dequantize=True)  # whatever kernels are installed
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager", **options)
    if adapter:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    quantised = []
    if getattr(model.config, "quantization_config", None):
        import bitsandbytes.functional as F
        from bitsandbytes.nn import Linear4bit, Linear8bitLt
        quantised = [m for m in model.modules() if isinstance(m, (Linear4bit, Linear8bitLt))]
        # Their products on a CPU round what they multiply (to bf16, to 8 bit): the weights, as bitsandbytes dequantises them, are compared.
        weights = []
        for module in quantised:
            if isinstance(module, Linear8bitLt):
                weights.append(F.int8_vectorwise_dequant(module.weight.data, module.weight.SCB))
            else:
                state = copy.copy(module.weight.quant_state)
                state.dtype = torch.float32
                weights.append(F.dequantize_4bit(module.weight.data, state))
        untouched = logits_of(model)
        for module, weight in zip(quantised, weights):
            module.forward = lambda x, weight=weight, bias=module.bias: torch.nn.functional.linear(x, weight, bias)
    # transformers gives a quantised model's other tensors the type that its config.json names, whatever was asked for.
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()
    logits = logits_of(model)
    off = 0.0 if not quantised else ((untouched - logits).abs().max() / (logits.max() - logits.min())).item()
    print(len(quantised), off)
    with open(f"{stem}.{number}", "wb") as file:
        file.write(logits.contiguous().numpy().tobytes())
"""


# Runs in the other Python and imports its packages once, which takes seconds. A fork of it runs each request, a line of JSON; the
# answer is the exit code.
SERVER = """
import importlib.util, json, os, sys, traceback
for name in ("torch", "transformers.models.llama.modeling_llama", "peft", "bitsandbytes"):
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        importlib.import_module(name)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(request["out" if stream == 1 else "err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            os.chdir(request["cwd"])
            sys.argv = ["-c", *request["arguments"]]
            exec(compile(request["code"], "<request>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def server(python):
    """It ends with this process, whose pipe it reads."""
    return subprocess.Popen(
        [python, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(HF_HUB_OFFLINE=1),
    )


class Peers(EndToEnd):
    """What the tests share; `python` is set by the test's file."""

    python = None

    def in_python(self, code, *arguments):
        out, err = self.folder / "peer.out", self.folder / "peer.err"
        request = {"code": code, "arguments": list(map(str, arguments)), "cwd": str(self.folder)}
        process = server(self.python)
        process.stdin.write(json.dumps(request | {"out": str(out), "err": str(err)}) + "\n")
        process.stdin.flush()
        ended = process.stdout.readline()
        errors = err.read_text(errors="replace") if err.exists() else f"{self.python} cannot import its packages"
        self.assertEqual(ended, "0\n", errors[-4000:])
        for word in (
            "MISSING",
            "UNEXPECTED",
            "MISMATCH",
            "newly initialized",
        ):  # transformers loads such models with a warning alone
            self.assertNotIn(word, errors)
        return out.read_text()

    def references(self, rows, *pairs):
        """[(logits, number of quantised linears, how far off their own products are)] of each (model, adapter or "")."""
        stem = self.folder / "reference"
        lines = self.in_python(REFERENCE, rows, stem, *[word for pair in pairs for word in pair]).splitlines()
        self.assertEqual(len(lines), len(pairs))
        numbers = [line.split() for line in lines]
        return [
            (floats(pathlib.Path(f"{stem}.{i}").read_bytes()), int(count), float(off))
            for i, (count, off) in enumerate(numbers)
        ]
