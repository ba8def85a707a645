#!/usr/bin/env python3
"""The driver of bench/train-cpu.sh: runs ours and the peer in turn, measures both alike and prints one JSON line.

Speed: tokens that are no padding, a second, as each program says: loading is left out, of the peer also the first step. Memory: the largest
resident set of the process from start to end (what /usr/bin/time calls "maximum resident set size"), program and libraries included.
Both train on the first steps x 8 rows in file order, with the demo's recipe.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

OURS = "build/release/roundhouse"
# Full fine-tuning runs under a device cap: weights stream through it in stages, some of them with recompute, so that the peak stays low.
RECIPE = {"lora": dict(lora_r=8, lora_alpha=16, lora_dropout=0.0, lora_target_modules="all-linear"), "full": dict(max_vram="600MiB")}


def measured(command):
    """Runs a command: (its last line of output as JSON, peak resident bytes, seconds)."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)  # its own peak, where getrusage(RUSAGE_CHILDREN) keeps the largest of all
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}")
    return json.loads(lines[-1]), usage.ru_maxrss * 1024, time.monotonic() - begin


def learning_rate(mode):
    return 5e-4 if mode == "lora" else 2e-5


def run_ours(arguments, mode):
    with tempfile.TemporaryDirectory(dir="build") as temporary:
        settings = dict(model_name_or_path=arguments.model, train_file=arguments.rows, output_dir=f"{temporary}/out",
                        per_device_train_batch_size=8, max_steps=arguments.steps, train_sampling_strategy="sequential",
                        completion_only_loss=True, learning_rate=learning_rate(mode), lr_scheduler_type="cosine", warmup_steps=10,
                        logging_steps=1, save_strategy="no", device="cpu", dtype="bfloat16" if arguments.bf16 else "float32",
                        **RECIPE[mode])
        path = Path(temporary) / "config.yaml"
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
        result, peak, seconds = measured([OURS, "train", path, "--json"])
        metrics = (Path(temporary) / "out/metrics.jsonl").read_text().splitlines()
    losses = [line["loss"] for line in map(json.loads, metrics) if "loss" in line]
    return dict(tokens_per_second=result["tokens_per_second"], peak=peak, seconds=seconds, loss=losses)


def run_peer(arguments, mode):
    command = ["build/venv/run", "bench/train-cpu-peer.py", "train", arguments.directory, arguments.rows, "--mode", mode,
               "--steps", str(arguments.steps), "--learning-rate", str(learning_rate(mode))]
    command += ["--bf16"] * arguments.bf16 + ["--gradient-checkpointing"] * arguments.checkpointing
    result, peak, seconds = measured(command)
    return dict(tokens_per_second=result["tokens_per_second"], peak=max(peak, result["peak_rss_bytes"]), seconds=seconds,
                loss=result["loss"])


def best(runs):
    """The fastest run, and the smallest peak of all."""
    return dict(max(runs, key=lambda r: r["tokens_per_second"]), peak=min(r["peak"] for r in runs))


def compare(arguments, mode):
    ours, peer = [], []
    for _ in range(arguments.repeat):
        if not arguments.peer_only:
            ours.append(run_ours(arguments, mode))
        peer.append(run_peer(arguments, mode))
    reference = best(peer)
    out = dict(reference=reference["tokens_per_second"], reference_peak_bytes=reference["peak"], reference_loss=reference["loss"][-1])
    if ours:
        mine = best(ours)
        if len(mine["loss"]) != len(reference["loss"]):
            sys.exit(f"{mode}: ours logged {len(mine['loss'])} steps, the peer {len(reference['loss'])}: not the same work")
        apart = max(abs(a - b) / abs(b) for a, b in zip(mine["loss"], reference["loss"]))
        out.update(value=mine["tokens_per_second"], ratio=round(mine["tokens_per_second"] / reference["tokens_per_second"], 3),
                   peak_bytes=mine["peak"], peak_ratio=round(mine["peak"] / reference["peak"], 3), loss=mine["loss"][-1],
                   losses_apart=float(f"{apart:.3g}"))
    print(f"{mode}: {json.dumps(out)}", flush=True)
    return out


def machine():
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return f"{len(os.sched_getaffinity(0))} cores, {model}"


def main():
    parser = argparse.ArgumentParser(description="bench/train-cpu")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--directory", required=True, help="the model dequantised, for the peer")
    parser.add_argument("--modes", default="lora,full")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the best of each is taken")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing for the peer: less memory, slower")
    arguments = parser.parse_args()
    if not arguments.peer_only and not shutil.which(OURS):
        sys.exit(f"{OURS} is missing: run `make`")
    modes = {mode: compare(arguments, mode) for mode in arguments.modes.split(",")}
    first = next(iter(modes.values()))
    print(json.dumps(dict(bench="train-cpu", value=first.get("value"), unit="tokens/s", reference=first["reference"],
                          ratio=first.get("ratio"), machine=machine(), dtype="bfloat16" if arguments.bf16 else "float32",
                          steps=arguments.steps, batch=8, modes=modes)))


if __name__ == "__main__":
    main()
