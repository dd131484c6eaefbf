#!/usr/bin/env python3
"""Gives a model outlier channels without changing what it computes: in each layer some elements of a norm's weight are multiplied and
the columns of the linears that read them divided by the same power of two. Large models grow such channels by themselves
(Dettmers et al. 2022, LLM.int8()); small ones do not, and 8-bit formats must be tried with them.
    outlier_channels.py MODEL_FOLDER OUT_FOLDER      (fp32 or bf16 weights in one model.safetensors)
"""

import json
import pathlib
import shutil
import struct
import sys

FACTOR, CHANNELS_PER_NORM = 64.0, 6
READERS = {
    "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}


def main(source, out):
    shutil.copytree(source, out)
    path = pathlib.Path(out) / "model.safetensors"
    data = bytearray(path.read_bytes())
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_bytes])

    def elements(name):
        """A function that multiplies an element of the tensor in place, and the tensor's shape."""
        entry = header[name]
        begin = 8 + header_bytes + entry["data_offsets"][0]
        if entry["dtype"] not in ("F32", "BF16"):
            sys.exit(f"{name}: {entry['dtype']} instead of F32 or BF16")
        size = 4 if entry["dtype"] == "F32" else 2  # bf16: the upper half of a float, exact under powers of two

        def multiply(index, factor):
            at = begin + index * size
            (value,) = struct.unpack("<f", bytes(4 - size) + data[at : at + size])
            data[at : at + size] = struct.pack("<f", value * factor)[4 - size :]

        return multiply, entry["shape"]

    layers = 1 + max(int(name.split(".")[2]) for name in header if name.startswith("model.layers."))
    for layer in range(layers):
        for at, (norm, readers) in enumerate(READERS.items()):
            scale_weight, (hidden,) = elements(f"model.layers.{layer}.{norm}.weight")
            for i in range(CHANNELS_PER_NORM):
                channel = (101 * i + 37 * layer + 11 * at) % hidden
                scale_weight(channel, FACTOR)
                for reader in readers:
                    scale_element, (rows, columns) = elements(f"model.layers.{layer}.{reader}.weight")
                    for row in range(rows):
                        scale_element(row * columns + channel, 1 / FACTOR)
    path.write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
