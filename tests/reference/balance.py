#!/usr/bin/env python3
"""References for the load balancing loss of mixtures of experts: losses, gradients and training curves of the models of models.py, with
transformers' own loss (output_router_logits=True) in fp32 on one thread.

    balance.py            remakes tests/reference/balance/ (the committed files)
    balance.py --check    remakes them in a temporary directory and compares, with the tolerances of models.py; exit 1 on a difference

A micro-batch is one padded batch with an attention mask, so that transformers leaves out what is padding, and adds up over all of its
documents and all layers. The step's loss is that of models_run.py, and COEFFICIENT times the mean of its micro-batches' aux_loss. The
coefficient is far above the usual 0.001, so that the loss counts for something in every gradient.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import models
import models_run as run
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
COEFFICIENT = 0.5
NAMES = ("qwen3-moe", "gpt-oss")


def micro_batch_losses(model, documents):
    """The sum of cross-entropies over trained tokens (None: there are none), and transformers' aux_loss."""
    longest = max(len(d[0]) for d in documents)
    ids = torch.tensor([d[0] + [0] * (longest - len(d[0])) for d in documents])
    attended = torch.tensor([[1] * len(d[0]) + [0] * (longest - len(d[0])) for d in documents])
    out = model(input_ids=ids, attention_mask=attended, output_router_logits=True, use_cache=False)
    sums = []
    for d, logits in zip(documents, out.logits):
        target = run.trained(d)
        if target.any():
            sums.append(torch.nn.functional.cross_entropy(logits[:len(d[0]) - 1][target[1:]], torch.tensor(d[0])[target], reduction="sum"))
    return (sum(sums) if sums else None), out.aux_loss


def step_gradients(model, micro_batches):
    """As models_run.py's."""
    total = run.trained_tokens(micro_batches)
    sums = {name: torch.zeros(p.shape) for name, p in run.parameters(model).items()}
    whole = 0.0
    for documents in micro_batches:
        entropy, auxiliary = micro_batch_losses(model, documents)
        loss = COEFFICIENT * auxiliary / len(micro_batches) + (0 if entropy is None else entropy / total)
        model.zero_grad(set_to_none=True)
        loss.backward()
        whole += loss.item()
        for name, p in run.parameters(model).items():
            if p.grad is not None:
                sums[name] += p.grad
    return whole, sums


def record(prefix, model, micro_batches, out):
    loss, gradients = step_gradients(model, micro_batches)
    out[f"{prefix}.loss"] = torch.tensor([loss], dtype=torch.float64)
    out[f"{prefix}.grad_norm"] = torch.tensor([run.global_norm(gradients)], dtype=torch.float64)
    for name, gradient in run.file_gradients(model, gradients).items():
        out[f"{prefix}.grad.{name}"] = gradient


def make(root):
    for name in NAMES:
        directory, out = HERE / "models" / name, {"coefficient": torch.tensor([COEFFICIENT], dtype=torch.float64)}
        model = models.load(directory)
        _, step, training = models.inputs_of(name, model)
        record("step", model, step, out)
        record("adapter", models.load(directory, "adapter"), step, out)
        steps = [training[i:i + run.ACCUMULATION] for i in range(0, len(training), run.ACCUMULATION)]
        for prefix, adapter in (("lora", "adapter"), ("full", None)):
            trained = models.load(directory, adapter)
            curves = run.train(trained, run.parameters(trained), steps, run.CURVES[prefix], run.STEPS, step_gradients)
            out.update({f"{prefix}.{kind}": values for kind, values in curves.items()})
        save_file(out, root / f"{name}.safetensors")


def check():
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        make(made)
        for name in NAMES:
            for kind, times in models.compare_references(HERE / "balance" / f"{name}.safetensors", made / f"{name}.safetensors").items():
                if not times <= 1:
                    print(f"{name}: {kind} differs by {times:.3g} times its tolerance")
                    bad += 1
    print(f"balance: {len(NAMES)} compared, {bad} differences")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description="references for the load balancing loss")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.check:
        return check()
    (HERE / "balance").mkdir(exist_ok=True)
    make(HERE / "balance")
    return 0


if __name__ == "__main__":
    sys.exit(main())
