#!/usr/bin/env python3
"""Tokenizers drawn at random, and what transformers' AutoTokenizer makes of them: side files that name tokens (tokenizer_config.json,
special_tokens_map.json, added_tokens.json), flags, pre-tokenizers. For tests/token/test_made.c.

    build/venv/run tests/reference/token_made.py            remakes tests/reference/token/made.json, the first 20 of them
    build/venv/run tests/reference/token_made.py --check    compares that file, and lets the test compare 300

A case has its files, and for each text the ids and what they decode to without special tokens. What AutoTokenizer refuses is drawn again.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

from transformers import AutoTokenizer
from transformers.utils import logging

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests/reference/token/made.json"
ALL = ROOT / "build/reference/token-made.json"
COMMITTED, COUNT = 20, 300
ROLES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token", "audio_token"]
NAMES = ["<a>", "<b>", "<c>", "[d]", "e-f", "ab", "G", " h", "<|i|>", "A"]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized"]
BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
LETTERS = "abcdefghi ABG<>[]|-.,!?1\u00e9\u3002"


def flags(draw, whole=True):
    """The members of an added token: all of them, or some."""
    made = {flag: draw.random() < 0.25 for flag in FLAGS if whole or draw.random() < 0.4}
    if whole or draw.random() < 0.5:
        made["special"] = draw.random() < 0.5
    return made


def token(draw, name, form):
    """A token as a side file may name it: as a text, or as an object. form: whose file it is."""
    if draw.random() < 0.6:
        return name
    made = {"content": name} | flags(draw, whole=form == "config")
    return {"__type": "AddedToken"} | made if form == "config" else made


def pre_tokenizer(draw):
    punctuation = {"type": "Punctuation"} | ({"behavior": draw.choice(BEHAVIOURS)} if draw.random() < 0.8 else {"behavior": "Isolated"})
    digits = {"type": "Digits", "individual_digits": draw.random() < 0.5}
    split = {"type": "Split", "pattern": {"Regex": draw.choice([r"\s+", "[a-c]", r"\p{P}"])}, "behavior": draw.choice(BEHAVIOURS),
             "invert": draw.random() < 0.3}
    return draw.choice([None, punctuation, {"type": "Sequence", "pretokenizers": [punctuation, digits]},
                        {"type": "Sequence", "pretokenizers": [split, punctuation]}, digits])


def roles(draw, form, most):
    return {key: token(draw, draw.choice(NAMES), form) for key in draw.sample(ROLES, draw.randint(0, most))}


def special_list(draw, form):
    names = draw.sample(NAMES, draw.randint(0, 3))
    return [token(draw, name, form) for name in names]


def files(draw):
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    for name in draw.sample(NAMES, draw.randint(0, 4)):
        vocabulary.setdefault(name, len(vocabulary))
    merges = [["a", "b"]] if "ab" in vocabulary else []
    added, following = [], len(vocabulary)
    for name in draw.sample(NAMES, draw.randint(0, 4)):
        added.append({"id": vocabulary.get(name, following), "content": name} | flags(draw))
        following += name not in vocabulary
    added.sort(key=lambda one: one["id"])
    ids = {one["content"]: one["id"] for one in added}
    made = {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                               "normalizer": draw.choice([None, None, {"type": "Lowercase"}, {"type": "NFC"}]),
                               "pre_tokenizer": pre_tokenizer(draw), "post_processor": None, "decoder": {"type": "Fuse"},
                               "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | roles(draw, "config", 4)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if draw.random() < 0.3:
            config[key] = special_list(draw, "config")
    if draw.random() < 0.15:
        config["extra_special_tokens"] = {key: draw.choice(NAMES) for key in draw.sample(["image_token", "video_token", "start"], 2)}
    if draw.random() < 0.3:
        listed = draw.sample(NAMES, draw.randint(0, 4))
        config["added_tokens_decoder"] = {}
        for name in listed:
            number = vocabulary.get(name, ids.get(name, following + draw.randint(0, 3)))
            config["added_tokens_decoder"][str(number)] = {"content": name} | flags(draw, draw.random() < 0.7)
    made["tokenizer_config.json"] = config
    if draw.random() < 0.5:
        made["special_tokens_map.json"] = roles(draw, "map", 3)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if draw.random() < 0.3:
                made["special_tokens_map.json"][key] = special_list(draw, "map")
    if draw.random() < 0.5:
        listed = draw.sample(NAMES, draw.randint(1, 4))
        made["added_tokens.json"] = {name: vocabulary.get(name, ids.get(name, following + i)) for i, name in enumerate(listed)}
    return made


def text(draw):
    pieces = draw.choices(NAMES + list("abcdefgh  AB.,!1") + ["\u00e9", "?!", "11"], k=draw.randint(3, 14))
    return "".join(pieces)


def case(draw):
    made = files(draw)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in made.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(content))
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception:
            return None
    texts = [text(draw) for _ in range(6)]
    ids = [tokenizer(one)["input_ids"] for one in texts]
    return {"files": made, "texts": texts, "ids": ids, "plain": [tokenizer.decode(one, skip_special_tokens=True) for one in ids],
            "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}


def cases():
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    made, number = [], 0
    while len(made) < COUNT:
        one = case(random.Random(number))
        number += 1
        if one:
            made.append(one)
    print(f"{COUNT} tokenizers; {number - COUNT} that AutoTokenizer refuses were drawn again")
    return made


def dump(made):
    return "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in made) + "\n]\n"


def main():
    made = cases()
    committed = dump(made[:COMMITTED])
    if "--check" not in sys.argv:
        OUT.write_text(committed)
        return
    if OUT.read_text() != committed:
        sys.exit(f"{OUT} is not what transformers makes now")
    ALL.parent.mkdir(parents=True, exist_ok=True)
    ALL.write_text(dump(made))
    subprocess.run(["make", "-s", "build/release/tests/token/test_made"], cwd=ROOT, check=True)
    done = subprocess.run([ROOT / "build/release/tests/token/test_made"], cwd=ROOT, env=os.environ | {"RH_TOKEN_MADE": str(ALL)})
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
