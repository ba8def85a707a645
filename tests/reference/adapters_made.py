#!/usr/bin/env python3
"""Adapters drawn at random as PEFT writes them, and what PeftModel computes with them: factors of every linear, of the head and of the
embedding, modules saved whole, copies of the base's tables, patterns; and files that contradict their configuration.

    build/venv/run tests/reference/adapters_made.py            remakes tests/reference/adapters: four models and the first 20 adapters
    build/venv/run tests/reference/adapters_made.py --check    compares them, then 300: `eval` of each adapter and of its merge must give
                                                               PEFT's loss (1e-5), or refuse it by name, all verbs alike

Expected losses lie in adapters/losses.json: the mean over adapters/rows.jsonl, which tests/cli/test_adapters.c compares too.
"""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, Qwen3Config

import interchange

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests/reference/adapters"
PROGRAM = ROOT / "build/release/roundhouse"
COMMITTED, COUNT = 20, 300
ROWS = ["the cat sat here", "a dog ran away", "one two three", "red green blue"]
SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
             vocab_size=288, max_position_embeddings=64, initializer_range=0.3, bos_token_id=None, eos_token_id=0)
MODELS = {
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "apart": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "gpt2": GPT2Config(n_embd=16, n_head=2, n_layer=2, n_positions=64, vocab_size=288, initializer_range=0.3, bos_token_id=0, eos_token_id=0),
}
LINEARS = {"gpt2": ["c_attn", "c_proj", "c_fc"]}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_models():
    torch.manual_seed(7)
    for name, config in MODELS.items():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if name == "apart":
            assert model.lm_head.weight is not model.model.embed_tokens.weight
        model.save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink(missing_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(ROOT / "tests/reference/interchange" / file, OUT / name / file)
    (OUT / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in ROWS))


def loss(model, tokenizer):
    """The mean over all tokens but each row's first; each row ends with the end-of-sequence token."""
    total, count = 0.0, 0
    for row in ROWS:
        ids = torch.tensor([tokenizer(row)["input_ids"] + [tokenizer.eos_token_id]])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return total / count


def configuration(draw, name):
    linears = LINEARS.get(name, LLAMA)
    tables = ["wte", "lm_head"] if name == "gpt2" else ["embed_tokens", "lm_head"]
    targets = draw.sample(linears, draw.randint(1, len(linears)))
    saved = []
    for table in tables:
        what = draw.random()
        if what < 0.3:
            targets.append(table)
        elif what < 0.5:
            saved.append(table)
    form = draw.random()
    rank = draw.choice([1, 2, 4])
    options = dict(r=rank, lora_alpha=draw.choice([2, 4, 5.5]), lora_dropout=0.0, use_rslora=draw.random() < 0.3, task_type="CAUSAL_LM",
                   modules_to_save=saved or None, ensure_weight_tying=draw.random() < 0.25)
    if form < 0.15:
        options["target_modules"] = r".*\.(" + "|".join(targets) + ")" if targets[-1] in linears else r"(.*\.)?(" + "|".join(targets) + ")"
    elif form < 0.25:
        options["target_modules"] = "all-linear"
    else:
        options["target_modules"] = targets
    if draw.random() < 0.3:
        options["rank_pattern"] = {draw.choice(targets): 3}
    if draw.random() < 0.3:
        options["alpha_pattern"] = {draw.choice([targets[0], r".*\.0\..*" + targets[0]]): 7}
    return options


