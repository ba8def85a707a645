#!/usr/bin/env python3
"""Results of fluidpipe.sh, one JSON object a line.

    fluidpipe.py glosses DICT DIR    WordNet's definitions, each with the number of its lexicographer file (45: noun.animal, verb.motion, ...):
                                     DIR/train.jsonl, and DIR/test.jsonl of 2,000
    fluidpipe.py row NAME=JSON...    prints one: of evaluations (`eval`, `alone`) the accuracy and the loss
    fluidpipe.py table RESULTS       accuracy in percent, or a language model's perplexity. Part quality: what is lost against the synchronous
                                     run of the same seed, in points or in percent of its perplexity, and the loss's one-sided 95 % bound
    fluidpipe.py steps EPOCHS        from `plan --json` of mode fluidpipe: how many steps the synchronous pipeline makes in the time of its epochs
    fluidpipe.py part CHECKPOINT PART OUT     of box 1's partial model, a checkpoint, what PART, box 1's result, has of the whole model
    fluidpipe.py draw RESULTS        part samplers' accuracy against time, as SVG
"""

import json
import math
import random
import shutil
import sys
from pathlib import Path

LANGUAGE = ("language", "smollm2")
CONTROLS, MARGIN, BAR = ("box 1 frozen", "box 1 alone"), 2.0, 2.0
# Student's t, one-sided 95 %, for 1 to 15 degrees of freedom; then the normal distribution's.
T95 = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753]
COLOURS = ["#222222", "#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2"]


def glosses(dictionary, out):
    rows = []
    for name in ("noun", "verb", "adj", "adv"):
        for line in open(dictionary / f"data.{name}", encoding="utf-8"):
            if not line.startswith("  "):  # the licence
                fields, text = line.split(" | ", 1)
                rows.append(dict(text=text.split('; "')[0].strip(), label=int(fields.split()[1])))
    random.Random(1).shuffle(rows)
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("test", rows[:2000]), ("train", rows[2000:])):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def row(words):
    fields = {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}
    for name in {"eval", "alone"} & set(fields):
        fields[name] = fields[name] and {key: fields[name][key] for key in ("eval_accuracy", "eval_loss") if key in fields[name]}
    print(json.dumps(fields))


def read_tensors(path):
    data = (path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return {name: (entry, data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}


def part(checkpoint, result, out):
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(result, out, ignore=shutil.ignore_patterns("checkpoint-*", "SHA256SUMS"))
    tensors, header, blocks, end = read_tensors(checkpoint), {}, [], 0
    for name in read_tensors(result):
        entry, block = tensors[name]
        header[name] = dict(entry, data_offsets=[end, end + len(block)])
        blocks.append(block)
        end += len(block)
    text = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))


def mean(values):
    return sum(values) / len(values)


def bound(losses):
    """Above which the mean loss is with a chance of 5 %; None: one seed has no spread."""
    n = len(losses)
    if n < 2:
        return None
    spread = math.sqrt(sum((loss - mean(losses)) ** 2 for loss in losses) / (n - 1))
    return mean(losses) + (T95[n - 2] if n - 2 < len(T95) else 1.645) * spread / math.sqrt(n)


def score(task, evaluation):
    """Perplexity, or accuracy in percent."""
    return math.exp(evaluation["eval_loss"]) if task in LANGUAGE else 100 * evaluation["eval_accuracy"]


def lost(task, run, synchronous):
    return 100 * (run / synchronous - 1) if task in LANGUAGE else synchronous - run


