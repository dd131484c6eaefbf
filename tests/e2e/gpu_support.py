"""What the tests of the program on GPUs share."""

import functools
import json
import pathlib
import struct
import subprocess
import tempfile
import threading

from support import (
    EndToEnd,
    LLAMA,
    NF4_MODEL,
    OK,
    PROGRAM,
    TIMEOUT_S,
    environment,
    model,
    read_safetensors,
    run,
    write_rows,
    write_safetensors,
)

# Six layers: with +offload four of them leave the device.
BASE = LLAMA | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
# Gated delta nets in four layers, with heads that the kernels on tensor cores take.
HYBRID = BASE | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 64,
    "full_attention_interval": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
ON_HOST = json.dumps({"model.layers": "cpu", "model.embed_tokens": "cpu", "lm_head": 0})
ON_DISK = json.dumps({"": 0, "model.layers.0-2": "disk", "model.layers.4": "cpu", "model.layers.5": "disk"})
POISON = 5  # a token that no row has but the one that is to spoil a step
ADAPTER = "adapter_model.safetensors"


@functools.cache
def gpus(wanted):
    """Whether the program finds so many."""
    if not PROGRAM:
        return False
    with tempfile.TemporaryDirectory(prefix="unsloth-e2e-") as folder:
        rows = write_rows(pathlib.Path(folder) / "rows.jsonl", [{"input_ids": [1, 2, 3]}])
        words = ["--model.path", NF4_MODEL, "--data.train_file", rows, "--training.output_dir", folder]
        return run(*words, "--device", f"cuda:{wanted - 1}", "--dtype", "bfloat16", "--max_steps", "0").code == OK


def ids(row, length):
    return [POISON + 1 + (row * 31 + t * t * 7 + 3 * t) % 240 for t in range(length)]


class OnGpu(EndToEnd):
    def arguments(self, out, *extra, base=None, rows=None):
        given = {str(word) for word in extra}
        words = ["--device", "cuda", "--shuffle", "false"]
        if "--training.deterministic" not in given:
            words += ["--training.deterministic", "true"]
        if "--dtype" not in given:
            words += ["--dtype", "bfloat16"]
        if "--gradient_accumulation_steps" not in given:
            words += ["--gradient_accumulation_steps", "1"]
        if "--finetuning_type" not in given:
            words += ["--load_in_4bit", "true"]
        return self.train_arguments(base or model(BASE, dtype="bfloat16"), rows or self.data, *words, *extra, out=out)

    def write(self, lengths, name="rows.jsonl"):
        return write_rows(self.folder / name, [{"input_ids": ids(row, n)} for row, n in enumerate(lengths)])

    def setUp(self):
        super().setUp()
        self.data = self.write([9 + row * 5 % 40 for row in range(64)])

    def launch(self, ranks, *arguments):
        done = subprocess.run(
            [PROGRAM, "launch", "--nproc_per_node", str(ranks), *map(str, arguments)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stderr

    def start(self, *arguments):
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        self.addCleanup(lambda: (watchdog.cancel(), process.kill(), process.wait(), process.stderr.close()))
        return process

    def poisoned(self, value):
        """The model with one row of embeddings overwritten."""
        folder = self.copied_model(model(BASE, dtype="bfloat16"))
        file = folder / "model.safetensors"
        tensors = read_safetensors(file)
        kind, shape, data = tensors["model.embed_tokens.weight"]
        self.assertEqual(kind, "BF16")
        bits = struct.pack("<f", value)[2:] * shape[1]  # bfloat16: the upper half of a float's bits
        at = POISON * len(bits)
        tensors["model.embed_tokens.weight"] = (kind, shape, data[:at] + bits + data[at + len(bits) :])
        write_safetensors(file, tensors)
        return folder

    def poison_row(self, at, count=16):
        rows = [{"input_ids": ids(row, 12)} for row in range(count)]
        rows[at]["input_ids"][3] = POISON
        return write_rows(self.folder / "poisoned.jsonl", rows)
