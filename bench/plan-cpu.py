#!/usr/bin/env python3
"""The driver of bench/plan-cpu.sh. A step's time is the mean of all but the first; memory is what the devices and the process took at most,
as `train --json` says."""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = os.environ.get("ROUNDHOUSE", "build/release/roundhouse")
TOKENIZER = Path("tests/reference/interchange")
VOCABULARY = 8192


def model(hidden, intermediate, layers, heads, kv_heads, tied=True):
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=intermediate,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
                vocab_size=VOCABULARY, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
                tie_word_embeddings=tied, initializer_range=0.02, bos_token_id=0, eos_token_id=0, torch_dtype="float32")


def config(name, about, shape, length, rows, micro_batches, **keys):
    """about: seconds of a step, to cut the pieces by."""
    return dict(name=name, about=about, shape=shape, keys=dict(max_length=length, per_device_train_batch_size=rows,
                                                 gradient_accumulation_steps=micro_batches, **keys))


LORA = dict(lora_r=8, lora_alpha=16, lora_dropout=0.0, lora_target_modules="all-linear")
SMALL, MIDDLE, WIDE, HUGE = model(576, 1536, 8, 9, 3), model(768, 2048, 8, 12, 4), model(1024, 2816, 4, 16, 8, False), model(2048, 5632, 2, 32, 8)
CONFIGS = [
    config("full", 0.7, SMALL, 128, 4, 1),
    config("lora", 0.6, SMALL, 128, 4, 1, **LORA),
    config("full-bf16", 0.6, SMALL, 128, 8, 1, dtype="bfloat16"),
    config("lora-bf16-long", 1.1, SMALL, 512, 2, 2, dtype="bfloat16", **dict(LORA, lora_r=16)),
    config("wide", 1.3, WIDE, 256, 2, 1),
    config("wide-bf16-split8", 2, WIDE, 512, 1, 4, dtype="bfloat16", state_layout="split8"),
    config("two-devices", 1.4, model(384, 1024, 12, 6, 2), 128, 2, 4, device="cpu:2"),
    config("two-devices-lora", 2.1, MIDDLE, 192, 1, 4, device="cpu:2", **dict(LORA, lora_r=16, lora_dropout=0.05)),
    config("capped-rounds", 2, SMALL, 128, 2, 4, max_vram="64MiB", round_micro_batches=2),
    config("async-two-devices", 1.3, MIDDLE, 256, 1, 4, device="cpu:2", dtype="bfloat16", optimizer_staleness=1),
    config("gpipe", 1.7, model(512, 1408, 8, 8, 8), 256, 1, 4, device="cpu:2", schedule="gpipe"),
    config("huge", 3, HUGE, 128, 2, 2),
]


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
    settings = dict(config_name=str(home), train_file=str(home / "rows.jsonl"), max_steps=steps, logging_steps=1, save_strategy="no",
                    train_sampling_strategy="sequential", device="cpu:1", learning_rate=1e-4)
    settings.update(keys)
    (home / "run.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))


def run_piece(under, home, commands):
    """Commands one after another in one go, each with its output in a file."""
    lines = [" ".join(shlex.quote(str(word)) for word in command) + f" > {home}/{name}.json 2> {home}/{name}.err"
             for name, command in commands]
    environment = dict(os.environ, XDG_CONFIG_HOME=str(home))
    if subprocess.run(under + ["sh", "-c", " && ".join(lines)], env=environment).returncode:
        worst = [name for name, _ in commands if (home / f"{name}.err").exists()][-1]
        sys.exit(f"{worst}: {(home / f'{worst}.err').read_text().strip()}")


def result(home, name):
    return json.loads((home / f"{name}.json").read_text().splitlines()[-1])


def step_seconds(home, out, keys, part=None):
    """The mean of all steps but the first, which is what a run's speed is made of; or a part of it."""
    lines = [json.loads(line) for line in (home / out / "metrics.jsonl").read_text().splitlines()]
    tokens = keys["max_length"] * keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"]
    return statistics.mean([line[part] if part else tokens / line["tokens_per_second"] for line in lines if "tokens_per_second" in line][1:])


def trains(home, round_number, entry):
    name = f"{entry['name']}-{round_number}"
    return name, [PROGRAM, "train", home / entry["name"] / "run.yaml", "--output_dir", home / f"out-{name}", "--json"]


def measures(number, name, seconds):
    """Drives are no part of it: any directory will do."""
    return f"doctor-{number}-{name}", [PROGRAM, "doctor", "--device", "cpu:1", "--measure_seconds", str(seconds), "--nvme_dirs", "[/dev/shm]",
                                       "--save", "local", "--json"]


def plans(home, number, entry, when):
    return f"plan-{number}-{entry['name']}-{when}", [PROGRAM, "plan", home / entry["name"] / "run.yaml", "--json"]


def one_round(home, number, chosen, arguments):
    """Doctor, a prediction, a run; doctor again, and so on: a run lies between two measurements, of which the first predicts it."""
    pieces, seconds, before = [[]], 0, None
    for entry in chosen + [None]:
        if seconds > arguments.piece:
            pieces.append([])
            seconds = 0
        name = entry["name"] if entry else "end"
        pieces[-1].append(measures(number, name, arguments.measure))
        if before:
            pieces[-1].append(plans(home, number, before, "after"))
        if entry:
            pieces[-1] += [plans(home, number, entry, "before"), trains(home, number, entry)]
            seconds += arguments.measure + 4 + entry["about"] * arguments.steps + 1
        before = entry
    for piece in pieces:
        run_piece(shlex.split(arguments.under), home, piece)
    found = {}
    for entry in chosen:
        name = entry["name"]
        plan, later, train = (result(home, of) for of in (f"plan-{number}-{name}-before", f"plan-{number}-{name}-after", f"{name}-{number}"))
        step, busy = (step_seconds(home, f"out-{name}-{number}", entry["keys"], part) for part in (None, "compute_seconds"))
        found[name] = dict(step=step, planned=plan["step_seconds"], after=later["step_seconds"], busy=busy / step,
                           busy_planned=1 - plan["bubble"], vram=train["peak_bytes"]["vram"], vram_planned=train["plan"]["peak_bytes"]["vram"],
                           ram=train["peak_bytes"]["ram"], ram_planned=plan["tiers"]["ram"]["used_bytes"])
    return found


def show(rounds):
    print(f"{'configuration':20} {'step ms':>9} {'planned':>9} {'error':>7} {'of both':>8} {'each round':>22} {'busy %':>7} {'planned':>7} "
          f"{'device MiB':>11} {'planned':>9} {'process MiB':>12} {'planned':>9}")
    plain, corrected, memory, under = [], [], [], 0
    for name in rounds[0]:
        each = [one[name] for one in rounds]
        step, planned = (statistics.median(one[key] for one in each) for key in ("step", "planned"))
        plain.append(planned / step - 1)
        corrected.append(statistics.median((one["planned"] + one["after"]) / 2 / one["step"] for one in each) - 1)
        worst = max(each, key=lambda one: one["ram"])
        memory += [one["ram_planned"] / one["ram"] - 1 for one in each]
        under += sum(one["ram_planned"] < one["ram"] or one["vram_planned"] < one["vram"] for one in each)
        errors = " ".join(f"{100 * (one['planned'] / one['step'] - 1):6.1f}%" for one in each)
        print(f"{name:20} {step * 1e3:9.1f} {planned * 1e3:9.1f} {plain[-1] * 100:6.1f}% {corrected[-1] * 100:7.1f}% {errors:>22} "
              f"{100 * statistics.median(one['busy'] for one in each):7.1f} {100 * statistics.median(one['busy_planned'] for one in each):7.1f} "
              f"{worst['vram'] / 2**20:11.1f} {worst['vram_planned'] / 2**20:9.1f} {worst['ram'] / 2**20:12.1f} {worst['ram_planned'] / 2**20:9.1f}")
    median = statistics.median(abs(error) for error in plain)
    moved = [one[name]["after"] / one[name]["planned"] for one in rounds for name in one]
    print(json.dumps(dict(bench="plan-cpu", value=round(median * 100, 2), unit="percent off, median", reference=10,
                          ratio=round(0.1 / max(median, 1e-9), 3), mean_signed=round(statistics.mean(plain) * 100, 1),
                          worst=round(max(abs(error) for error in plain) * 100, 1),
                          between_both=round(statistics.median(abs(error) for error in corrected) * 100, 2),
                          measured_again=[round(min(moved), 2), round(max(moved), 2)],
                          memory_off=round(max(abs(error) for error in memory) * 100, 3), under_the_peak=under,
                          configurations=len(plain), rounds=len(rounds), machine=platform.processor() or platform.machine())))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--under", default="")
    parser.add_argument("--piece", type=float, default=35)
    parser.add_argument("--measure", type=int, default=8)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--show", type=Path)
    arguments = parser.parse_args()
    if arguments.show:
        show(json.loads(arguments.show.read_text()))
        return
    chosen = [entry for entry in CONFIGS if not arguments.only or entry["name"] in arguments.only.split(",")]
    rounds = []
    with tempfile.TemporaryDirectory(dir="build") as temporary:
        home = Path(temporary).resolve()
        (home / "roundhouse/hardware").mkdir(parents=True)
        for entry in chosen:
            write_inputs(home, entry, arguments.steps)
        for number in range(arguments.rounds):
            rounds.append(one_round(home, number, chosen, arguments))
            if arguments.keep:
                arguments.keep.write_text(json.dumps(rounds, indent=1))
    show(rounds)


main()
