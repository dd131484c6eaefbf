"""Makes generate.json of qwen3_vl, qwen2_5_vl and mllama: what transformers answers greedily to prompts with images, in
fp32 on the CPU, from the tiny models here and the images and processors of tests/golden/images.

Run with transformers 5.23.0 and Pillow: python3 make_seen_answers.py
"""

import json
import lzma
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

HERE = Path(__file__).parent
IMAGES = HERE.parent / "images"
NEW_TOKENS = 40  # beyond a page of the cache

IMAGE = {"type": "image"}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def assistant(words):
    return {"role": "assistant", "content": [text(words)]}


CASES = [
    ([user(IMAGE, text("far three red"))], ["images/h_rgba.png"]),
    ([user(IMAGE, IMAGE, text("blue ? three"))], ["images/d_grey.jpg", "images/c_progressive.jpg"]),
    ([user(IMAGE, IMAGE, text("blue ? three"))], ["images/c_progressive.jpg", "images/d_grey.jpg"]),
    ([user(text("fox what"), IMAGE, text("two the"))], ["images/k_lossy.webp"]),
    (
        [user(IMAGE, text("the dots")), assistant("is one"), user(text("and the lines")), assistant("no"),
         user(text("far"), IMAGE, text("square ?"))],
        ["images/a_420.jpg", "images/f_exif6.jpg"],
    ),
    ([user(text("red circle lies"))], []),
]  # fmt: skip

# Of a model that reads tiles also: images apart from one another, whose rows see one each; and one that ends a prompt.
TILED_CASES = [
    ([user(IMAGE, text("far three blue"))], ["images/h_rgba.png"]),
    *CASES[1:],
    (
        [user(text("the"), IMAGE, text("red"), IMAGE, text("dots blue"), IMAGE)],
        ["images/g_rgb.png", "images/i_palette.png", "images/e_cmyk.jpg"],
    ),
    ([user(IMAGE, text("red circle lies"))], ["images/g_rgb.png"]),
]


def tiled_inputs_of(messages, images, tokenizer, processor, add_generation_prompt=True):
    """As MllamaProcessor makes them."""
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=True
    )["input_ids"]  # fmt: skip
    if not images:
        return {"input_ids": torch.tensor([ids])}
    seen = processor([[ImageOps.exif_transpose(Image.open(IMAGES / name)) for name in images]], return_tensors="pt")
    tiles = seen.pop("num_tiles")
    mask = convert_sparse_cross_attention_mask_to_dense(
        [get_cross_attention_token_mask(ids, tokenizer.convert_tokens_to_ids("<|image|>"))],
        num_tiles=tiles if isinstance(tiles, list) else tiles.tolist(), max_num_tiles=processor.max_image_tiles,
        length=len(ids),
    )  # fmt: skip
    return {"input_ids": torch.tensor([ids]), "cross_attention_mask": torch.tensor(mask), **seen}


def inputs_of(messages, images, tokenizer, processor, add_generation_prompt=True):
    """What the model's processor makes, but for its part in videos, which would need torchvision."""
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=True
    )["input_ids"]  # fmt: skip
    if not images:
        return {"input_ids": torch.tensor([ids])}
    seen = processor([ImageOps.exif_transpose(Image.open(IMAGES / name)) for name in images], return_tensors="pt")
    image_token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist())
    ids = [id for one in ids for id in ([one] * next(counts) if one == image_token else [one])]
    types = [int(id == image_token) for id in ids]
    return {"input_ids": torch.tensor([ids]), "mm_token_type_ids": torch.tensor([types]), **seen}


def answer(model, inputs):
    """The ids, and by how much the likeliest led at least: rounding must not choose another."""
    length = inputs["input_ids"].shape[1]
    made = model.generate(
        **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, return_dict_in_generate=True,
        output_logits=True,
    )  # fmt: skip
    top = torch.cat(made.logits).topk(2).values
    return made.sequences[0, length:].tolist(), (top[:, 0] - top[:, 1]).min().item()


def unpacked(family, folder, source=None):
    """The model and processor of a family as plain files in a folder, or those of `source`."""
    folder.mkdir(exist_ok=True)
    sources = [source] if source else [HERE / family / "model", IMAGES / family / "saved"]
    for file in [file for one in sources for file in one.iterdir()]:
        is_packed = file.suffix == ".xz"
        data = file.read_bytes()
        (folder / (file.stem if is_packed else file.name)).write_bytes(lzma.decompress(data) if is_packed else data)
    return folder


def main():
    torch.set_num_threads(1)
    for family in ("qwen3_vl", "qwen2_5_vl", "mllama"):
        tiled = family == "mllama"
        with tempfile.TemporaryDirectory() as name:
            folder = unpacked(family, Path(name))
            tokenizer = AutoTokenizer.from_pretrained(folder)
            processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
            model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        answers = []
        for messages, images in TILED_CASES if tiled else CASES:
            inputs = (tiled_inputs_of if tiled else inputs_of)(messages, images, tokenizer, processor)
            ids, margin = answer(model, inputs)
            answers.append({"messages": messages, "images": images, "prompt_ids": inputs["input_ids"][0].tolist(),
                            "ids": ids, "margin": margin})  # fmt: skip
            print(family, len(images), inputs["input_ids"].shape, margin)
        lines = ",\n".join(json.dumps(answer) for answer in answers)
        (HERE / family / "generate.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
