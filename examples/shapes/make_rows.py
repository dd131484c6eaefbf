#!/usr/bin/env python3
"""Draws the images of the shapes example and writes its training and held-out examples.

    python3 examples/shapes/make_rows.py [--out out/shapes]

Writes images/*.png, train.jsonl and heldout.jsonl. Two controls have the held-out questions and answers: shuffled.jsonl
with the images of other examples, blank.jsonl with an empty image. Standard library only; the same pixels on every run.
"""

import argparse
import json
import random
import struct
import zlib
from pathlib import Path

SIDE = 64  # pixels of an image
CELL = SIDE // 2  # one object at most in each quarter
COLOURS = {"red": (208, 48, 40), "green": (40, 160, 64), "blue": (48, 80, 208), "yellow": (232, 200, 32)}
SHAPES = ("circle", "triangle", "cross")
NUMBERS = ("one", "two", "three", "four")
QUESTIONS = {
    "colour": "What colour is it?",
    "shape": "Which shape is it?",
    "count": "How many are there?",
}
TRAIN, HELD_OUT = 1600, 120  # images


def covers(shape, x, y, radius):
    """Whether the shape of this radius around (0, 0) covers the point."""
    if shape == "circle":
        return x * x + y * y <= radius * radius
    if shape == "triangle":
        return -radius <= y <= 0.8 * radius and 2 * abs(x) <= y + radius
    return max(abs(x), abs(y)) <= radius and min(abs(x), abs(y)) <= 0.3 * radius  # a cross


def draw(rng, shape, colour, cells):
    """The image's rows of bytes, RGB: objects of one kind in these quarters, each with its own size and place."""
    ground = rng.randrange(200, 256)
    pixels = [[(ground, ground, ground)] * SIDE for _ in range(SIDE)]
    shade = [max(0, min(255, value + rng.randrange(-16, 17))) for value in COLOURS[colour]]
    for cell in cells:
        radius = rng.uniform(9, 13)
        free = CELL / 2 - radius
        x = CELL * (cell % 2) + CELL / 2 + rng.uniform(-free, free)
        y = CELL * (cell // 2) + CELL / 2 + rng.uniform(-free, free)
        for row in range(SIDE):
            for column in range(SIDE):
                if covers(shape, column + 0.5 - x, row + 0.5 - y, radius):
                    pixels[row][column] = tuple(shade)
    return [bytes(value for pixel in row for value in pixel) for row in pixels]


def png(rows):
    """A PNG file of rows of RGB bytes."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def example(image, answers):
    """A conversation about an image: `answers` by the kind of their question."""
    messages = []
    for kind, answer in answers.items():
        question = {"type": "text", "text": QUESTIONS[kind]}
        messages.append({"role": "user", "content": [question] if messages else [{"type": "image"}, question]})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages, "images": [image]}


def make(rng, name, count, folder):
    """Draws `count` images and returns (file, answers) of each."""
    examples = []
    for number in range(count):
        colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        cells = sorted(rng.sample(range(4), rng.randrange(1, 5)))
        file = f"images/{name}-{number:04}.png"
        (folder / file).write_bytes(png(draw(rng, shape, colour, cells)))
        answers = {"colour": colour, "shape": shape, "count": NUMBERS[len(cells) - 1]}
        asked = rng.sample(list(answers.items()), len(answers))
        examples.append((file, dict(asked)))
    return examples


def shuffled(rng, examples):
    """The examples with images in another order."""
    images = [row["images"] for row in examples]
    rng.shuffle(images)
    return [row | {"images": image} for row, image in zip(examples, images)]


def write(path, examples):
    path.write_text("".join(json.dumps(row) + "\n" for row in examples), encoding="utf-8")
    print(f"{path}: {len(examples)} examples")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/shapes"), help="folder to write into")
    folder = parser.parse_args().out
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = random.Random(3407)
    train = make(rng, "train", TRAIN, folder)
    write(folder / "train.jsonl", [example(file, answers) for file, answers in train])
    drawn = make(rng, "heldout", HELD_OUT, folder)
    held_out = [example(file, {kind: answer}) for file, answers in drawn for kind, answer in answers.items()]
    write(folder / "heldout.jsonl", held_out)
    write(folder / "shuffled.jsonl", shuffled(rng, held_out))
    blank = "images/blank.png"
    (folder / blank).write_bytes(png([bytes([228] * 3 * SIDE)] * SIDE))
    write(folder / "blank.jsonl", [row | {"images": [blank]} for row in held_out])


if __name__ == "__main__":
    main()