def spoil(draw, folder):
    """Makes the file contradict its configuration, in one of a few ways."""
    path = folder / "adapter_model.safetensors"
    tensors, config = load_file(path), json.loads((folder / "adapter_config.json").read_text())
    names = sorted(tensors)
    way = draw.choice(["drop", "untarget", "more", "shape", "copy", "saved", "unsaved"])
    if way == "drop":
        del tensors[draw.choice(names)]
    elif way == "untarget" and isinstance(config["target_modules"], list) and len(config["target_modules"]) > 1:
        config["target_modules"].remove(draw.choice(config["target_modules"]))
    elif way == "more":
        name = draw.choice(names)
        tensors[re.sub(r"\.(0|1)\.", ".7.", name) if re.search(r"\.(0|1)\.", name) else name.replace("weight", "weight2")] = tensors[name].clone()
    elif way == "shape":
        name = draw.choice(names)
        tensors[name] = tensors[name][:-1].contiguous()
    elif way == "copy":
        for name in names:
            if "lora_" not in name:
                tensors[name] = tensors[name] * 1.25
                break
    elif way == "saved":
        config["modules_to_save"] = ["lm_head"]
    elif way == "unsaved":
        config["modules_to_save"] = None
    save_file(tensors, path, {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return way


def case(number, folder):
    """Writes an adapter to `folder`; its model, its loss by PEFT, and how it was spoilt. None: PEFT refuses to make or to load it."""
    draw = random.Random(number)
    torch.manual_seed(number)
    name = draw.choice(list(MODELS))
    base = AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32)
    try:
        model = get_peft_model(base, LoraConfig(**configuration(draw, name)))
        for key, value in model.named_parameters():
            if value.requires_grad:
                value.data += 0.3 * torch.randn_like(value)
        model.save_pretrained(folder, save_embedding_layers=draw.choice(["auto", "auto", True, False]))
    except (ValueError, RuntimeError, TypeError, AttributeError, KeyError):
        return None
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    way = spoil(draw, folder) if draw.random() < 0.3 else None
    tokenizer = AutoTokenizer.from_pretrained(OUT / name)
    try:
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float32), folder)
        expected = loss(loaded.eval(), tokenizer)
    except Exception:
        expected = None
    return {"model": name, "loss": expected, "spoilt": way}


def run(*words):
    ran = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
    return ran.returncode, ran.stdout, ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else ""


def seen(one, folder, scratch):
    """The losses that `eval` finds of the adapter and of its merge, or the line of the refusal."""
    out = scratch / "merged"
    shutil.rmtree(out, ignore_errors=True)
    model, rows = OUT / one["model"], ["--validation_file", OUT / "rows.jsonl", "--max_length", 64, "--json"]
    status, text, line = run("eval", "--model_name_or_path", model, "--adapter_name_or_path", folder, *rows)
    direct = json.loads(text)["eval_loss"] if not status else line
    status, _, line = run("merge", "--model_name_or_path", model, "--adapter_name_or_path", folder, "--output_dir", out, "--outtype", "f32")
    if status:
        return direct, line
    status, text, line = run("eval", "--model_name_or_path", out, *rows)
    return direct, json.loads(text)["eval_loss"] if not status else line


def judge(number, one, found):
    """None where all is well, else what is wrong."""
    for verb, value in zip(("eval", "merge"), found):
        if isinstance(value, str):
            if not one["spoilt"] and one["loss"] is not None and "which PEFT writes of this model, but does not read" not in value:
                return f"{number} {one}: {verb} refuses: {value}"
        elif one["loss"] is not None and abs(value - one["loss"]) > 1e-5 * abs(one["loss"]):
            return f"{number} {one}: {verb} has the loss {value}"
    if isinstance(found[0], str) != isinstance(found[1], str):
        return f"{number} {one}: the verbs differ: {found}"
    return None


def main():
    warnings.simplefilter("ignore")
    check = "--check" in sys.argv
    if not check:
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir()
        make_models()
    losses, made, number, bad, refused = {}, 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        while made < (COUNT if check else COMMITTED):
            folder = scratch / f"{made:02}"
            shutil.rmtree(folder, ignore_errors=True)
            one = case(number, folder)
            number += 1
            if not one:
                continue
            if made < COMMITTED:
                losses[f"{made:02}"] = one
                if check and (load_file(folder / "adapter_model.safetensors").keys() != load_file(OUT / f"{made:02}/adapter_model.safetensors").keys()):
                    sys.exit(f"{made:02} is not what PEFT writes now")
                if not check:
                    shutil.copytree(folder, OUT / f"{made:02}")
            if check:
                found = seen(one, folder, scratch)
                refused += isinstance(found[0], str)
                if "-v" in sys.argv and isinstance(found[0], str):
                    print(number - 1, one["model"], one["spoilt"], found[0][-150:], "|", str(found[1])[-110:])
                wrong = judge(number - 1, one, found)
                bad += wrong is not None
                if wrong:
                    print("DIFFERS:", wrong)
            made += 1
    text = json.dumps(losses, indent=1) + "\n"
    if not check:
        (OUT / "losses.json").write_text(text)
        return
    old = json.loads((OUT / "losses.json").read_text())
    same = all(old[k]["model"] == v["model"] and (old[k]["loss"] is None) == (v["loss"] is None) and
               (v["loss"] is None or abs(old[k]["loss"] - v["loss"]) < 1e-6) for k, v in losses.items())
    print(f"{COUNT} adapters, {refused} refused by name, {bad} differ; {number - COUNT} that PEFT does not make were drawn again")
    sys.exit(bool(bad) or not same)


if __name__ == "__main__":
    main()
