"""Longest sequences of the models in examples/models, by plans, each with its predicted speed and the budget that binds."""
import json
import subprocess
import sys

program = sys.argv[1]


def ask(*words):
    ran = subprocess.run([program, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(ran.stdout)


models = [
    ("llama-3.1-8b", "false", "8B, all weights", 1000, 300),
    ("llama-3.1-8b", "true", "8B, LoRA", 1000, None),
    ("qwen3-1.7b", "false", "1.7B, all weights", 1500, 740),
    ("gpt-oss-20b", "true", "gpt-oss-20b, LoRA", 2000, 620),
    ("qwen3-32b", "true", "32B, LoRA", 1000, 115),
    ("qwen3-235b-a22b", "true", "235B-A22B, LoRA", 500, 95),
]


def longest(model, lora, name, bar):
    all_of = ask("stress", f"examples/models/{model}.yaml", "--use_peft", lora, "--hardware", "rtx4090x1", "--max_ram", "128GiB",
                 "--nvme_dirs", "/tmp", "--max_nvme", "2TB", "--spill", "auto")
    found = all_of["placements"]["nvme"]
    held = f" (bar {bar}K)" if bar else ""
    print(f"  {name:20} {found['tokens'] / 1000:7.0f}K{held}  {found['tokens_per_second']:8.1f} tokens/s, "
          f"chunks of {found['sequence_chunk'] or 0}; binds {found['budget']}: {found['buffer']}")


print("one sequence, rtx4090x1 with 128 GiB of RAM and 2 TB of NVMe (spill: auto)")
for model, lora, name, bar, _ in models:
    longest(model, lora, name, bar)
for model, name in [("qwen3.5-9b", "Qwen3.5 9B, LoRA"), ("qwen3.5-27b", "Qwen3.5 27B, LoRA"), ("qwen3.5-35b-a3b", "Qwen3.5 35B, LoRA")]:
    longest(model, "true", name, None)

print("eight sequences in flight, rtx4090x8 as its profile has it, no NVMe")
for model, lora, name, _, bar in models:
    if bar is None:
        continue
    saved = "fp8" if bar < 200 else "dtype"
    words = [f"examples/models/{model}.yaml", "--hardware", "rtx4090x8", "--saved_dtype", saved]
    plan = ask("plan", *words)
    length = plan["longest_sequence"]
    at = ask("plan", *words, "--max_length", str(length), "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8",
             "--round_micro_batches", "65536")
    held = f"bar {bar}K{', saved_dtype: fp8' if saved == 'fp8' else ''}"
    print(f"  {name:20} {length / 1000:7.0f}K ({held})  {at['tokens_per_second'] or 0:8.1f} tokens/s, "
          f"chunks of {at.get('sequence_chunk') or 0}; binds {plan['longest_sequence_budget']}; longest launch "
          f"{at['longest_launch']['seconds']:.2f} s ({at['longest_launch']['op']})")
    assert at["longest_launch"]["seconds"] <= 0.3

one = {}
for gpus, ram in ((8, "200GiB"), (1, "200GiB"), (1, "743GiB")):
    one[gpus, ram] = ask("plan", "examples/models/llama-3.1-8b.yaml", "--hardware", "rtx4090x8", "--gpus", str(gpus), "--max_length", "262144",
                    "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1", "--sequence_chunk", "16384", "--max_ram", ram)
eight, alone, saving = (found["tokens_per_second"] for found in one.values())
ratio = eight / alone
print(f"8B, one sequence of 256K tokens in chunks of 16K, 200 GiB of host memory: {eight:.1f} tokens/s on eight devices, {alone:.1f} on one; "
      f"{saving:.1f} on one that saves activations in 743 GiB")
print(json.dumps({"bench": "longest", "value": ratio, "unit": "speed of eight devices over one", "reference": 6.5, "ratio": ratio / 6.5,
                  "machine": "simulated rtx4090x8"}))
