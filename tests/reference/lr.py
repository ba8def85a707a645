"""Writes (with --check: compares) tests/reference/train/lr.txt: learning rates of transformers' schedulers.

A line: scheduler, its lr_scheduler_kwargs (- for none), base rate, warm-up steps as configured, resolved warm-up steps, total steps, then the
rate of each step and of two beyond the last.
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

SCHEDULERS = [(name, {}) for name in ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_restarts", "polynomial", "inverse_sqrt")]
SCHEDULERS += [("cosine_with_min_lr", dict(min_lr_rate=0.1)), ("cosine_with_min_lr", dict(min_lr_rate=0.35))]
SCHEDULERS += [("cosine_with_restarts", dict(num_cycles=3)), ("polynomial", dict(lr_end=1e-6, power=2.5)), ("inverse_sqrt", dict(timescale=7))]
SCHEDULERS += [("warmup_stable_decay", dict(num_decay_steps=4)), ("warmup_stable_decay", dict(num_decay_steps=3, num_stable_steps=2, min_lr_ratio=0.1))]
SCHEDULERS += [("warmup_stable_decay", dict(num_decay_steps=20, decay_type=decay, min_lr_ratio=0.05)) for decay in ("linear", "1-sqrt")]


def main():
    out = []
    for name, kwargs in SCHEDULERS:
        for base, warmup, total in CASES:
            steps = TrainingArguments(output_dir="unused", warmup_steps=warmup, use_cpu=True).get_warmup_steps(total)
            if name == "polynomial" and steps == total:
                continue  # it divides by the steps behind the warm-up
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
            scheduler = get_scheduler(name, optimizer, num_warmup_steps=steps, num_training_steps=total, scheduler_specific_kwargs=kwargs)
            rates = []
            for _ in range(total + 2):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
            said = ",".join(f"{k}={v}" for k, v in kwargs.items()) or "-"
            out.append(" ".join([name, said, base.hex(), float(warmup).hex(), str(steps), str(total)] + [float(r).hex() for r in rates]) + "\n")
    return settle(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train", "lr.txt"), out)


if __name__ == "__main__":
    sys.exit(main())
