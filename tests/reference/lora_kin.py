"""Writes tests/reference/train/kin/: adapters that PEFT made with rank_pattern, alpha_pattern, exclude_modules, layers_to_transform and use_dora, as they
begin, and kin.txt, the losses of training them; with --check compares the losses.

The smollm2 model of models.py in fp32, STEPS (12) steps of two micro-batches at a constant rate; clipping as in models_run.py. B is drawn, so that
each matrix counts from the first step on. A line an adapter: a loss a step.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import models
import models_build as build
import models_run as run
import numpy as np
import torch
from hexfile import line, settle
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
KIN = HERE / "train" / "kin"
STEPS, RATE = {"dora": 30}, 1e-3  # others: 12
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "patterns": dict(r=4, lora_alpha=8, target_modules=LINEARS, exclude_modules=["k_proj", "layers.1.self_attn.o_proj"],
                     rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 6},
                     alpha_pattern={"v_proj": 12, r"layers\.0\.self_attn\.o_proj": 3}),
    "expression": dict(r=4, lora_alpha=8, target_modules=LINEARS, exclude_modules=r".*\.mlp\..*|.*\.1\..*v_proj"),
    "layers": dict(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]),
    "dora": dict(r=4, lora_alpha=8, target_modules=[name for name in LINEARS if name != "k_proj"], use_dora=True),
}


def make(name):
    model = get_peft_model(models.load(HERE / "models" / "smollm2"), LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]))
    rng = build.generator("lora_kin", name)
    for parameter_name, parameter in model.named_parameters():
        if "lora_magnitude" in parameter_name:
            parameter.data *= torch.from_numpy((1 + 0.1 * rng.standard_normal(tuple(parameter.shape))).astype(np.float32))
        elif "lora_" in parameter_name:
            deviation = 0.02 if "lora_B" in parameter_name else 0.1
            parameter.data.copy_(torch.from_numpy((deviation * rng.standard_normal(tuple(parameter.shape))).astype(np.float32)))
    model.peft_config["default"].base_model_name_or_path = "smollm2"
    model.save_pretrained(KIN / name)
    (KIN / name / "README.md").unlink(missing_ok=True)


def keep_gradients(gradients):
    """Of the first step, under the names of the adapter's file; with --check compares them."""
    path = KIN / "dora-gradients.safetensors"
    made = {key.replace(".default", "").replace("_vector.weight", "_vector"): value.contiguous() for key, value in gradients.items()}
    if "--check" not in sys.argv[1:]:
        return save_file(made, path)
    kept = load_file(path)
    assert made.keys() == kept.keys()
    worst = max(((made[key] - kept[key]).norm() / kept[key].norm()).item() for key in kept)
    print(f"DoRA's gradients: {worst:.2g} from the kept ones")
    if worst > 1e-5:
        sys.exit(f"{path} differs")


def losses(name):
    model = models.load_adapter(models.load(HERE / "models" / "smollm2"), KIN / name, torch.float32)
    training = models.inputs_of("smollm2", model)[2]
    masters = run.parameters(model)
    optimizer = torch.optim.AdamW(list(masters.values()), lr=RATE, foreach=False, **run.ADAM)
    out = []
    for step in range(STEPS.get(name, 12)):
        loss, gradients = run.step_gradients(model, training[step * run.ACCUMULATION:(step + 1) * run.ACCUMULATION])
        if name == "dora" and not step:
            keep_gradients(gradients)
        for key, p in masters.items():
            p.grad = gradients[key]
        if run.MAX_GRAD_NORM:
            torch.nn.utils.clip_grad_norm_(list(masters.values()), run.MAX_GRAD_NORM)
        optimizer.step()
        out.append(loss)
    return out


def merged_differs():
    """What `merge` makes of the DoRA adapter, in fp32, against PEFT's model: whether logits differ by more than 1e-5 of the largest."""
    base = HERE / "models" / "smollm2"
    ids = torch.randint(0, models.load(base).config.vocab_size, (1, 24), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        words = ["merge", "--model_name_or_path", base, "--adapter_name_or_path", KIN / "dora", "--output_dir", folder + "/merged", "--outtype", "f32"]
        subprocess.run([HERE.parent.parent / "build/release/roundhouse", *words], check=True, capture_output=True)
        with torch.no_grad():
            expected = models.load_adapter(models.load(base), KIN / "dora", torch.float32)(ids).logits
            plain, seen = models.load(base)(ids).logits, models.load(Path(folder) / "merged")(ids).logits
    apart = ((seen - expected).abs().max() / expected.abs().max()).item()
    print(f"DoRA merged: logits differ by {apart:.2g} of the largest ({((plain - expected).abs().max() / expected.abs().max()).item():.2g} without)")
    return apart > 1e-5


def main():
    torch.set_num_threads(1)
    if "--check" not in sys.argv[1:]:
        for name in ADAPTERS:
            make(name)
    elif merged_differs():
        return 1
    return settle(KIN / "kin.txt", [line(losses(name)) for name in ADAPTERS])


if __name__ == "__main__":
    sys.exit(main())
