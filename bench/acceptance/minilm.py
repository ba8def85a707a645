#!/usr/bin/env python3
"""The data, the comparison and the peer of minilm.sh.

    minilm.py rows DEMO DIR                      the demo's reviews as {"text", "label"}: DIR/train.jsonl (4,000), DIR/test.jsonl (1,000)
    minilm.py compare MODEL TEXTS EMBEDDINGS     EMBEDDINGS (texts, hidden) F32 against transformers' mean-pooled hidden states
    minilm.py train MODEL DIR                    fine-tunes with PyTorch and transformers by the same recipe; prints one JSON line
"""

import argparse
import json
import time
from pathlib import Path

EPOCHS, BATCH, RATE, LENGTH = 3, 16, 5e-5, 128


def rows(demo, out):
    out.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        with open(out / f"{name}.jsonl", "w") as file:
            for line in open(demo / f"{name}-full.jsonl"):
                row = json.loads(line)
                text = row["prompt"].split("great or other?\n", 1)[1].split("<|im_end|>")[0]
                file.write(json.dumps(dict(text=text, label=int(row["completion"].startswith("great")))) + "\n")
    texts = [json.loads(line)["text"].replace("\n", " ") for line in open(out / "test.jsonl")][:100]
    (out / "texts.txt").write_text("\n".join(texts) + "\n")


def compare(model, texts, embeddings):
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, net = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    lines = texts.read_text().splitlines()
    ours = np.fromfile(embeddings, np.float32).reshape(len(lines), -1)
    worst = largest = 0.0
    with torch.no_grad():
        for line, row in zip(lines, ours):
            theirs = net(**tokenizer(line, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
            worst, largest = max(worst, float(np.abs(theirs - row).max())), max(largest, float(np.abs(theirs).max()))
    print(json.dumps(dict(bench="minilm-embeddings", texts=len(lines), worst=worst, largest=largest, within=worst <= 1e-5)))
    return 0 if worst <= 1e-5 else 1


def train(model, data):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_scheduler

    torch.manual_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(model)
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2, dtype=torch.float32).train()
    read = lambda name: [json.loads(line) for line in open(data / f"{name}.jsonl")]
    batch = lambda chosen: tokenizer([r["text"] for r in chosen], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
    train_rows, test_rows = read("train"), read("test")
    steps = EPOCHS * -(-len(train_rows) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.0)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
    began = time.process_time()
    for _ in range(EPOCHS):
        order = torch.randperm(len(train_rows)).tolist()
        for i in range(0, len(order), BATCH):
            chosen = [train_rows[j] for j in order[i:i + BATCH]]
            loss = net(**batch(chosen), labels=torch.tensor([r["label"] for r in chosen])).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - began
    net.eval()
    right = 0
    with torch.no_grad():
        for i in range(0, len(test_rows), 50):
            chosen = test_rows[i:i + 50]
            right += int((net(**batch(chosen)).logits.argmax(-1) == torch.tensor([r["label"] for r in chosen])).sum())
    print(json.dumps(dict(accuracy=right / len(test_rows), steps=steps, cpu_seconds=round(seconds))))


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name, paths in (("rows", ("demo", "dir")), ("compare", ("model", "texts", "embeddings")), ("train", ("model", "dir"))):
        command = commands.add_parser(name)
        for path in paths:
            command.add_argument(path, type=Path)
    arguments = parser.parse_args()
    if arguments.command == "rows":
        rows(arguments.demo, arguments.dir)
    elif arguments.command == "compare":
        return compare(arguments.model, arguments.texts, arguments.embeddings)
    else:
        train(arguments.model, arguments.dir)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
