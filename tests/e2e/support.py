"""What the end-to-end tests share: running the program as a user does, and making and reading its files.

The program's path comes in the environment variable UNSLOTH_TRAIN. Standard library only.
"""

import array
import functools
import json
import math
import os
import pathlib
import random
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import warm

PROGRAM = os.environ.get("UNSLOTH_TRAIN", "")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = SOURCE / "tests" / "golden"
LEGAL_BASE = SOURCE / "examples" / "legal" / "base"
NF4_MODEL = GOLDEN / "formats" / "small_llama" / "nf4_dq"

OK, USAGE, INPUT, RUNTIME, SIGHUP_SAVED, SIGINT_SAVED, SIGTERM_SAVED = 0, 2, 3, 4, 129, 130, 143

# What a user must never see, whatever went wrong.
FORBIDDEN = (
    "c10::Error",
    "terminate called",
    "frame #",
    "Traceback",
    "std::",
    "nlohmann",
    "json.exception",
    "AddressSanitizer",
    "runtime error:",
    "internal error",
    "Segmentation fault",
    "filesystem error",
)

TIMEOUT_S = 300

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}
QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
# Every second layer has a gated delta net.
QWEN3_5 = LLAMA | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 16,
    "full_attention_interval": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 6}
# The vocabulary of the example's tokenizer.
TEXT_LLAMA = LLAMA | {"vocab_size": 2048, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1}

# Of logits that spread over more than 0.1, computed in fp32 twice, in another order of summation.
LOGITS_TOLERANCE = 1e-4

# On one thread, plain 32-bit arithmetic: quick on a busy machine. Tests add what they are about.
FP32 = ["--dtype", "float32", "--load_in_4bit", "false"]


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}"


def parts_of_terminal(ours):
    """What is written to the other side of a pseudo-terminal, part by part, until it is closed; at most TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        yield part
    os.close(ours)


def environment(**changes):
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("HF_HUB_OFFLINE", "1")  # a name that is nowhere on this machine is not looked for elsewhere
    env.update({key: str(value) for key, value in changes.items()})
    return env


def start(*arguments, env=None, **options):
    """The program begun: its process (warm.start), whose stderr is piped unless `options` say otherwise."""
    return warm.start([PROGRAM, *map(str, arguments)], env or environment(), **options)


def finish(process, stdin=""):
    try:
        out, err = process.communicate(stdin.encode() or None, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return Result(process.returncode, *((text or b"").decode(errors="replace") for text in (out, err)))


def run(*arguments, stdin="", cwd=None, env=None, preexec=None):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if not preexec:
        return finish(start(*arguments, env=env, cwd=cwd, **pipes), stdin)
    command = [PROGRAM, *map(str, arguments)]
    return finish(subprocess.Popen(command, env=env or environment(), cwd=cwd, preexec_fn=preexec, **pipes), stdin)


# --- files ---------------------------------------------------------------------------------------------------------

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F64": 8}


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in header.items()}


def write_safetensors(path, tensors, change_header=None):
    """Writes {name: (dtype, shape, bytes)}; `change_header` may spoil the header's object before it is written."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    if change_header:
        change_header(header)
    write_raw_safetensors(path, json.dumps(header).encode(), body)


def write_raw_safetensors(path, header, body, length=None):
    header += b" " * (-len(header) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + body)


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    return values


def float_bytes(values):
    return array.array("f", values).tobytes()


def write_rows(path, rows):
    path = pathlib.Path(path)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read_rows(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def token_rows(count, vocab=128, seed=1, shortest=8, longest=12):
    """Rows with a pattern that can be learnt: each token follows from the one before."""
    numbers = random.Random(seed)
    rows = []
    for _ in range(count):
        ids = [numbers.randrange(3, vocab)]
        while len(ids) < numbers.randint(shortest, longest):
            ids.append(3 + (ids[-1] * 5 + 1) % (vocab - 3))
        rows.append({"input_ids": ids})
    return rows


def log_softmax(logits):
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - log_sum for x in logits]


# --- the test case -------------------------------------------------------------------------------------------------

_models = {}
_models_folder = None


def model(config, dtype="float32", quantize=None, tokenizer=None, seed=3407):
    """A folder with random weights, made once a process by `init`. Tests must not change it: see copied_model."""
    global _models_folder
    if _models_folder is None:
        _models_folder = tempfile.TemporaryDirectory(prefix="unsloth-e2e-models-")
    key = json.dumps([config, dtype, quantize, str(tokenizer), seed], sort_keys=True)
    if key not in _models:
        folder = pathlib.Path(_models_folder.name) / f"model{len(_models)}"
        config_file = pathlib.Path(_models_folder.name) / f"config{len(_models)}.json"
        config_file.write_text(json.dumps(config))
        extra = (["--quantize", quantize] if quantize else []) + (["--tokenizer", tokenizer] if tokenizer else [])
        made = run("init", "--model_config", config_file, "--out", folder, "--dtype", dtype, "--seed", seed, *extra)
        if made.code != OK:
            raise AssertionError(f"init failed: {made}")
        _models[key] = folder
    return _models[key]


