"""Writes (with --check: compares) tests/reference/offload/optimizers.txt: a few steps of Lion, torch's SGD and transformers' Adafactor on
small seeded tensors, and the values of 8-bit codes.

A case is a line of its kind (1 lion, 2 sgd, 3 adafactor), steps, beta1, beta2, momentum and weight decay, then each tensor's first weights,
then for each step the learning rate, each tensor's gradient and each tensor's weights; at its end each tensor's state. The last two lines are
the 256 values of signed and of unsigned codes. Numbers are hexadecimal floats.
"""
import os
import sys

import torch
from transformers.optimization import Adafactor

from hexfile import line, settle

SIZES = [((5, 7), 1), ((33,), 0), ((3, 16), 1)]  # shape, decays
CASES = [  # kind, steps, beta1, beta2, momentum, weight decay, gradient magnitudes
    (1, 6, 0.9, 0.999, 0.0, 0.1, [1.0]),
    (1, 6, 0.95, 0.98, 0.0, 0.0, [1e-12, 1.0, 1e4]),
    (2, 6, 0.9, 0.999, 0.0, 0.1, [1.0]),
    (2, 6, 0.9, 0.999, 0.9, 0.01, [1e-6, 1.0]),
    (3, 6, 0.9, 0.999, 0.0, 0.0, [1.0]),
    (3, 6, 0.9, 0.999, 0.0, 0.1, [1e-6, 1e-3, 30.0]),
]


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., "Symbolic discovery of optimization algorithms"."""

    def __init__(self, groups, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.sign(beta1 * m + (1 - beta1) * p.grad) * group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def make(kind, groups, beta1, beta2, momentum):
    if kind == 1:
        return Lion(groups, 1e-3, (beta1, beta2))
    if kind == 2:
        return torch.optim.SGD(groups, lr=1e-3, momentum=momentum, foreach=False, fused=False)
    return Adafactor(groups, lr=1e-3, scale_parameter=False, relative_step=False)


def state_of(kind, momentum, state):
    if kind == 1:
        return [state["exp_avg"]]
    if kind == 2:
        return [state["momentum_buffer"]] if momentum else []
    return [state["exp_avg_sq_row"], state["exp_avg_sq_col"]] if "exp_avg_sq_row" in state else [state["exp_avg_sq"]]


def code_values(signed):
    """Dynamic tree quantization (Dettmers et al., "8-bit optimizers via block-wise quantization")."""
    values = [0.0, 1.0]
    for i in range(7):
        cells = 2**i if signed else 2 ** (i + 1)
        borders = torch.linspace(0.1, 1, cells + 1, dtype=torch.float64)
        middles = (borders[:-1] + borders[1:]) / 2 * 10.0 ** (i - 6)
        values += middles.tolist() + ((-middles).tolist() if signed else [])
    assert len(values) == 256
    return torch.tensor(sorted(values), dtype=torch.float64).float()


def main():
    torch.manual_seed(11)
    torch.set_num_threads(1)
    out = [f"{len(CASES)}\n"]
    for kind, steps, beta1, beta2, momentum, decay, sizes in CASES:
        weights = [torch.nn.Parameter(torch.randn(shape)) for shape, _ in SIZES]
        groups = [{"params": [w], "weight_decay": decay if d else 0.0} for w, (_, d) in zip(weights, SIZES)]
        optimizer = make(kind, groups, beta1, beta2, momentum)
        out.append(f"{kind} {steps} " + line([beta1, beta2, momentum, decay]))
        out += [line(w.detach().flatten()) for w in weights]
        for step in range(steps):
            rate = 1e-2 * (step + 1) / steps
            for group in optimizer.param_groups:
                group["lr"] = rate
            for w in weights:
                w.grad = torch.randn_like(w) * torch.tensor(sizes)[torch.randint(len(sizes), w.shape)]
            out.append(line([rate]))
            out += [line(w.grad.flatten()) for w in weights]
            optimizer.step()
            out += [line(w.detach().flatten()) for w in weights]
        for w in weights:
            out += [line(s.flatten()) for s in state_of(kind, momentum, optimizer.state[w])]
    out += [line(code_values(True)), line(code_values(False))]
    return settle(os.path.join(os.path.dirname(os.path.abspath(__file__)), "offload", "optimizers.txt"), out)


if __name__ == "__main__":
    sys.exit(main())
