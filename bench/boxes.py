"""Whole runs of `train` over a shaped network, beside `plan`: what bench/paci.sh, bench/links-time.sh and bench/fluidpipe.sh share.

Each box is a process with one CPU device whose commands last as long as those of a made profile (RH_PACE): it computes a tiny model and
sleeps for the rest, so that several boxes fit on two cores. What travels for a micro-batch is 32 KiB; networks carry an eighth of the rate
that is named, so that messages take as long as the 256 KiB of GPT-2 Medium (bf16, rows of 128 tokens) would at the whole rate. A run's time
is its last step's `elapsed_seconds`, its first steps and its rests included; `plan` has the same profile, configuration and line."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

PROGRAM, NETWORK = os.path.abspath("build/release/roundhouse"), "build/release/tests/link/network"
SHARE = 8  # the named rate over the network's
HIDDEN, TOKENS = 32, 256
PROFILE = """name: paced
devices: 1
device:
  name: paced
  memory: 1TiB
  on_host_cores: 1
  peaks: {{bf16: 1.0e18, f32: 1.0e18}}
  gemm:
    - {{product: f32, m: 512, n: 1024, k: 1024, fraction: 1}}
    - {{product: bf16, m: 512, n: 1024, k: 1024, fraction: 1}}
  other_flops_per_s: 1.0e18
  memory_bytes_per_s: 1.0e18
  launch_s: {launch_s:.9g}
