#!/usr/bin/env python3
"""Images in every format that is read, and what transformers' ViTImageProcessor (its Pillow backend) makes of them.

    data_images.py             remakes tests/reference/data/images/
    data_images.py --check     makes them again in a temporary directory and compares; exit 1 on a difference

images/classes/one, two       the class folders
images/bilinear, bicubic...   a directory with preprocessor_config.json each
images/expected.safetensors   NAME/FOLDER/FILE: (channels, 12, 12) F32; NAME is the directory of the configuration
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

HERE = Path(__file__).resolve().parent / "data" / "images"
SIDE = 12
FORMS = {
    "bilinear": dict(resample=2, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]),
    "bicubic": dict(resample=3, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]),
    "plain": dict(resample=2, do_normalize=False),
    "grey": dict(resample=2, image_mean=[0.286], image_std=[0.353]),
}


def picture(rng, width, height, channels):
    """Smooth waves with some noise: JPEG keeps them, and resizing shows in them."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / rng.uniform(2, 9) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(2, 9)) + 20 * rng.standard_normal((height, width))
             for _ in range(channels)]
    return np.clip(np.stack(waves, axis=-1), 0, 255).astype(np.uint8)


def write_images(root):
    rng = np.random.default_rng(7)
    one, two = root / "classes" / "one", root / "classes" / "two"
    one.mkdir(parents=True)
    two.mkdir()
    rgb = lambda w, h: Image.fromarray(picture(rng, w, h, 3))
    grey = lambda w, h: Image.fromarray(picture(rng, w, h, 1)[:, :, 0])
    rgb(23, 17).save(one / "rgb.png")
    rgb(12, 12).save(one / "same.png")
    grey(31, 9).save(one / "grey.png")
    rgb(19, 21).quantize(13).save(one / "palette.png")
    Image.fromarray(picture(rng, 14, 15, 4), "RGBA").save(one / "alpha.png")
    grey(21, 13).point(lambda v: 255 * (v > 120)).convert("1").save(one / "bits.png")
    rgb(40, 30).save(two / "colour.jpg", quality=90)
    rgb(37, 29).save(two / "whole.jpeg", quality=85, subsampling=0)
    rgb(33, 41).save(two / "progressive.jpg", quality=80, progressive=True)
    grey(25, 18).save(two / "grey.jpg", quality=90)
    rgb(5, 7).save(two / "small.ppm")
    grey(50, 11).save(two / "wide.pgm")
    (two / "notes.txt").write_text("no image\n")


def write_expected(root):
    out = {}
    for name, form in FORMS.items():
        directory = root / name
        directory.mkdir()
        processor = ViTImageProcessorPil(size=dict(height=SIDE, width=SIDE), **form)
        processor.save_pretrained(directory)
        path = directory / "preprocessor_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True) + "\n")
        for file in sorted(f for folder in ("one", "two") for f in (root / "classes" / folder).iterdir() if f.suffix != ".txt"):
            image = Image.open(file).convert("L" if name == "grey" else "RGB")
            image = np.asarray(image)[:, :, None] if name == "grey" else image
            kwargs = dict(input_data_format="channels_last") if name == "grey" else {}
            pixels = processor(images=image, return_tensors="pt", **kwargs)["pixel_values"][0]
            out[f"{name}/{file.parent.name}/{file.name}"] = pixels.contiguous().to(torch.float32)
    save_file(out, root / "expected.safetensors")


def make(root):
    root.mkdir(parents=True, exist_ok=True)
    write_images(root)
    write_expected(root)


def check():
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "images"
        make(made)
        ours, theirs = load_file(made / "expected.safetensors"), load_file(HERE / "expected.safetensors")
        for key in sorted(ours.keys() | theirs.keys()):
            if key not in ours or key not in theirs or not torch.allclose(ours[key], theirs[key], rtol=0, atol=0.04):
                print(f"{key}: differs")
                bad += 1
    print(f"images: {len(theirs)} compared, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(check())
    make(HERE)
