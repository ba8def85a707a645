"""Writes (with --check: compares) tests/reference/preference/: what TRL's trainers log of losses over preferences, on one tiny model in fp32.

pairs.jsonl     rows with prompt, chosen, rejected; some are cut at max_length, and some prompts end within a token
judged.jsonl    rows with prompt, completion, label
adapter/        the adapter that LoRA runs go on from: it is their reference, too
curves.json     for each case the program's keys and, by step, what TRL logged

The model is models/gguf-qwen2 with interchange/tokenizer.json.
"""
import json
import os
import random
import shutil
import sys
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "preference")
STEPS = {"lora": 20, "full": 10}
RATE = {"lora": 4e-3, "full": 1e-3}
TOLD = ["loss", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected", "kl", "nll_loss",
        "log_odds_ratio", "log_odds_chosen"]
MAX_LENGTH, BATCH = 40, 2
# Some gradients have a true value below fp32's noise (8e-9 beside 7e-8 was seen), and with Adam's usual epsilon their first step is the noise's sign.
EPSILON = 1e-4

PAIRS = ["sigmoid", "hinge", "ipo", "sigmoid_norm", "robust", "exo_pair", "apo_zero", "apo_down", "nca_pair", "bco_pair", "sppo_hard"]
SMOOTHING = {"robust": 0.1, "exo_pair": 0.01}
CASES = [dict(loss_type=[name], label_smoothing=SMOOTHING.get(name, 0.0)) for name in PAIRS]
CASES += [dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5]), dict(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0])]
CASES += [dict(loss_type=["orpo"]), dict(loss_type=["simpo"], beta=2.0), dict(loss_type=["simpo"], cpo_alpha=0.0, simpo_gamma=0.3)]
CASES += [dict(loss_type=["kto"]), dict(loss_type=["kto"], desirable_weight=1.5, undesirable_weight=0.5), dict(loss_type=["apo_zero_unpaired"])]
ACCUMULATED = [["sigmoid"], ["sigmoid", "sft"], ["kto"], ["orpo"]]


def model_dir():
    out = tempfile.mkdtemp()
    for name in ("models/gguf-qwen2/config.json", "models/gguf-qwen2/model.safetensors", "interchange/tokenizer.json",
                 "interchange/tokenizer_config.json"):
        shutil.copy(os.path.join(HERE, name), out)
    return out


def make_rows():
    draw = random.Random(5)
    words = "the a cat dog sat ran on under mat hat red blue big small good bad yes no one two".split()

    def say(least, most):
        return " ".join(draw.choices(words, k=draw.randint(least, most)))

    pairs = [dict(prompt=say(3, 8) + draw.choice(["", " ", "?\n", ": "]), chosen=say(2, 9), rejected=say(2, 9)) for _ in range(16)]
    judged = [dict(prompt=say(3, 8) + draw.choice([" ", "\n"]), completion=say(2, 9), label=bool(i % 3 != 1)) for i in range(16)]
    return pairs, judged


def make_adapter(path):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(model_dir(), dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 0.05)
    model.peft_config["default"].base_model_name_or_path = "gguf-qwen2"
    model.save_pretrained(path)
    for name in os.listdir(path):
        if name not in ("adapter_config.json", "adapter_model.safetensors"):
            os.remove(os.path.join(path, name))


def trainer_of(case, kind, accumulation, model, tokenizer, rows, out):
    name = case["loss_type"][0]
    common = dict(output_dir=out, use_cpu=True, bf16=False, learning_rate=RATE[kind], lr_scheduler_type="constant", max_steps=STEPS[kind],
                  per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulation, logging_steps=1, save_strategy="no", report_to=[],
                  train_sampling_strategy="sequential", max_length=MAX_LENGTH, gradient_checkpointing=False, disable_tqdm=True, beta=case.get("beta", 0.1),
                  weight_decay=0.0, adam_epsilon=EPSILON)
    more = {key: value for key, value in case.items() if key not in ("loss_type", "beta")}
    if name in ("kto", "apo_zero_unpaired"):
        return KTOTrainer(model, args=KTOConfig(loss_type=name, **more, **common), train_dataset=rows, processing_class=tokenizer)
    if name == "orpo":
        return ORPOTrainer(model, args=ORPOConfig(**more, **common), train_dataset=rows, processing_class=tokenizer)
    if name == "simpo":
        return CPOTrainer(model, args=CPOConfig(loss_type="simpo", **more, **common), train_dataset=rows, processing_class=tokenizer)
    return DPOTrainer(model, args=DPOConfig(loss_type=case["loss_type"], **more, **common), train_dataset=rows, processing_class=tokenizer)


def run(case, kind, accumulation, base, pairs, judged, adapter):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.bos_token
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if kind == "lora":
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    rows = Dataset.from_list(judged if case["loss_type"][0] in ("kto", "apo_zero_unpaired") else pairs)
    trainer = trainer_of(case, kind, accumulation, model, tokenizer, rows, tempfile.mkdtemp())
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == STEPS[kind]
    told = {key: [entry.get(key) for entry in steps] for key in TOLD if any(key in entry for entry in steps)}
    keys = {key: value for key, value in case.items() if value not in (0.0, None) or key == "cpo_alpha"}
    keys.update(learning_rate=RATE[kind], adam_epsilon=EPSILON, max_steps=STEPS[kind], gradient_accumulation_steps=accumulation)
    return dict(keys=keys, kind=kind, told=told)


def name_of(case, kind, accumulation):
    words = ["+".join(case["loss_type"]), kind] + [f"{k}={v}" for k, v in case.items() if k not in ("loss_type",) and v not in (0.0, None)]
    return " ".join(words + ([f"accumulation={accumulation}"] if accumulation > 1 else []))


def write(path, text, check):
    if check:
        with open(path) as file:
            if file.read() != text:
                print("differs:", path)
                return 1
        return 0
    with open(path, "w") as file:
        file.write(text)
    return 0


def near(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(near(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(near(x, y) for x, y in zip(a, b))
    return abs(a - b) <= 1e-6 + 1e-5 * abs(b) if isinstance(a, float) and isinstance(b, float) else a == b


def main():
    check, only = "--check" in sys.argv, [a for a in sys.argv[1:] if not a.startswith("--")]
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    pairs, judged = make_rows()
    bad = write(os.path.join(OUT, "pairs.jsonl"), "".join(json.dumps(row) + "\n" for row in pairs), check)
    bad |= write(os.path.join(OUT, "judged.jsonl"), "".join(json.dumps(row) + "\n" for row in judged), check)
    adapter = os.path.join(OUT, "adapter")
    if not os.path.exists(adapter):
        make_adapter(adapter)
    base, curves, path = model_dir(), {}, os.path.join(OUT, "curves.json")
    for kind in ("lora", "full"):
        for case in CASES:
            for accumulation in (1, 4) if case["loss_type"] in ACCUMULATED and len(case) < 3 else (1,):
                name = name_of(case, kind, accumulation)
                if only and not any(word in name for word in only):
                    continue
                curves[name] = run(case, kind, accumulation, base, pairs, judged, adapter)
                print(name, curves[name]["told"]["loss"][0], curves[name]["told"]["loss"][-1], flush=True)
    if check:
        with open(path) as file:
            known = json.load(file)
        for name in curves:
            if not near(curves[name], known.get(name)):
                print("differs:", name)
                bad = 1
    else:
        known = json.load(open(path)) if only and os.path.exists(path) else {}
        known.update(curves)
        with open(path, "w") as file:
            file.write("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in known.items()) + "\n}\n")
    return bad


if __name__ == "__main__":
    sys.exit(main())
