#!/usr/bin/env python3
"""The driver of bench/preference.sh: makes the pairs, runs ours and TRL one after the other, and prints one JSON line.

Tokens are those that are no padding, each once; seconds those of the reference's pass and of training, without loading. Processor time is that of the
whole process with loading (ours), and of these two alone (TRL).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = "build/release/roundhouse"
PEER = ["build/venv/run", "bench/preference-peer.py"]
OTHER = {"great<|im_end|>": "other<|im_end|>", "other<|im_end|>": "great<|im_end|>"}
RATE, BATCH, BETA = 5e-5, 8, 0.1


def shortened(prompt, words):
    """The prompt with the first words of its review."""
    begin, rest = prompt.split("great or other?\n", 1)
    review, end = rest.split("<|im_end|>", 1)
    return f"{begin}great or other?\n{' '.join(review.split()[:words])}<|im_end|>{end}"


def make_pairs(arguments, out):
    pairs = []
    with open("build/demo/train-full.jsonl", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            pairs.append(dict(prompt=shortened(row["prompt"], arguments.words), chosen=row["completion"], rejected=OTHER[row["completion"]]))
    for name, part in (("train", pairs[:arguments.train]), ("held-out", pairs[arguments.train:arguments.train + arguments.held_out])):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in part))


def measured(command):
    """Runs a command: its last line of output as JSON, and its processor seconds."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: exit {os.waitstatus_to_exitcode(status)}")
    return json.loads(text.splitlines()[-1]), usage.ru_utime + usage.ru_stime


def share_right(arguments, work, adapter):
    """Both answers have two tokens, so SimPO's rewards, means of a token, tell which has the larger sum."""
    result, _ = measured([OURS, "eval", "--model_name_or_path", arguments.directory, "--adapter_name_or_path", adapter, "--validation_file",
                          work / "held-out.jsonl", "--loss_type", "simpo", "--dtype", dtype(arguments), "--device", "cpu", "--json",
                          "--allow", "[duplicates, no-end-of-turn]"])
    return result["eval_rewards/accuracies"]


def dtype(arguments):
    return "bfloat16" if arguments.bf16 else "float32"


def run_ours(arguments, work):
    adapter, out = work / "adapter", work / "out"
    settings = dict(model_name_or_path=arguments.directory, adapter_name_or_path=str(adapter), train_file=str(work / "train.jsonl"), output_dir=str(out),
                    loss_type="sigmoid", beta=BETA, per_device_train_batch_size=BATCH, num_train_epochs=1, train_sampling_strategy="sequential",
                    learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0, max_grad_norm=1, max_length=512, logging_steps=1, save_strategy="no",
                    device="cpu", dtype=dtype(arguments), allow=["duplicates", "no-end-of-turn"])
    path = work / "config.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    before = share_right(arguments, work, adapter)
    result, processor = measured([OURS, "train", path, "--json"])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    tokens = result["tokens_per_second"] * result["seconds"]
    return dict(before=before, after=share_right(arguments, work, out), tokens=round(tokens), seconds=result["reference_seconds"] + result["seconds"],
                processor_seconds=processor, loss=[line["loss"] for line in steps], peak_bytes=result["peak_bytes"]["ram"])


def rounded(run):
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in run.items() if key != "loss"}


def main():
    parser = argparse.ArgumentParser(description="bench/preference")
    parser.add_argument("--directory", required=True, help="the model in full precision, for both")
    parser.add_argument("--train", type=int, default=500)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    if not os.path.exists(OURS):
        sys.exit(f"{OURS} is missing: run `make`")
    with tempfile.TemporaryDirectory(dir="build") as temporary:
        work = Path(temporary)
        make_pairs(arguments, work)
        subprocess.run([*PEER, "adapter", arguments.directory, work / "adapter"], check=True)
        ours = run_ours(arguments, work)
        print(f"ours: {json.dumps(rounded(ours))}", flush=True)
        peer, _ = measured([*PEER, "train", arguments.directory, work, "--learning-rate", RATE, "--batch", BATCH, "--beta", BETA]
                           + ["--bf16"] * arguments.bf16)
        print(f"TRL:  {json.dumps(rounded(peer))}", flush=True)
    assert ours["tokens"] == peer["tokens"] and len(ours["loss"]) == len(peer["loss"]), "not the same work"
    speed = {name: run["tokens"] / run["seconds"] for name, run in (("ours", ours), ("peer", peer))}
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours["loss"], peer["loss"]))
    within = abs(ours["after"] - peer["after"]) <= 0.01 and abs(ours["before"] - peer["before"]) <= 0.01
    print(json.dumps(dict(bench="preference", value=round(speed["ours"], 1), unit="tokens/s", reference=round(speed["peer"], 1),
                          ratio=round(speed["ours"] / speed["peer"], 2),
                          processor_time_ratio=round(peer["processor_seconds"] / ours["processor_seconds"], 2), dtype=dtype(arguments),
                          before=ours["before"], after=ours["after"], reference_before=peer["before"], reference_after=peer["after"],
                          losses_apart=float(f"{apart:.3g}"), pairs=arguments.train, held_out=arguments.held_out, words=arguments.words,
                          cores=len(os.sched_getaffinity(0)), within=within)))
    return not within


if __name__ == "__main__":
    sys.exit(main())