@functools.cache
def error_ids():
    """{id of an error: its exit code}."""
    table = run("explain", "--markdown").out
    return {name: int(code) for name, code in re.findall(r"^\| `(\S+)` \| (\d) \|", table, re.MULTILINE)}


class EndToEnd(unittest.TestCase):
    """Each test has an empty folder of its own, self.folder."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="unsloth-e2e-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def succeed(self, *arguments, **options):
        result = run(*arguments, **options)
        self.check_words(result)
        self.assertEqual(result.code, OK, f"{arguments}\n{result}")
        return result

    def fail_with(self, code, parts, *arguments, **options):
        """The run ends with this exit code, or with the error of this id; its message holds every one of `parts`."""
        result = run(*arguments, **options)
        self.check_words(result)
        if isinstance(code, str):
            self.assertIn(f"error[{code}]: ", result.err, f"{arguments}\n{result}")
            code = error_ids()[code]
        self.assertEqual(result.code, code, f"{arguments}\n{result}")
        for part in [parts] if isinstance(parts, str) else parts:
            self.assertIn(part, result.err, f"{arguments}\n{result}")
        return result

    def check_words(self, result):
        for word in FORBIDDEN:
            self.assertNotIn(word, result.err, str(result))

    def train(self, model_folder, rows_file, *extra, out="out", **options):
        """A run of 3 steps unless `extra` says otherwise; the folder it wrote."""
        self.succeed("train", *self.train_arguments(model_folder, rows_file, *extra, out=out), **options)
        return self.folder / out

    def train_arguments(self, model_folder, rows_file, *extra, out="out"):
        given = {str(word) for word in extra}
        arguments = [
            "--model.path",
            model_folder,
            "--data.train_file",
            rows_file,
            "--training.output_dir",
            self.folder / out,
            "--learning_rate",
            "0.01",
            "--warmup_steps",
            "0",
        ]
        if "--device" not in given:
            arguments += ["--device", "cpu"]
        if "--max_steps" not in given and "--num_train_epochs" not in given:
            arguments += ["--max_steps", "3"]
        if "--dtype" not in given:
            arguments += ["--dtype", "float32"]
        if not {"--load_in_4bit", "--finetuning_type", "--precision"} & set(given):
            arguments += ["--load_in_4bit", "false"]
        return arguments + list(extra)

    def score(self, model_folder, rows_file, *extra, name="scores.jsonl", **options):
        out = self.folder / name
        self.succeed(
            "score",
            "--model.path",
            model_folder,
            "--data.train_file",
            rows_file,
            "--out",
            out,
            "--force",
            "--device",
            "cpu",
            "--dtype",
            "float32",
            *(() if "--precision" in extra else ("--load_in_4bit", "false")),
            *extra,
            **options,
        )
        return read_rows(out)

    def logits(self, model_folder, rows_file, adapter=None, *extra):
        """Of every row's tokens, one after another."""
        name = self.folder / "logits.safetensors"
        self.score(
            model_folder, rows_file, "--logits", name, *(["--adapter_name_or_path", adapter] if adapter else []), *extra
        )
        tensors = read_safetensors(name)
        return [x for i in range(len(tensors)) for x in floats(tensors[f"logits.{i}"][2])]

    def distance(self, one, other):
        self.assertEqual(len(one), len(other))
        return max(abs(a - b) for a, b in zip(one, other))

    def copied_model(self, source, name="model"):
        return pathlib.Path(shutil.copytree(source, self.folder / name))

    def rows(self, count=16, name="rows.jsonl", **options):
        return write_rows(self.folder / name, token_rows(count, **options))

    def steps(self, folder):
        return [row for row in read_rows(folder / "metrics.jsonl") if "loss" in row]

    def evaluations(self, folder):
        return [row for row in read_rows(folder / "metrics.jsonl") if "eval_loss" in row]

    def summary(self, folder):
        """The last line of the metrics."""
        row = read_rows(folder / "metrics.jsonl")[-1]
        self.assertEqual(row.get("event"), "summary", row)
        return row


def main():
    if not PROGRAM:
        sys.exit("UNSLOTH_TRAIN must name the program")
    unittest.main(verbosity=2)
