"""Does TensorBoard read the event files that report_to: tensorboard writes? Trains a tiny model with build/release/roundhouse, loads the file
with TensorBoard's own loader, and compares each scalar with metrics.jsonl; then resumes, and loads both files as TensorBoard joins them.

    build/venv/run tests/reference/events.py --check [path of the program]
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

HERE = pathlib.Path(__file__).parent
TAGS = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "learning_rate", "train/epoch": "epoch",
        "train/tokens_per_second": "tokens_per_second", "eval/loss": "eval_loss"}


def train(program, folder, *more):
    subprocess.run([program, "train", "--model_name_or_path", folder / "model", "--train_file", folder / "rows.jsonl", "--eval_split", "0.2",
                    "--eval_strategy", "steps", "--eval_steps", "2", "--logging_steps", "1", "--save_steps", "2", "--max_length", "64",
                    "--per_device_train_batch_size", "2", "--report_to", "tensorboard,csv", "--output_dir", folder / "out", *more], check=True,
                   capture_output=True)


def compare(folder):
    events = EventAccumulator(str(folder / "out" / "runs")).Reload()
    metrics = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    bad = 0
    for tag, key in TAGS.items():
        seen = [(scalar.step, np.float32(scalar.value)) for scalar in events.Scalars(tag)]
        expected = [(line["step"], np.float32(line[key])) for line in metrics if line.get(key) is not None and (tag != "train/epoch" or "loss" in line)]
        if seen != expected or not seen:
            print(f"{tag}: {seen}, expected {expected}")
            bad += 1
        else:
            print(f"{tag}: {len(seen)} scalars as in metrics.jsonl")
    return bad


def main():
    program = next((word for word in sys.argv[1:] if not word.startswith("--")), "build/release/roundhouse")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(HERE / "models" / "gguf-qwen2", folder / "model", ignore=shutil.ignore_patterns("*.gguf"))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(HERE / "interchange" / file, folder / "model" / file)
        (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"the cat sat on mat {i} of {i * 7}"}) + "\n" for i in range(20)))
        train(program, folder, "--max_steps", "5")
        bad = compare(folder)
        train(program, folder, "--max_steps", "7", "--resume_from_checkpoint", str(folder / "out" / "checkpoint-4"))
        return bad + compare(folder)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
