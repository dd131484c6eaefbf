#!/usr/bin/env python3
"""Takes what images_test and data_test compare with from an expanded collection of reference data of vision families:
    make_expected.py FAMILIES
Of images and pixels the CRC-32 of their bytes; of normalized values every 16th byte that occurs; the rows, with their
ids, labels and positions. numpy, safetensors and pyarrow."""

import json
import pathlib
import shutil
import sys
import zlib

import pyarrow
import pyarrow.parquet
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
PROCESSORS = {
    "qwen3_vl": ["model/processor_config.json", "hub_files/preprocessor_config.json"],
    "qwen2_5_vl": ["model/processor_config.json", "model_hub/preprocessor_config.json"],
    "mllama": ["model/processor_config.json", "hub_files/preprocessor_config.json"],
}

MODEL = ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]


def crc(array):
    return {"shape": list(array.shape), "crc32": zlib.crc32(array.tobytes())}


def channels(name, array):
    """[..., 3, ...] with the channel in front; of Qwen one of the two equal frames."""
    if name == "mllama":
        return array.reshape(-1, 3, *array.shape[-2:]).swapaxes(0, 1).reshape(3, -1)
    return array.reshape(len(array), 3, -1).swapaxes(0, 1).reshape(3, -1)


def normalized(name, bytes_of, values_of):
    table = [{}, {}, {}]
    for image, values in values_of.items():
        integers = bytes_of[image]
        if name == "mllama":  # tiles beyond those of the image are absent here, and 0 there
            values = values.reshape(-1, *values.shape[-3:])[: len(integers)]
        else:
            values = values.reshape(len(values), 3, 2, -1)[:, :, 0]
        for c, (byte, value) in enumerate(zip(channels(name, integers), channels(name, values))):
            table[c].update({int(b): float(v) for b, v in zip(byte, value) if b % 16 == 0})
    return [dict(sorted(channel.items())) for channel in table]


def write_parquet(name):
    """Rows as datasets writes them: images as {bytes, path}, of which one has a path alone."""
    rows = [json.loads(line) for line in (HERE / name / "rows.jsonl").read_text().splitlines()]
    rows = [rows[i] for i in json.loads((HERE / name / "rows_forms.json").read_text())["rows"]]
    for i, row in enumerate(rows):
        row["images"] = [
            {"bytes": None if i == 1 else (HERE / image).read_bytes(), "path": image if i == 1 else None}
            for image in row["images"]
        ]
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    part = pyarrow.struct([("type", pyarrow.string()), ("text", pyarrow.string())])
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.list_(part))])
    schema = pyarrow.schema([("messages", pyarrow.list_(message)), ("images", pyarrow.list_(image))])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), HERE / name / "rows.parquet")


def main():
    families = pathlib.Path(sys.argv[1])
    decoded = load_file(families / "images_decoded.safetensors")
    result = {"decoded": {name: crc(array) for name, array in sorted(decoded.items())}}
    for name, files in PROCESSORS.items():
        pixels = load_file(families / name / "pixels_uint8.safetensors")
        facts = json.loads((families / name / "images.json").read_text())
        tiles = {image: fact.get("num_tiles") for image, fact in facts.items()}
        pixels = {image: array[: tiles[image]] for image, array in pixels.items()}
        result[name] = {
            "pixels": {image: crc(array) for image, array in sorted(pixels.items())},
            "grids": {
                image: fact["image_grid_thw"][1:] if tiles[image] is None else [fact["aspect_ratio_id"], tiles[image]]
                for image, fact in facts.items()
            },
            "normalized": normalized(name, pixels, load_file(families / name / "pixels.safetensors")),
        }
        (HERE / name / "saved").mkdir(parents=True, exist_ok=True)
        rows = json.loads((families / name / "forward.json").read_text())["rows"]
        (HERE / name / "encoded.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")
        for file in [
            "rows.jsonl",
            "rows_inline.jsonl",
            "rows_placeholder.jsonl",
            "rows_openai.jsonl",
            "rows_forms.json",
        ]:
            shutil.copyfile(families / name / file, HERE / name / file)
        for file in MODEL:
            shutil.copyfile(families / name / "model" / file, HERE / name / "saved" / file)
        for file in files:
            target = HERE / name / ("hub" if "hub" in file else "saved")
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(families / name / file, target / pathlib.Path(file).name)
    shutil.copytree(families / "images", HERE / "images", dirs_exist_ok=True, copy_function=shutil.copyfile)
    write_parquet("qwen3_vl")
    (HERE / "expected.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