link: {{up_bytes_per_s: 1.0e12, down_bytes_per_s: 1.0e12, both_bytes_per_s: 2.0e12}}
host: {{cores: 64, dram_bytes_per_s: 1.0e13, optimizer: {{split: 1.0e12, plain: 1.0e12, split8: 1.0e12}}}}
"""


def payload_mbit(mbit):
    """Of the network's rate, of packets, what messages have while both ways carry data: two packets of 1,500 bytes, headers of 52 each,
    and the acknowledgement of two packets of the other way."""
    return mbit * (1500 - 52) / (1500 + 52 / 2)


class Bench:
    def __init__(self, boxes, blocks, micro_batches, unit_ms):
        """blocks: transformer layers in each box. unit_ms: what the slowest box takes for a micro-batch."""
        self.boxes, self.micro_batches = boxes, micro_batches
        self.dir = tempfile.mkdtemp(prefix="rh-boxes-", dir="/dev/shm")
        os.makedirs(f"{self.dir}/model")
        layers = sum(blocks)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"tests/reference/interchange/{name}", f"{self.dir}/model/{name}")
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": HIDDEN,
                  "intermediate_size": HIDDEN, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2,
                  "max_position_embeddings": TOKENS, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}
        json.dump(config, open(f"{self.dir}/model/config.json", "w"))
        with open(f"{self.dir}/rows.jsonl", "w") as rows:
            for i in range(64):
                rows.write(json.dumps({"prompt": "".join(chr(97 + (i * 7 + j * j) % 26) for j in range(TOKENS - 12)), "completion": "ab"}) + "\n")
        cuts, at = [], 1
        for count in blocks[:-1]:
            at += count
            cuts.append(at)
        self.cuts = cuts
        for box in range(1, boxes + 1):
            self.call("keys", "--link_identity", f"{self.dir}/box{box}.pem", to=f"{self.dir}/hash{box}")
        self.launch_s = 1e-4
        self.launch_s *= unit_ms / 1e3 / self.slowest_unit_s()

    def call(self, *words, to=None):
        ran = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
        if to:
            open(to, "w").write(ran.stdout)
        return ran

    def close(self):
        shutil.rmtree(self.dir)

    def configure(self, mode, steps, trip_ms, mbit, more):
        os.makedirs(f"{self.dir}/roundhouse/hardware", exist_ok=True)
        for path in ("paced.yaml", "roundhouse/hardware/local.yaml"):  # so that train chooses what plan does
            open(f"{self.dir}/{path}", "w").write(PROFILE.format(launch_s=self.launch_s))
        keys = {"config_name": f"{self.dir}/model", "max_length": TOKENS, "max_steps": steps, "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": self.micro_batches, "learning_rate": "1.0e-4", "logging_steps": 1, "save_strategy": '"no"',
                "eval_strategy": '"no"', "allow": "[duplicates, cut-answers, overlap, untrained-rows]", "device": "cpu:1", "dtype": "float32",
                "max_vram": "256MiB", "boxes": self.boxes, "box_cuts": json.dumps(self.cuts), "link_latency_ms": trip_ms / 2,
                "link_mbit_per_second": f"{payload_mbit(mbit / SHARE):.6g}", **mode, **more}
        open(f"{self.dir}/run.yaml", "w").write("".join(f"{key}: {value}\n" for key, value in keys.items()))

    def plan(self, mode, trip_ms=0, mbit=1e6, more={}):
        self.configure(mode, 40, trip_ms, mbit, more)
        ran = self.call("plan", f"{self.dir}/run.yaml", "--box", "1", "--train_file", f"{self.dir}/rows.jsonl", "--hardware", f"{self.dir}/paced.yaml", "--json")
        if not ran.stdout:
            sys.exit(f"plan: {ran.stderr.strip()}")
        return json.loads(ran.stdout)

    def slowest_unit_s(self):
        """Without a line PACI's step is what its slowest box computes."""
        return self.plan({"mode": "paci"})["step_seconds"] / self.micro_batches

    def run(self, mode, steps, trip_ms, mbit, more={}):
        """Seconds of the whole run, and of a step: the median of the latter three quarters, which other work on the machine spoils least."""
        self.configure(mode, steps, trip_ms, mbit, more)
        words = []
        for box in range(1, self.boxes + 1):
            line = f"env XDG_CONFIG_HOME={self.dir} RH_PACE={self.dir}/paced.yaml {PROGRAM} train {self.dir}/run.yaml --box {box} --output_dir {self.dir}/out{box}"
            line += f" --link_identity {self.dir}/box{box}.pem" + (f" --train_file {self.dir}/rows.jsonl" if box == 1 else "")
            if box < self.boxes:
                line += f" --link_above listen:$ABOVE --link_peer_above $(tail -1 {self.dir}/hash{box + 1})"
            if box > 1:
                line += f" --link_below $BELOW --link_peer_below $(tail -1 {self.dir}/hash{box - 1})"
            words.append(f"sysctl -qw net.ipv4.tcp_slow_start_after_idle=0; {line} >{self.dir}/log{box} 2>&1")
        rate = mbit / SHARE
        ran = subprocess.run(["timeout", "300", NETWORK, *[f"{trip_ms / 2},{rate:g},{rate:g}"] * (self.boxes - 1), "--", *words])
        if ran.returncode:
            logs = "".join(open(f"{self.dir}/log{box}").read()[-300:] for box in range(1, self.boxes + 1))
            sys.exit(f"a box failed: {logs}")
        ends = []
        for box in range(1, self.boxes + 1):
            lines = [json.loads(line) for line in open(f"{self.dir}/out{box}/metrics.jsonl")]
            ends.append([line["elapsed_seconds"] for line in lines if "loss" in line])
            shutil.rmtree(f"{self.dir}/out{box}")
        slowest = max(ends, key=lambda times: times[-1])
        return slowest[-1], statistics.median(end - begin for begin, end in zip(slowest[steps // 4 - 1:], slowest[steps // 4:]))

    def compare(self, name, mode, steps, trip_ms, mbit, more={}):
        told = self.plan(mode, trip_ms, mbit, more)
        if mode["mode"] == "paci":
            more = {**more, "admission_limits": json.dumps([box["admission_limit"] for box in told["boxes"]])}
        whole_s, step_s = self.run(mode, steps, trip_ms, mbit, more)
        planned_s = told["step_seconds"]
        print(f"{name:12} {trip_ms:6g} {mbit:8g} {planned_s * 1e3:10.1f} {step_s * 1e3:10.1f} {100 * (step_s / planned_s - 1):7.1f} % {whole_s / steps * 1e3:10.1f}", flush=True)
        return planned_s, step_s, whole_s / steps


HEAD = f"{'':12} {'ms':>6} {'Mbit/s':>8} {'plan ms':>10} {'step ms':>10} {'error':>9} {'run/steps':>10}"
FLUSHED = [("GPipe", {"mode": "sync-pp", "schedule": "gpipe"}), ("1F1B", {"mode": "sync-pp", "schedule": "1f1b"})]
ZERO_BUBBLE = ("zero bubble", {"mode": "sync-pp", "schedule": "zb-2p"})
PACI = ("PACI", {"mode": "paci"})
FLUIDPIPE = ("FluidPipe", {"mode": "fluidpipe"})


def machine():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "?"


def settings(words, usage, otherwise, last=()):
    """Numbers between colons; `last` where a word has fewer."""
    found = []
    for word in words:
        numbers = tuple(float(part) for part in word.split(":") if part.replace(".", "", 1).isdigit())
        missing = 2 + len(last) - len(numbers)
        if len(numbers) != len(word.split(":")) or not 0 <= missing <= len(last):
            sys.exit(f"usage: {usage}")
        found.append(numbers + tuple(last[len(last) - missing:]))
    return found or otherwise


def say(bench, value, unit, reference, worst):
    print(json.dumps({"bench": bench, "value": round(value, 4), "unit": unit, "reference": reference, "ratio": round(value / reference, 3),
                      "largest_error": round(worst, 4), "machine": machine()}))


def compare_all(bench, rows, steps, trip_ms, mbit):
    """By name: planned, measured and whole runs' seconds of a step."""
    return {name: bench.compare(name, mode, steps, trip_ms, mbit) for name, mode in rows}


def error_of(told):
    return max(abs(step / planned - 1) for planned, step, _ in told.values())


def judge(told):
    """Is the mode that `plan` would take the fastest, or within 3 % of it? In whole runs."""
    planned = min(told, key=lambda name: told[name][0])
    share = told[planned][2] / min(whole for _, _, whole in told.values())
    print(f"{'':12} plan takes {planned}, which is {'the fastest' if share == 1 else f'{100 * (share - 1):.1f} % slower than the fastest'}")


def paci(words):
    usage, worst, at_bar = "paci.sh [ROUND_TRIP_MS:MBIT[:UNIT_MS]...]", 0, 0
    table = [(trip, mbit, 30) for trip, mbit in ((0, 1000), (25, 1000), (50, 1000), (100, 1000), (25, 100))]
    print(HEAD)
    for trip, mbit, unit_ms in settings(words, usage, table, (30,)):
        bench = Bench(4, [1, 1, 1, 1], 8, unit_ms)
        told = compare_all(bench, [*FLUSHED, ZERO_BUBBLE, PACI], int(max(16, 1200 / unit_ms)), trip, mbit)
        ratio = min(told[name][2] for name, _ in FLUSHED) / told["PACI"][2]
        print(f"{'':12} whole runs, {unit_ms:g} ms a micro-batch: PACI is {ratio:.2f} times as fast as the better of GPipe and 1F1B")
        judge(told)
        worst, at_bar = max(worst, error_of(told)), ratio if trip * 30 == 25 * unit_ms else at_bar
        bench.close()
    say("paci", at_bar, "times the better of GPipe and 1F1B, whole runs, round trip 5/6 of a micro-batch", 1.6, worst)


def links_time(words):
    repetitions = int(words.pop(0)) if words and words[0].isdigit() else 3
    bench, worst = Bench(2, [1, 1], 8, 60), 0
    table = [(2 * ms, mbit) for mbit in (1000, 100, 20) for ms in (0, 25, 50)]
    print(HEAD)
    for trip, mbit in settings(words, "links-time.sh [REPETITIONS [ROUND_TRIP_MS:MBIT...]]", table):
        for name, mode in FLUSHED:
            tries = [bench.compare(name, mode, 16, trip, mbit) for _ in range(repetitions)]
            worst = max(worst, abs(statistics.median(step for _, step, _ in tries) / tries[0][0] - 1))
    bench.close()
    say("links-time", worst, "largest error of a planned step, by the median run", 0.05, worst)


def fluidpipe(words):
    usage, worst, at_25 = "fluidpipe.sh [ROUND_TRIP_MS:MBIT[:STAGE_MS[:MICRO_BATCHES]]...]", 0, 0
    table = [(0, 1000, 48, 4), (25, 1000, 48, 4), (50, 1000, 48, 4), (100, 1000, 48, 4), (25, 100, 48, 4), (25, 1000, 48, 16)]
    print(HEAD)
    for trip, mbit, stage_ms, count in settings(words, usage, table, (48, 4)):
        bench = Bench(2, [1, 1], int(count), stage_ms)
        print(f"{'':12} stages of {stage_ms:g} ms, {int(count)} micro-batches a step")
        told = compare_all(bench, [*FLUSHED, PACI, FLUIDPIPE], 40, trip, mbit)
        ratio = min(told[name][2] for name, _ in FLUSHED) / told["FluidPipe"][2]
        print(f"{'':12} whole runs: FluidPipe is {ratio:.2f} times as fast as the better of GPipe and 1F1B")
        worst, at_25 = max(worst, error_of(told)), ratio if (trip, mbit, count) == (25, 1000, 4) else at_25
        bench.close()
    say("fluidpipe", at_25, "times the better of GPipe and 1F1B, 25 ms, whole runs", 1, worst)


if __name__ == "__main__":
    {"paci": paci, "links-time": links_time, "fluidpipe": fluidpipe}[sys.argv[1]](sys.argv[2:])