def print_columns(widths, cells):
    """The first column to the left; None: nothing to tell."""
    texts = ["-" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("".join(f"{text:<{width}}" if k == 0 else f"{text:>{width}}" for k, (width, text) in enumerate(zip(widths, texts))))


def show_quality(task, rows):
    of_language, widths, runs, summary = task in LANGUAGE, (16, 6, 12, 14, 12), {}, dict(task=task)
    for result in rows:
        runs.setdefault(result["run"], {})[result["seed"]] = score(task, result["eval"])
        if result["run"] == "FP-ND":
            runs.setdefault("box 1 alone", {})[result["seed"]] = score(task, result["alone"])
    synchronous = runs.pop("synchronous")
    print_columns(widths, ("run", "seeds", *(("perplexity", "lost, %") if of_language else ("accuracy %", "loss, points")), "95 % bound"))
    print_columns(widths[:3], ("synchronous", len(synchronous), mean(list(synchronous.values()))))
    for name, scores in runs.items():
        seeds = sorted(set(scores) & set(synchronous))
        losses = [lost(task, scores[seed], synchronous[seed]) for seed in seeds]
        most = bound(losses)
        print_columns(widths, (name, len(seeds), mean([scores[seed] for seed in seeds]), mean(losses), most))
        summary[name] = dict(seeds=len(seeds), loss=round(mean(losses), 3), bound=None if most is None else round(most, 3))
    summary["counts"] = all(name in summary and summary[name]["loss"] >= MARGIN for name in CONTROLS)
    summary["within"] = [name for name in runs if name not in CONTROLS and summary[name]["bound"] is not None and summary[name]["bound"] < BAR]
    print(f"the synchronous run beats both controls by 2 {'%' if of_language else 'points'}" if summary["counts"] else
          "the task says nothing: a control is within 2 of the synchronous run, or was not run")
    print(json.dumps(dict(bench="fluidpipe-accuracy", **summary)))


def show_runs(task, rows):
    """What each run knows, what its box 1 knows alone, and how many opportunistic steps both boxes made."""
    widths = (max(len(result["run"]) for result in rows) + 2, 5, 12, 13, 15, 9)
    print_columns(widths, ("run", "seed", "perplexity" if task in LANGUAGE else "accuracy %", "box 1 alone", "opportunistic", "seconds"))
    for result in rows:
        alone = result.get("alone") and score(task, result["alone"])
        print_columns(widths, (result["run"], result["seed"], score(task, result["eval"]), alone, result.get("opportunistic"), result.get("seconds")))


def show_losses(rows):
    """Of each run, and of its box 1 alone."""
    widths = (max(len(result["run"]) for result in rows) + 2, 5, 15, 13)
    print_columns(widths, ("run", "seed", "held-out loss", "box 1 alone"))
    for result in rows:
        losses = [result.get(name) and f'{result[name]["eval_loss"]:.4f}' for name in ("eval", "alone")]
        print_columns(widths, (result["run"], result["seed"], *losses))


def synchronous_steps(epochs, plan):
    speed = plan["modes"]["tokens_per_second"]
    return round(epochs * plan["modes"]["steps"] * speed["sync-pp"] / speed["fluidpipe"])


def draw(rows):
    """One panel for each round trip, one line for each sampler, one point for each checkpoint."""
    panels = {}
    for result in rows:
        sampler, trip = result["run"].split(", ")
        panels.setdefault(trip, {}).setdefault(sampler, []).append((result["seconds"], score(result["task"], result["eval"])))
    width, height, left, top, gap, every = 360, 260, 60, 40, 60, 20
    points = [point for panel in panels.values() for line in panel.values() for point in line]
    latest = math.ceil(max(seconds for seconds, _ in points) / every) * every
    lowest, highest = math.floor(min(value for _, value in points) / 5) * 5, math.ceil(max(value for _, value in points) / 5) * 5
    axes = 'fill="none" stroke="#222"'
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + len(panels) * (width + gap) - gap + 30}" height="{top + height + 80}" '
          'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>')
    for k, (trip, panel) in enumerate(panels.items()):
        x0 = left + k * (width + gap)
        x, y = (lambda seconds: x0 + width * seconds / latest), (lambda value: top + height * (highest - value) / (highest - lowest))
        print(f'<text x="{x0}" y="{top - 14}" font-size="14">accuracy, %, round trip {trip}</text>')
        for value in range(lowest, highest + 1, 5):
            print(f'<path d="M{x0} {y(value):.1f}h{width}" stroke="#ddd"/><text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
        for seconds in range(0, latest + 1, every):
            print(f'<path d="M{x(seconds):.1f} {top + height}v5" {axes}/>'
                  f'<text x="{x(seconds):.1f}" y="{top + height + 18}" text-anchor="middle">{seconds}</text>')
        print(f'<path d="M{x0} {top}v{height}h{width}" {axes}/>')
        print(f'<text x="{x0 + width / 2}" y="{top + height + 36}" text-anchor="middle">seconds since the start</text>')
        for colour, (sampler, line) in zip(COLOURS, panel.items()):
            path = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in line)
            print(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            for seconds, value in line:
                print(f'<circle cx="{x(seconds):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>')
    for k, (colour, sampler) in enumerate(zip(COLOURS, next(iter(panels.values())))):
        x0, y0 = left + 130 * k, top + height + 62
        print(f'<path d="M{x0} {y0 - 4}h20" stroke="{colour}" stroke-width="2"/><text x="{x0 + 26}" y="{y0}">{sampler}</text>')
    print("</svg>")


def main():
    what, words = sys.argv[1], sys.argv[2:]
    if what == "glosses":
        return glosses(*map(Path, words))
    if what == "row":
        return row(words)
    if what == "part":
        return part(*map(Path, words))
    if what == "steps":
        return print(synchronous_steps(int(words[0]), json.load(sys.stdin)))
    rows = [json.loads(line) for line in open(words[0])]
    if what == "draw":
        return draw(rows)
    print(f"\n{Path(words[0]).stem}")
    name = Path(words[0]).name
    if name.startswith("clock-"):
        return show_losses(rows)
    (show_quality if name.startswith("quality-") else show_runs)(rows[0]["task"], rows)


main()
