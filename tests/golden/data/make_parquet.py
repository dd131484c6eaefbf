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
