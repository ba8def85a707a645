"""Writes (with --check: compares) tests/reference/train/lr.txt: learning rates of transformers' schedulers.

A line: scheduler, base rate, min_lr_rate (0 where it has none), warm-up steps as configured, resolved warm-up steps, total steps, then the rate of each step and of two beyond
the last.
"""
import os
import sys

import torch
from transformers import TrainingArguments, get_scheduler

from hexfile import settle

CASES = [  # base, warm-up (a share below 1), total steps
    (5e-4, 10, 80),
    (2e-5, 0, 7),
    (1e-3, 0.1, 25),
    (1e-3, 0.03, 100),
    (3e-4, 5, 5),
    (3e-4, 9, 5),
    (1.0, 1, 1),
    (2e-4, 0.5, 3),
]

SCHEDULERS = [(name, 0.0) for name in ("linear", "cosine", "constant", "constant_with_warmup")]
SCHEDULERS += [("cosine_with_min_lr", 0.1), ("cosine_with_min_lr", 0.35)]


def main():
    out = []
    for name, floor in SCHEDULERS:
        for base, warmup, total in CASES:
            steps = TrainingArguments(output_dir="unused", warmup_steps=warmup, use_cpu=True).get_warmup_steps(total)
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
            arguments = dict(scheduler_specific_kwargs=dict(min_lr_rate=floor)) if floor else {}
            scheduler = get_scheduler(name, optimizer, num_warmup_steps=steps, num_training_steps=total, **arguments)
            rates = []
            for _ in range(total + 2):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
            out.append(" ".join([name, base.hex(), floor.hex(), float(warmup).hex(), str(steps), str(total)] + [float(r).hex() for r in rates]) + "\n")
    return settle(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train", "lr.txt"), out)


if __name__ == "__main__":
    sys.exit(main())
