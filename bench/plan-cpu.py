#!/usr/bin/env python3
"""The driver of bench/plan-cpu.sh. A step's time is the median of all but the first; memory is what the devices and the process
took at most, as `train --json` says."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = os.environ.get("ROUNDHOUSE", "build/release/roundhouse")
TOKENIZER = Path("tests/reference/interchange")
VOCABULARY = 8192
# A plan counts 256 MiB for the program; 11 to 15 of them are there at the peak of such small runs.
ALLOWANCE, RESIDENT = 256 << 20, 15 << 20


def model(hidden, intermediate, layers, heads, kv_heads, tied=True):
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=intermediate,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
                vocab_size=VOCABULARY, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
                tie_word_embeddings=tied, initializer_range=0.02, bos_token_id=0, eos_token_id=0, torch_dtype="float32")


def config(name, shape, length, rows, micro_batches, **keys):
    return dict(name=name, shape=shape, keys=dict(max_length=length, per_device_train_batch_size=rows,
                                                 gradient_accumulation_steps=micro_batches, **keys))


LORA = dict(lora_r=8, lora_alpha=16, lora_dropout=0.0, lora_target_modules="all-linear")
SMALL, MIDDLE, WIDE, HUGE = model(576, 1536, 8, 9, 3), model(768, 2048, 8, 12, 4), model(1024, 2816, 4, 16, 8, False), model(2048, 5632, 2, 32, 8)
CONFIGS = [
    config("full", SMALL, 128, 4, 1),
    config("lora", SMALL, 128, 4, 1, **LORA),
    config("full-bf16", SMALL, 128, 8, 1, dtype="bfloat16"),
    config("lora-bf16-long", SMALL, 512, 2, 2, dtype="bfloat16", **dict(LORA, lora_r=16)),
    config("wide", WIDE, 256, 2, 1),
    config("wide-bf16-split8", WIDE, 512, 1, 4, dtype="bfloat16", state_layout="split8"),
    config("two-devices", model(384, 1024, 12, 6, 2), 128, 2, 4, device="cpu:2"),
    config("two-devices-lora", MIDDLE, 192, 1, 4, device="cpu:2", **dict(LORA, lora_r=16, lora_dropout=0.05)),
    config("capped-rounds", SMALL, 128, 2, 4, max_vram="64MiB", round_micro_batches=2),
    config("async-two-devices", MIDDLE, 256, 1, 4, device="cpu:2", dtype="bfloat16", optimizer_staleness=1),
    config("gpipe", model(512, 1408, 8, 8, 8), 256, 1, 4, device="cpu:2", schedule="gpipe"),
    config("huge", HUGE, 128, 2, 2),
]


def run(command, environment):
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}: {process.stderr.strip().splitlines()[-1:]}")
    return json.loads(process.stdout.splitlines()[-1])


def write_inputs(directory, entry, steps):
    """A directory with config.json and tokenizer, rows that are longer than any cut, and the configuration."""
    home = directory / entry["name"]
    home.mkdir()
    (home / "config.json").write_text(json.dumps(entry["shape"]))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (home / name).write_bytes((TOKENIZER / name).read_bytes())
    keys = entry["keys"]
    rows = keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"] * steps
    text = "the quick brown fox jumps over the lazy dog and on " * (keys["max_length"] // 4)
    (home / "rows.jsonl").write_text("".join(json.dumps({"text": f"{i} {text}"}) + "\n" for i in range(rows)))
    settings = dict(config_name=str(home), train_file=str(home / "rows.jsonl"), output_dir=str(home / "out"), max_steps=steps,
                    logging_steps=1, save_strategy="no", train_sampling_strategy="sequential", device="cpu:1", learning_rate=1e-4)
    settings.update(keys)
    path = home / "run.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    return home, path


def measure(home, path, keys, environment):
    result = run([PROGRAM, "train", path, "--json"], environment)
    lines = [json.loads(line) for line in (home / "out/metrics.jsonl").read_text().splitlines()]
    tokens = keys["max_length"] * keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"]
    seconds = [tokens / line["tokens_per_second"] for line in lines if "tokens_per_second" in line][1:]
    waits = {key: statistics.median(line[key] for line in lines[1:]) for key in
             ("compute_seconds", "weights_wait_seconds", "activations_wait_seconds", "gradients_wait_seconds", "optimizer_wait_seconds")}
    return dict(step=statistics.median(seconds), steps=seconds, vram=result["peak_bytes"]["vram"], ram=result["peak_bytes"]["ram"],
                planned=result["plan"]["peak_bytes"], **waits)


def predict(path, environment):
    plan = run([PROGRAM, "plan", path, "--json"], environment)
    return dict(step=plan["step_seconds"], ram=plan["tiers"]["ram"]["used_bytes"] - ALLOWANCE + RESIDENT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    chosen = [entry for entry in CONFIGS if not arguments.only or entry["name"] in arguments.only.split(",")]
    kept = json.loads(arguments.measured.read_text()) if arguments.measured else {}
    with tempfile.TemporaryDirectory(dir="build") as temporary:
        home = Path(temporary).resolve()
        environment = dict(os.environ, XDG_CONFIG_HOME=str(home))
        profiles = home / "roundhouse/hardware"
        profiles.mkdir(parents=True)
        if arguments.profile:
            (profiles / "local.yaml").write_bytes(arguments.profile.read_bytes())
        else:
            run([PROGRAM, "doctor", "--device", "cpu:1", "--save", "local", "--json"], environment)
        measured, predicted = {}, {}
        for entry in chosen:
            name = entry["name"]
            where, path = write_inputs(home, entry, arguments.steps)
            measured[name] = kept.get(name) or measure(where, path, entry["keys"], environment)
            predicted[name] = None if arguments.keep else predict(path, environment)
        if arguments.keep:
            arguments.keep.write_text(json.dumps(measured, indent=1))
            return
    print(f"{'configuration':20} {'step ms':>9} {'planned':>9} {'error':>7} {'device MiB':>11} {'planned':>9} {'process MiB':>12} {'planned':>9}")
    errors, memory = [], []
    for name, found in measured.items():
        plan = predicted[name]
        errors.append(plan["step"] / found["step"] - 1)
        memory.append(plan["ram"] / found["ram"] - 1)
        print(f"{name:20} {found['step'] * 1e3:9.1f} {plan['step'] * 1e3:9.1f} {errors[-1] * 100:6.1f}% {found['vram'] / 2**20:11.1f} "
              f"{found['planned']['vram'] / 2**20:9.1f} {found['ram'] / 2**20:12.1f} {plan['ram'] / 2**20:9.1f}")
    median = statistics.median(abs(error) for error in errors)
    under = sum(found["planned"]["vram"] < found["vram"] or predicted[name]["ram"] < found["ram"] for name, found in measured.items())
    print(json.dumps(dict(bench="plan-cpu", value=round(median * 100, 2), unit="percent off, median", reference=10,
                          ratio=round(0.1 / max(median, 1e-9), 3), worst=round(max(abs(error) for error in errors) * 100, 1),
                          memory_off=round(max(abs(error) for error in memory) * 100, 3), under_the_peak=under,
                          configurations=len(errors), machine=platform.processor() or platform.machine())))


main()
