#!/usr/bin/env python3
"""The data, the first weights and the peer of gpt2.sh.

    gpt2.py prepare FORTUNES DIR     FORTUNES: a directory of Debian's package fortunes; DIR receives model/, train.jsonl, test.jsonl
    gpt2.py rows FORTUNES DIR        the same without the weights, so without PyTorch
    gpt2.py texts FORTUNES DIR       the rows alone, for a model that has a tokenizer
    gpt2.py train DIR                trains DIR/model with PyTorch and transformers; prints one JSON line

Both sides begin with the same weights, see the same rows in the same order and use the same AdamW, schedule and clipping, in fp32, without
dropout. What may differ is the order of sums, so the two perplexities say whether the program trains what PyTorch trains.
"""

import argparse
import json
import math
import time
from pathlib import Path

LENGTH = 128
BATCH = 32
RATE = 1e-3
WARMUP = 50
END = "<|endoftext|>"


def fortunes(directory):
    for path in sorted(Path(directory).iterdir()):
        if path.suffix in (".dat", ".u8") or path.is_symlink() or path.is_dir():
            continue
        for text in path.read_text(encoding="utf-8", errors="strict").split("\n%\n"):
            if len(text.strip()) > 20:
                yield text.strip()


def write_texts(source, out):
    """Returns the texts to train on."""
    import numpy as np

    texts = sorted(set(fortunes(source)))
    order = np.random.default_rng(1).permutation(len(texts))
    test, train = [texts[i] for i in order[:1000]], [texts[i] for i in order[1000:]]
    for name, rows in (("train", train), ("test", test)):
        with open(out / f"{name}.jsonl", "w") as file:
            file.writelines(json.dumps(dict(text=text)) + "\n" for text in rows)
    print(f"{len(train)} rows to train on, {len(test)} held out")
    return train


def write_rows(source, out):
    """The rows and the tokenizer. Returns its tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    train = write_texts(source, out)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(train, trainers.BpeTrainer(vocab_size=2048, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                             show_progress=False))
    model = out / "model"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps(dict(eos_token=END, tokenizer_class="PreTrainedTokenizerFast")))
    print(f"{tokenizer.get_vocab_size()} tokens")
    return tokenizer.get_vocab_size()


def config_of(tokens):
    return dict(vocab_size=tokens, n_embd=128, n_layer=4, n_head=4, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                bos_token_id=0, eos_token_id=0)


def prepare_rows(source, out):
    config = dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", **config_of(write_rows(source, out)))
    (out / "model" / "config.json").write_text(json.dumps(config))


def prepare(source, out):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = write_rows(source, out)
    torch.manual_seed(1)
    GPT2LMHeadModel(GPT2Config(**config_of(tokens))).save_pretrained(out / "model")


def batches(tokenizer, path):
    rows = [tokenizer.encode(json.loads(line)["text"] + END).ids[:LENGTH] for line in open(path)]
    return [rows[i:i + BATCH] for i in range(0, len(rows), BATCH)]


def loss_of(model, rows):
    """The sum over all tokens but each row's first, and how many these are."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([r + [0] * (longest - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    counts = mask[:, 1:].bool()
    return torch.nn.functional.cross_entropy(logits[counts].float(), ids[:, 1:][counts], reduction="sum"), int(counts.sum())


def train(out):
    import torch
    from tokenizers import Tokenizer
    from transformers import GPT2LMHeadModel, get_scheduler

    tokenizer = Tokenizer.from_file(str(out / "model" / "tokenizer.json"))
    model = GPT2LMHeadModel.from_pretrained(out / "model").train()
    steps, test = batches(tokenizer, out / "train.jsonl"), batches(tokenizer, out / "test.jsonl")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=WARMUP, num_training_steps=len(steps))
    began = time.process_time()
    for rows in steps:
        loss, count = loss_of(model, rows)
        optimizer.zero_grad()
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - began
    with torch.no_grad():
        sums = [loss_of(model.eval(), rows) for rows in test]
    mean = sum(s.item() for s, _ in sums) / sum(n for _, n in sums)
    print(json.dumps(dict(eval_loss=mean, perplexity=math.exp(mean), steps=len(steps), tokens=sum(n for _, n in sums), cpu_seconds=round(seconds))))


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "rows", "texts"):
        one = commands.add_parser(name)
        one.add_argument("fortunes")
        one.add_argument("dir", type=Path)
    commands.add_parser("train").add_argument("dir", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.fortunes, arguments.dir)
    elif arguments.command == "rows":
        prepare_rows(arguments.fortunes, arguments.dir)
    elif arguments.command == "texts":
        write_texts(arguments.fortunes, arguments.dir)
    else:
        train(arguments.dir)


if __name__ == "__main__":
    main()
