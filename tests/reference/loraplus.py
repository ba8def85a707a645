"""Writes (with --check: compares) tests/reference/train/loraplus.txt: losses of LoRA+ training, with PEFT's create_loraplus_optimizer.

The smollm2 model of models.py and its adapter, in fp32, STEPS steps of two micro-batches at a constant rate; clipping as in models_run.py. A
line a run: the ratio, then a loss a step.
"""
import os
import sys
from pathlib import Path

import models
import models_run as run
import torch
from hexfile import line, settle
from peft.optimizers import create_loraplus_optimizer

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
STEPS, RATE, DECAY = 20, 1e-3, 0.01


def losses(ratio):
    model = models.load(HERE / "models" / "smollm2", "adapter")
    training = models.inputs_of("smollm2", model)[2]
    masters = run.parameters(model)
    optimizer = create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=RATE, loraplus_lr_ratio=ratio, loraplus_weight_decay=DECAY, foreach=False, **run.ADAM)
    out = []
    for step in range(STEPS):
        loss, gradients = run.step_gradients(model, training[step * run.ACCUMULATION:(step + 1) * run.ACCUMULATION])
        for name, p in masters.items():
            p.grad = gradients[name]
        if run.MAX_GRAD_NORM:
            torch.nn.utils.clip_grad_norm_(list(masters.values()), run.MAX_GRAD_NORM)
        optimizer.step()
        out.append(loss)
    return out


def main():
    torch.set_num_threads(1)
    return settle(HERE / "train" / "loraplus.txt", [line([ratio] + losses(ratio)) for ratio in (1, 16)])


if __name__ == "__main__":
    sys.exit(main())
