"""Writes tests/reference/train/kin/: adapters that PEFT made with rank_pattern, alpha_pattern, exclude_modules and layers_to_transform, as they
begin, and kin.txt, the losses of training them; with --check compares the losses.

The smollm2 model of models.py in fp32, STEPS steps of two micro-batches at a constant rate; clipping as in models_run.py. B is drawn, so that
each matrix counts from the first step on. A line an adapter: a loss a step.
"""
import os
import sys
from pathlib import Path

import models
import models_build as build
import models_run as run
import numpy as np
import torch
from hexfile import line, settle
from peft import LoraConfig, get_peft_model

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
KIN = HERE / "train" / "kin"
STEPS, RATE = 12, 1e-3
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "patterns": dict(r=4, lora_alpha=8, target_modules=LINEARS, exclude_modules=["k_proj", "layers.1.self_attn.o_proj"],
                     rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 6},
                     alpha_pattern={"v_proj": 12, r"layers\.0\.self_attn\.o_proj": 3}),
    "expression": dict(r=4, lora_alpha=8, target_modules=LINEARS, exclude_modules=r".*\.mlp\..*|.*\.1\..*v_proj"),
    "layers": dict(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]),
}


def make(name):
    model = get_peft_model(models.load(HERE / "models" / "smollm2"), LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]))
    rng = build.generator("lora_kin", name)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            deviation = 0.02 if "lora_B" in parameter_name else 0.1
            parameter.data.copy_(torch.from_numpy((deviation * rng.standard_normal(tuple(parameter.shape))).astype(np.float32)))
    model.peft_config["default"].base_model_name_or_path = "smollm2"
    model.save_pretrained(KIN / name)
    (KIN / name / "README.md").unlink(missing_ok=True)


def losses(name):
    model = models.load_adapter(models.load(HERE / "models" / "smollm2"), KIN / name, torch.float32)
    training = models.inputs_of("smollm2", model)[2]
    masters = run.parameters(model)
    optimizer = torch.optim.AdamW(list(masters.values()), lr=RATE, foreach=False, **run.ADAM)
    out = []
    for step in range(STEPS):
        loss, gradients = run.step_gradients(model, training[step * run.ACCUMULATION:(step + 1) * run.ACCUMULATION])
        for key, p in masters.items():
            p.grad = gradients[key]
        if run.MAX_GRAD_NORM:
            torch.nn.utils.clip_grad_norm_(list(masters.values()), run.MAX_GRAD_NORM)
        optimizer.step()
        out.append(loss)
    return out


def main():
    torch.set_num_threads(1)
    if "--check" not in sys.argv[1:]:
        for name in ADAPTERS:
            make(name)
    return settle(KIN / "kin.txt", [line(losses(name)) for name in ADAPTERS])


if __name__ == "__main__":
    sys.exit(main())
