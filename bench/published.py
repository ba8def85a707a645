"""The table of bench/published.sh. Figures: RoundPipe, arXiv 2604.27085 (figures 9 and 10, and its artifact); torchtune's and MegaTrain's own."""
import json
import subprocess
import sys

FP16, BF16 = "fp16 sums", "bf16"
LORA = ["--use-peft", "true", "--lora-target-modules", "all-linear"]
STALE = ["--optimizer-staleness", "1"]
# model, machine, devices, what, words, published tokens/s, published precision, who
ROWS = [
    ("qwen3-1.7b", "rtx4090x8", 8, "all weights, stale", STALE, 65417, FP16, "RoundPipe"),
    ("qwen3-1.7b", "rtx4090x8", 8, "all weights", [], 56489, FP16, "RoundPipe"),
    ("qwen3-1.7b", "rtx4090x8", 1, "all weights, stale", STALE, 8881, FP16, "RoundPipe"),
    ("llama-3.1-8b", "rtx4090x8", 8, "all weights, stale", STALE, 24275, FP16, "RoundPipe"),
    ("llama-3.1-8b", "rtx4090x8", 8, "all weights", [], 18888, FP16, "RoundPipe"),
    ("llama-3.1-8b", "rtx4090x8", 1, "all weights, stale", STALE, 3142, FP16, "RoundPipe"),
    ("llama-3.1-8b", "rtx4090x1", 1, "LoRA", LORA, 3083, BF16, "torchtune"),
    ("qwen3-32b", "rtx4090x8", 8, "all weights, stale", STALE, 5516, FP16, "RoundPipe"),
    ("qwen3-32b", "rtx4090x8", 8, "all weights", [], 4164, FP16, "RoundPipe"),
    ("qwen3-32b", "rtx4090x8", 1, "all weights, stale", STALE, 740, FP16, "RoundPipe"),
    ("llama-3.1-70b", "rtx4090x8", 8, "LoRA", LORA, None, None, None),
]


def plan(program, model, machine, devices, words, sums):
    line = [program, "plan", f"examples/models/{model}.yaml", "--hardware", machine, "--gpus", str(devices), "--accumulation", sums,
            "--json", *words]
    ran = subprocess.run(line, capture_output=True, text=True)
    if not ran.stdout:
        sys.exit(f"{' '.join(line)}: {ran.stderr.strip()}")
    return json.loads(ran.stdout)


def show(is_):
    return f"{is_['tokens_per_second']:9.0f} {100 * is_['bubble']:6.1f}" if is_["fits"] else f"{'does not fit':>16}"


def main():
    program, told = sys.argv[1], []
    print(f"{'':14}{'':11}{'':20}{'plan, bf16':>16}  {'plan, fp16 sums':>16}  published")
    print(f"{'model':14}{'machine':11}{'what':20}{'tokens/s':>9} {'idle %':>6}  {'tokens/s':>9} {'idle %':>6}  tokens/s, precision, whose")
    for model, machine, devices, what, words, published, precision, who in ROWS:
        bf16, fp16 = (plan(program, model, machine, devices, words, sums) for sums in ("fp32", "fp16"))
        beside = f"{published:7d} {precision}, {who}" if published else ""
        print(f"{model:14}{devices} x {machine[3:7]:7}{what:20}{show(bf16)}  {show(fp16)}  {beside}")
        same = fp16 if precision == FP16 else bf16
        if published and same["fits"]:
            told.append(same["tokens_per_second"] / published)
    middle = sorted(told)[len(told) // 2]
    print(json.dumps({"bench": "published", "value": round(middle, 3), "unit": "planned tokens/s over published, same precision, median",
                      "reference": 1, "ratio": round(middle, 3), "rows": [round(t, 3) for t in told], "machine": "simulated"}))


main()
