#!/usr/bin/env python3
"""The table of fluidpipe.sh: accuracy in percent, or a language model's perplexity; what is lost against the synchronous run, in points of
accuracy or in percent of its perplexity; and that loss's one-sided 95 % bound over seeds."""

import json
import math
import sys

CONTROLS, MARGIN, BAR = ("box 1 frozen", "box 1 alone"), 2.0, 2.0
# Student's t, one-sided 95 %, for 1 to 15 degrees of freedom; then the normal distribution's.
T95 = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753]


def mean(values):
    return sum(values) / len(values)


def bound(losses):
    """Above which the mean loss is with a chance of 5 %; None: one seed has no spread."""
    n = len(losses)
    if n < 2:
        return None
    spread = math.sqrt(sum((loss - mean(losses)) ** 2 for loss in losses) / (n - 1))
    return mean(losses) + (T95[n - 2] if n - 2 < len(T95) else 1.645) * spread / math.sqrt(n)


def lost(task, run, synchronous):
    return 100 * (run / synchronous - 1 if task == "language" else synchronous - run)


def tell(task, runs):
    unit, scale = ("perplexity", 1) if task == "language" else ("accuracy %", 100)
    synchronous, names = runs["synchronous"], [name for name in runs if name != "synchronous"]
    seeds = sorted(synchronous)
    print(f"\n{task}, {len(seeds)} seed{'s'[:len(seeds) > 1]}: {', '.join(map(str, seeds))}")
    print(f"{'run':<16}{unit:>12}{'lost, %' if scale == 1 else 'loss, points':>14}{'95 % bound':>12}")
    print(f"{'synchronous':<16}{scale * mean(list(synchronous.values())):>12.2f}")
    result = dict(task=task, seeds=len(seeds))
    for name in names:
        losses = [lost(task, runs[name][seed], synchronous[seed]) for seed in seeds]
        most = bound(losses)
        print(f"{name:<16}{scale * mean([runs[name][seed] for seed in seeds]):>12.2f}{mean(losses):>14.2f}" + (f"{most:>12.2f}" if most is not None else f"{'-':>12}"))
        result[name] = dict(loss=round(mean(losses), 3), bound=None if most is None else round(most, 3))
    counts = all(name in result and result[name]["loss"] >= MARGIN for name in CONTROLS)
    print(f"the synchronous run beats both controls by 2 {'%' if scale == 1 else 'points'}" if counts else
          "the task says nothing: a control is within 2 of the synchronous run, or was not run")
    result["counts"] = counts
    result["within"] = [name for name in names if name not in CONTROLS and result[name]["bound"] is not None and result[name]["bound"] < BAR]
    return result


def main():
    tasks = {}
    for line in open(sys.argv[1]):
        row = json.loads(line)
        value = math.exp(row["eval_loss"]) if row["task"] == "language" else row["eval_accuracy"]
        tasks.setdefault(row["task"], {}).setdefault(row["run"], {})[row["seed"]] = value
    print(json.dumps(dict(bench="fluidpipe-accuracy", tasks=[tell(task, runs) for task, runs in tasks.items()])))


main()
