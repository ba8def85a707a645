#!/usr/bin/env python3
"""Checks examples/cut_tokens.py against Hugging Face's tokenizers: all of the demo's 5,000 reviews, token counts and cuts alike.

    data_demo.py --check   (the same without it: nothing is written) exit 1 on a difference
"""

import subprocess
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "build/demo"
GGUF = DEMO / "SmolLM2-135M-Instruct.Q4_1.gguf"
sys.path.insert(0, str(ROOT / "examples"))
import cut_tokens
import rdata

VARIED = ["", " ", "a\u4e00b  12\u00bd x_y", "it's don't I'll'd we've", "\u200b \u3000x\u00a0", "e\u0301 \u0301", "two  spaces\n\n and\tmore 345  ", "\U0001f600!!"]


def reference():
    fields = GGUFReader(GGUF).fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges]))
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def main():
    if not (DEMO / "train.jsonl").exists():
        subprocess.run([sys.executable, ROOT / "examples/fetch-demo.py", "--out", DEMO], check=True)
    cutter, tokenizer = cut_tokens.Cutter(GGUF), reference()
    frames = rdata.read_frames(DEMO / "modeldata/usr/lib/R/site-library/modeldata/data", ["training_data", "testing_data"])
    texts = VARIED + [review for frame in frames.values() for review in frame["review"]]
    bad = total = 0
    for text in texts:
        ids = tokenizer.encode(text).ids
        total += len(ids)
        cut = tokenizer.decode(ids[:96]).rstrip("\ufffd")
        if len(ids) != sum(1 for _ in cutter.lengths(text)) or cut != cutter.cut(text, 96):
            print(f"cut otherwise than tokenizers does: {text[:80]!r}")
            bad += 1
    print(f"{len(texts)} texts, {total / len(texts):.1f} tokens on average, {bad} differ")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
