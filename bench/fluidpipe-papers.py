"""The table of bench/fluidpipe-papers.sh. Published: FluidPipe, two stages, tables 1 and 4 (mean time of an epoch). The opportunistic paper has no table."""
import json
import subprocess
import sys

# What the papers leave open is chosen here, once for all rows: both precisions; batches of 512 images (ViT's own paper) of 224 by 224, and of 16
# texts of 512 tokens; micro-batches; a line of 100 Gbit/s (their appendix A.3).
VIT = dict(model="vit-large", devices=2, micro=32, count=16, dtypes=["float32", "bfloat16"], words=[])
BERT = dict(model="bert-large", devices=1, micro=4, count=4, dtypes=["float32", "bfloat16"], words=["--max_length", "512"])
MBIT = 100000
# setup, task, samples, labels, unit in s, {round trip: (PP, {variant: FluidPipe})}
VARIANTS = {"ViT": ["DB", "DT", "DT-EL", "ND", "ND-EL"], "BERT": ["DB", "DB-EL", "DT", "DT-EL", "ND", "ND-EL"]}
TASKS = [
    ("ViT", "CIFAR-100", 50000, 100, 60, {0.01: (6.04, [3.77, 3.76, 3.77, 3.77, 3.77]), 25: (21.88, [9.96, 9.94, 9.96, 9.94, 9.96]),
                                          50: (29.99, [14.58, 14.55, 14.58, 14.56, 14.58])}),
    ("ViT", "Flowers-102", 1020, 102, 1, {0.01: (0.13, [0.1, 0.1, 0.1, 0.1, 0.1]), 25: (0.46, [0.23, 0.24, 0.24, 0.23, 0.24]),
                                          50: (0.69, [0.37, 0.38, 0.38, 0.37, 0.38])}),
    ("ViT", "Pets", 3680, 37, 1, {0.01: (1.86, [1.21, 1.21, 1.23, 1.22, 1.22]), 25: (6.67, [2.73, 2.74, 2.77, 2.75, 2.76]),
                                  50: (10.05, [4.45, 4.47, 4.52, 4.48, 4.51])}),
    ("BERT", "AG News", 120000, 4, 60, {0.01: (96.15, [86.2, 91.08, 85.95, 90.9, 86.03, 90.48]),
                                        25: (303.96, [91.13, 96.29, 90.87, 96.11, 90.96, 95.66])}),
    ("BERT", "IMDB", 25000, 2, 60, {0.01: (19.33, [15.01, 16.1, 15.04, 16.07, 15.05, 16.04]),
                                    25: (59.48, [19.57, 20.99, 19.61, 20.95, 19.62, 20.91])}),
    ("BERT", "Yelp", 650000, 5, 60, {0.01: (516.91, [470.74, 498.14, 468.61, 494.86, 440.77, 464.53]),
                                     25: (1707.26, [553.81, 586.06, 551.31, 582.2, 518.56, 546.51])}),
]
known = {}


def plan(program, setup, dtype, recipe, trip_ms):
    """A step in virtual time, and by the papers' formula; s. Logits are added by the epoch."""
    key = (setup["model"], dtype, recipe, trip_ms)
    if key in known:
        return known[key]
    line = [program, "plan", f"examples/models/{setup['model']}.yaml", "--hardware", "examples/hardware/a800x8.yaml", "--gpus", str(setup["devices"]),
            "--mode", "fluidpipe", "--boxes", "2", "--box_cuts", "13", "--fluidpipe_recipe", recipe, "--dtype", dtype,
            "--per_device_train_batch_size", str(setup["micro"]), "--gradient_accumulation_steps", str(setup["count"]),
            "--link_latency_ms", str(trip_ms / 2), "--link_mbit_per_second", str(MBIT), "--json", *setup["words"]]
    ran = subprocess.run(line, capture_output=True, text=True)
    if not ran.stdout:
        sys.exit(f"{' '.join(line)}: {ran.stderr.strip()}")
    told = json.loads(ran.stdout)
    known[key] = told["step_seconds"], told["modes"]["papers_fluidpipe_seconds"], told["modes"]["bytes"]
    return known[key]


def main():
    program, ratios = sys.argv[1], {}
    print("An epoch (ViT: CIFAR-100 in minutes, the others in seconds; BERT: minutes). PP: synchronous pipeline, FP: FluidPipe. Ours: simulated,\n"
          "then both by the papers' formulas with our compute times")
    print(f"{'':24}{'published':>22}   {'float32':34}   {'bfloat16':34}")
    print(f"{'task':12}{'ms':>5} {'variant':6}{'PP':>9}{'FP':>8}{'PP/FP':>6}" + f"   {'FP':>9}{'FP form.':>9}{'PP form.':>9}{'PP/FP':>7}" * 2)
    for kind, task, samples, labels, unit, trips in TASKS:
        setup = VIT if kind == "ViT" else BERT
        batch = setup["micro"] * setup["count"]
        steps = samples / batch
        for trip, (pp, fps) in trips.items():
            for variant, fp in zip(VARIANTS[kind], fps):
                print(f"{task:12}{trip:5g} {variant:6}{pp:9g}{fp:8g}{pp / fp:6.2f}", end="")
                for dtype in setup["dtypes"]:
                    step, formula, features = plan(program, setup, dtype, "FP-ND-EL" if "EL" in variant else "FP-ND", trip)
                    logits = 0 if variant.startswith("ND") else trip / 2e3 + samples * (4 * labels + 4) * 8 / (MBIT * 1e6)
                    m, way = setup["count"], trip / 2e3 + features / setup["count"] * 8 / (MBIT * 1e6)
                    plain = plan(program, setup, dtype, "FP-ND", trip)[1]
                    ours, by_formula, pipeline = steps * step + logits, steps * formula + logits, steps * (m + 1) * (plain / m + way)
                    print(f"   {ours / unit:9.2f}{by_formula / unit:9.2f}{pipeline / unit:9.2f}{pipeline / by_formula:7.2f}", end="")
                    ratios.setdefault((task, dtype), []).append(ours / unit / fp)
                print(flush=True)
    told = {f"{task} {dtype}": round(sorted(rows)[len(rows) // 2], 3) for (task, dtype), rows in ratios.items()}
    print(json.dumps({"bench": "fluidpipe-papers", "unit": "our epoch over the published one, median of a task's rows", **told, "machine": "simulated"}))


main()
