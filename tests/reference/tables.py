"""Writes tests/reference/train/tables/: adapters of PEFT's on embed_tokens and lm_head, as they begin, and tables.txt, the losses of training
them; with --check compares the losses.

Models of models.py in fp32, STEPS steps of two micro-batches at a constant rate; clipping as in models_run.py. All matrices are drawn, so that
each counts from the first step on. A line an adapter: a loss a step.

A table that is embedding and head has one adapter (ensure_weight_tying). PEFT makes two parameters of its memory, whose gradients and moments
stay apart: an optimizer would move it twice a step, each time by one use's gradient. Here, as here trained, it is one parameter: the two
gradients are added up.
"""
import json
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
TABLES = HERE / "train" / "tables"
STEPS, RATE = 20, 1e-3
ADAPTERS = {
    "both": ("llama2", dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens", "lm_head"], rank_pattern={"lm_head": 3},
                            alpha_pattern={"embed_tokens": 12})),
    "head": ("llama-bias", dict(r=4, lora_alpha=8, use_rslora=True, target_modules=["lm_head"])),
    "tied": ("smollm2", dict(r=4, lora_alpha=8, target_modules=["v_proj", "embed_tokens"], ensure_weight_tying=True)),
    "scaled": ("gemma3", dict(r=3, lora_alpha=6, target_modules=["q_proj", "lm_head"], ensure_weight_tying=True)),
    "inside": ("muse-glimmer", dict(r=4, lora_alpha=8, target_modules=r"model\.language_model\..*\.(?:gate_proj)|lm_head"
                                                                      r"|(?:model\.language_model\.)?embed_tokens")),
}


def make(name):
    base, settings = ADAPTERS[name]
    model = get_peft_model(models.load(HERE / "models" / base), LoraConfig(task_type="CAUSAL_LM", **settings))
    rng = build.generator("tables", name)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            deviation = 0.05 if "lora_B" in parameter_name or "embedding_A" in parameter_name else 0.1
            parameter.data.copy_(torch.from_numpy((deviation * rng.standard_normal(tuple(parameter.shape))).astype(np.float32)))
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(TABLES / name, save_embedding_layers=False)
    (TABLES / name / "README.md").unlink(missing_ok=True)
    path = TABLES / name / "adapter_config.json"
    config = json.loads(path.read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])  # a set in PEFT: its order changes from run to run
    config["peft_version"] = "0.21.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def join_tied(gradients):
    """The head's gradients, added to the embedding's, whose memory it has."""
    name = {part: next((n for n in gradients if part in n), None) for part in ("embedding_A", "embedding_B", "lm_head.lora_A", "lm_head.lora_B")}
    gradients[name["embedding_A"]] += gradients.pop(name["lm_head.lora_B"]).T
    gradients[name["embedding_B"]] += gradients.pop(name["lm_head.lora_A"]).T


def losses(name):
    base, settings = ADAPTERS[name]
    model = models.load_adapter(models.load(HERE / "models" / base), TABLES / name, torch.float32)
    ties = settings.get("ensure_weight_tying")
    training = models.inputs_of(base, model)[2]
    masters, optimizer, out = run.parameters(model), None, []
    for step in range(STEPS):
        loss, gradients = run.step_gradients(model, training[step * run.ACCUMULATION:(step + 1) * run.ACCUMULATION])
        if ties:
            join_tied(gradients)
        trained = [masters[key] for key in gradients]
        if optimizer is None:
            optimizer = torch.optim.AdamW(trained, lr=RATE, foreach=False, **run.ADAM)
        for p in masters.values():
            p.grad = None
        for key, gradient in gradients.items():
            masters[key].grad = gradient
        if run.MAX_GRAD_NORM:
            torch.nn.utils.clip_grad_norm_(trained, run.MAX_GRAD_NORM)
        optimizer.step()
        out.append(loss)
    if ties:
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        assert head.lora_B["default"].weight.data_ptr() == embedding.lora_embedding_A["default"].data_ptr()  # one memory to the end
    return out


def main():
    torch.set_num_threads(1)
    if "--check" not in sys.argv[1:]:
        for name in ADAPTERS:
            make(name)
    return settle(TABLES / "tables.txt", [line(losses(name)) for name in ADAPTERS])


if __name__ == "__main__":
    sys.exit(main())
