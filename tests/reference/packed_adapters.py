"""Trains adapters with build/release/roundhouse on the bitsandbytes models of packed/ and loads them with PEFT on bitsandbytes' own layers: the
loss of `eval` must be PEFT's, in train() mode, within 1e-5. It keeps no files.

    build/venv/run tests/reference/packed_adapters.py [--check]
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE.parent.parent / "build/release/roundhouse"
ROWS = ["the cat sat here", "a dog ran away", "one two three"]
RUN = ["--max_length", "64", "--dtype", "float32", "--json"]


def tokenizer():
    """Of the models' forty tokens: three special ones, a space and a line break as GPT-2 shows them, letters and others."""
    names = ["<pad>", "<s>", "</s>"]
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    bytes_ = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    vocabulary = {symbol: i for i, symbol in enumerate(names + ["Ġ", "Ċ"] + list("abcdefghijklmnopqrstuvwxyz:<>-01234"))}
    return dict(version="1.0", added_tokens=[dict(id=i, content=name, **flags) for i, name in enumerate(names)], pre_tokenizer=bytes_,
                decoder=bytes_, model=dict(type="BPE", merges=[], vocab=vocabulary))


def peft_loss(base, adapter, vocabulary):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, device_map="cpu")
    model = PeftModel.from_pretrained(model, adapter).train()
    for module in model.modules():
        if type(module).__name__.endswith("Linear4bit"):
            module.compute_dtype = torch.float32
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    total = count = 0
    for row in ROWS:
        ids = [vocabulary["Ġ" if c == " " else c] for c in row] + [vocabulary["</s>"]]
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    return total / count


def check(name, root):
    base, out, rows = root / name, root / f"{name}-out", root / "rows.jsonl"
    shutil.copytree(HERE / "packed" / name, base)
    (base / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (base / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>")))
    rows.write_text("".join(json.dumps(dict(text=row)) + "\n" for row in ROWS))
    subprocess.run([PROGRAM, "train", "--model_name_or_path", base, "--train_file", rows, "--output_dir", out, "--max_steps", "3",
                    "--learning_rate", "0.05", "--lora_r", "4", "--lora_target_modules", "all-linear", *RUN], check=True, capture_output=True)
    said = subprocess.run([PROGRAM, "eval", "--model_name_or_path", base, "--adapter_name_or_path", out, "--validation_file", rows, *RUN],
                          check=True, capture_output=True).stdout
    ours, theirs = json.loads(said)["eval_loss"], peft_loss(base, out, tokenizer()["model"]["vocab"])
    print(f"{name}: eval {ours:.8f}, PEFT {theirs:.8f}, apart {ours / theirs - 1:.1e}")
    return abs(ours / theirs - 1) > 1e-5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        bad = [name for name in ("bnb-nf4", "bnb-nf4-nested", "bnb-fp4", "bnb-fp4-nested", "bnb-int8") if check(name, pathlib.Path(scratch))]
    print("differs: " + ", ".join(bad) if bad else "the same")
    sys.exit(bool(bad))
