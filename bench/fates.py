"""Is what the planner chooses for activations - kept on the device, saved in host memory, recomputed - the fastest that there is?

A CPU device whose commands last as long as those of a made profile (RH_PACE), with memory of its own (RH_ROOM), runs each plan that the
planner compares (RH_PLAN) and the one that it chooses, over links of three rates: one over which saving is a loss, one over which part of the
rows pays, one over which all do. The device sleeps for most of each command, so a step's time is the pace's, not this machine's. A run's step
is its fastest after the first: other work on the machine only adds to it."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath("build/release/roundhouse")
HIDDEN, WIDE, LAYERS, TOKENS, MICRO_BATCHES, STEPS = 64, 256, 8, 256, 4, 4
FLOPS, ROOM = 1.5e9, int(os.environ.get("FATES_ROOM", 7 << 20))
RATES = [float(word) for word in sys.argv[1:]] or [8e6, 40e6, 200e6]
WORTH = 0.03
PROFILE = """name: paced
devices: 1
device:
  name: paced
  memory: {room}
  on_host_cores: 1
  peaks: {{bf16: {flops}, f32: {flops}}}
  gemm:
    - {{product: f32, m: 512, n: 1024, k: 1024, fraction: 1}}
    - {{product: bf16, m: 512, n: 1024, k: 1024, fraction: 1}}
  other_flops_per_s: 1.0e15
  memory_bytes_per_s: 1.0e15
  launch_s: 5.0e-4
link: {{up_bytes_per_s: {rate}, down_bytes_per_s: {rate}, both_bytes_per_s: {both}}}
host: {{cores: 64, dram_bytes_per_s: 1.0e13, optimizer: {{split: 1.0e12, plain: 1.0e12, split8: 1.0e12}}}}
"""


def prepare(where, rate):
    os.makedirs(f"{where}/model", exist_ok=True)
    os.makedirs(f"{where}/roundhouse/hardware", exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"tests/reference/interchange/{name}", f"{where}/model/{name}")
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": HIDDEN, "intermediate_size": WIDE,
               "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": TOKENS,
               "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}, open(f"{where}/model/config.json", "w"))
    with open(f"{where}/rows.jsonl", "w") as rows:
        for i in range(STEPS * MICRO_BATCHES):
            rows.write(json.dumps({"prompt": "".join(chr(97 + (i * 7 + j * j) % 26) for j in range(TOKENS - 12)), "completion": "ab"}) + "\n")
    for path in ("paced.yaml", "roundhouse/hardware/local.yaml"):
        open(f"{where}/{path}", "w").write(PROFILE.format(room=ROOM, flops=FLOPS, rate=rate, both=2 * rate))
    keys = {"config_name": f"{where}/model", "train_file": f"{where}/rows.jsonl", "max_length": TOKENS, "max_steps": STEPS,
            "per_device_train_batch_size": 1, "gradient_accumulation_steps": MICRO_BATCHES, "learning_rate": "1.0e-4", "logging_steps": 1,
            "save_strategy": '"no"', "eval_strategy": '"no"', "allow": "[duplicates, cut-answers, overlap, untrained-rows]", "device": "cpu:1",
            "dtype": "float32", "max_ram": "2GiB"}
    open(f"{where}/run.yaml", "w").write("".join(f"{key}: {value}\n" for key, value in keys.items()))


def train(where, plan=None):
    """Seconds a step, losses, and what is said of the plan: its number, how many there are, the judge's choice."""
    out = f"{where}/out"
    shutil.rmtree(out, ignore_errors=True)
    env = dict(os.environ, XDG_CONFIG_HOME=where, RH_PACE=f"{where}/paced.yaml", RH_ROOM=str(ROOM))
    if plan is not None:
        env["RH_PLAN"] = str(plan)
    ran = subprocess.run([PROGRAM, "train", f"{where}/run.yaml", "--output_dir", out, "--json"], capture_output=True, text=True, env=env)
    if ran.returncode:
        sys.exit(f"train: {ran.stderr.strip()}")
    lines = [json.loads(line) for line in open(f"{out}/metrics.jsonl")]
    lines = [line for line in lines if "loss" in line]
    ends = [line["elapsed_seconds"] for line in lines]
    steps = [b - a for a, b in zip(ends, ends[1:])]
    said = re.search(r"plan (\d+) of (\d+), in place of (\d+)", ran.stderr)
    return min(steps), [line["loss"] for line in lines], [int(word) for word in said.groups()] if said else None


def predict(where):
    ran = subprocess.run([PROGRAM, "plan", f"{where}/run.yaml", "--hardware", f"{where}/paced.yaml", "--json"], capture_output=True, text=True,
                         env=dict(os.environ, XDG_CONFIG_HOME=where))
    plan = json.loads(ran.stdout)
    return plan["step_seconds"] if plan["fits"] else float("nan")


def main():
    worst = 0
    where = tempfile.mkdtemp(prefix="rh-fates-", dir="/dev/shm")
    try:
        for rate in RATES:
            prepare(where, rate)
            planned = predict(where)
            first, losses, said = train(where, 0)
            count, chosen = said[1], said[2]
            seconds = [first]
            for plan in range(1, count):
                took, also, _ = train(where, plan)
                seconds.append(took)
                if also != losses:
                    sys.exit(f"plan {plan} has other losses")
            best = min(seconds)
            over = seconds[chosen] / best - 1
            worst = max(worst, over)
            shown = " ".join(f"{took * 1e3:.0f}{'*' if i == chosen else ''}" for i, took in enumerate(seconds))
            print(f"{rate / 1e6:6.0f} MB/s each way: planned {planned * 1e3:.0f} ms, measured ms a step of {count} plans: {shown}; "
                  f"the choice (*) {over * 100:.1f} % over the fastest; losses equal", flush=True)
    finally:
        shutil.rmtree(where)
    print(json.dumps({"bench": "fates", "value": worst, "unit": "the choice's time over the fastest plan's", "reference": WORTH,
                      "ratio": (1 + WORTH) / (1 + worst), "machine": f"{os.cpu_count()} cores, paced CPU device"}))


main()
