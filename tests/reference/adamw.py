"""Writes (with --check: compares) tests/reference/offload/adamw.txt: a few steps of torch.optim.AdamW on small seeded
tensors, clipped by an exact global norm.

A case is a line of settings, then for each tensor its first weights, then for each step the learning rate, each tensor's gradient, the norm
before clipping, each tensor's weights and moments. Numbers are hexadecimal floats.
"""
import os
import sys

import torch

from hexfile import line, settle

SIZES = [(5, 7, 1), (1, 33, 0), (3, 16, 1)]  # rows, columns, decays
CASES = [  # steps, beta1, beta2, epsilon, weight decay, clip, gradient magnitudes
    (6, 0.9, 0.999, 1e-8, 0.0, 0.0, [1.0]),
    (6, 0.9, 0.95, 1e-6, 0.1, 1.0, [1.0]),
    (4, 0.9, 0.999, 1e-8, 0.01, 0.0, [1e-30, 1e-12, 1e-3, 1e4, 1e18, 1e25]),
    (4, 0.3, 0.99, 1e-8, 0.05, 0.5, [1e-6, 1.0, 30.0]),
]


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    out = [f"{len(CASES)} {len(SIZES)}\n"]
    for steps, beta1, beta2, eps, decay, clip, sizes in CASES:
        weights = [torch.nn.Parameter(torch.randn(r, c)) for r, c, _ in SIZES]
        groups = [{"params": [w], "weight_decay": decay if d else 0.0} for w, (_, _, d) in zip(weights, SIZES)]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(beta1, beta2), eps=eps, foreach=False, fused=False)
        out.append(f"{steps} " + line([beta1, beta2, eps, decay, clip]))
        out += [line(w.detach().flatten()) for w in weights]
        for step in range(steps):
            rate = 1e-3 * (step + 1) / steps
            for group in optimizer.param_groups:
                group["lr"] = rate
            for w in weights:
                scale = torch.tensor(sizes)[torch.randint(len(sizes), w.shape)]
                w.grad = torch.randn_like(w) * scale
            out.append(line([rate]))
            out += [line(w.grad.flatten()) for w in weights]
            norm = torch.linalg.vector_norm(torch.cat([w.grad.double().flatten() for w in weights]))
            out.append(line([norm]))
            if clip:
                scaled = [w.grad * min(1.0, clip / (float(norm) + 1e-6)) for w in weights]
                torch.nn.utils.clip_grad_norm_(weights, clip)
                for w, exact in zip(weights, scaled):
                    torch.testing.assert_close(w.grad, exact, rtol=1e-6, atol=0)  # torch sums the norm in fp32
                    w.grad = exact
            optimizer.step()
            for w in weights:
                state = optimizer.state[w]
                out += [line(w.detach().flatten()), line(state["exp_avg"].flatten()), line(state["exp_avg_sq"].flatten())]
    return settle(os.path.join(os.path.dirname(os.path.abspath(__file__)), "offload", "adamw.txt"), out)


if __name__ == "__main__":
    sys.exit(main())
