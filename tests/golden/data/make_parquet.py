#!/usr/bin/env python3
"""Makes the Parquet and Arrow files of this folder with pyarrow (any version that writes the format's version 2.6):
python3 make_parquet.py
"""

import datetime
import json
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

FOLDER = Path(__file__).parent

messages = [
    [{"role": "user", "content": f'q{row} "ü"\n'}, {"role": "assistant", "content": "a" * (row % 7)}]
    for row in range(600)
]
table = pyarrow.table(
    {
        "messages": messages,
        "id": pyarrow.array(range(600), pyarrow.int64()),
        "score": pyarrow.array([None if row % 5 == 0 else row / 8 for row in range(600)], pyarrow.float64()),
        "kind": pyarrow.array(["x" if row % 2 else "y" for row in range(600)]).dictionary_encode(),
        "ids": pyarrow.array([list(range(row % 4)) for row in range(600)], pyarrow.list_(pyarrow.int32())),
        "flag": pyarrow.array([row % 3 == 0 for row in range(600)]),
        "day": pyarrow.array([datetime.date(2024, 1, 1 + row % 28) for row in range(600)]),
    }
)
pyarrow.parquet.write_table(table, FOLDER / "rows.parquet", row_group_size=250, compression="zstd")
pyarrow.parquet.write_table(
    pyarrow.table({"text": pyarrow.array([1, 2], pyarrow.int64())}), FOLDER / "wrong_types.parquet"
)

with pyarrow.ipc.new_file(FOLDER / "rows.arrow", table.schema) as file:
    file.write_table(table, max_chunksize=250)


def save_to_disk(folder, rows):
    """The files that the datasets library leaves for a split."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "data-00000-of-00001.arrow"
    with pyarrow.ipc.new_stream(folder / name, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=250)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": folder.name}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))


save_to_disk(FOLDER / "saved" / "train", table)
save_to_disk(FOLDER / "saved" / "test", table.slice(0, 5))
(FOLDER / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))


def write_arrow(name, rows):
    with pyarrow.ipc.new_file(FOLDER / name, rows.schema) as file:
        file.write_table(rows)


# Types that JSON has other words for, or none; the second row is their nulls.
words = ["a word"] * 3
extensions = [
    pyarrow.ExtensionArray.from_storage(kind, pyarrow.array(storage, kind.storage_type))
    for kind, storage in (
        (pyarrow.json_(), ['{"b": [1, null], "a": "\\u00fc"}', None, '"a text"']),
        (pyarrow.uuid(), [bytes([255 - i] * 16) for i in range(3)]),
    )
]
members = pyarrow.struct(
    {"set": pyarrow.string(), "unset": pyarrow.int64(), "deep": pyarrow.struct({"x": pyarrow.int8()})}
)
union = pyarrow.UnionArray.from_sparse(
    pyarrow.array([0, 0, 0], pyarrow.int8()), [pyarrow.array(words), pyarrow.array([1, 2, 3])]
)
types = {
    "runs": pyarrow.RunEndEncodedArray.from_arrays([1, 3], pyarrow.array(["first", None])),
    "json": extensions[0],
    "views": pyarrow.array([["a"], None, ["b", "c"]], pyarrow.list_view(pyarrow.string())),
    "map": pyarrow.array([[("k", 1), ("l", None)], None, []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "struct": pyarrow.array([{"set": "s"}, None, {"deep": {"x": 1}}], members),
    "half": pyarrow.array([0.5, None, -2.0], pyarrow.float16()),
    "decimal": pyarrow.array([1, None, 3], pyarrow.decimal128(5, 2)),
    "time": pyarrow.array([datetime.datetime(2024, 1, 2, 3, 4, 5), None, None], pyarrow.timestamp("s")),
    "text view": pyarrow.array(words, pyarrow.string_view()),
    "bytes": pyarrow.array([b"a text", None, b"\xff\xfe"], pyarrow.binary()),
    "uuid": extensions[1],
    "duration": pyarrow.array([1, None, 3], pyarrow.duration("s")),
    "union": union,
    "integer keys": pyarrow.array([[(1, "x")], None, []], pyarrow.map_(pyarrow.int64(), pyarrow.string())),
}
write_arrow("types.arrow", pyarrow.table(types))
write_arrow("same_names.arrow", pyarrow.table([pyarrow.array(words)] * 3, names=["text", "twice", "twice"]))
# As programs write it that do not store Arrow's own schema: JSON is a type of Parquet's, too.
pyarrow.parquet.write_table(
    pyarrow.table({"text": extensions[0], "number": [1, 2, 3]}), FOLDER / "json.parquet", store_schema=False
)
# The columns of one format are null in the rows of another: the data sets were joined.
pyarrow.parquet.write_table(
    pyarrow.table({"messages": pyarrow.array([None] * 2, pyarrow.list_(pyarrow.string())), "text": ["a", "b"]}),
    FOLDER / "null_messages.parquet",
)
