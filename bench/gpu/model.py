#!/usr/bin/env python3
"""What the main kernels are expected to take, before any GPU has run them: to be read beside gpu-check's figures.

  bench/gpu/model.py KERNELS.txt        the table of registers and occupancy (build/release/cuda/kernels.txt); prints a table

Roofline: bytes over DRAM bandwidth, FLOPs over the tensor cores' rate, the longer. The model adds what occupancy allows: an SM keeps as many
bytes on their way as its resident threads have asked for, and a byte comes LATENCY later; its tensor cores are kept busy by WARPS warps that have
independent products ready, fewer warps in proportion; a launch is 3 us. Shapes: Llama-3.1-8B, one layer, 8192 tokens of one document, LoRA of
rank 16 with dropout. What the blocks of attention_pass wait for one another is simulated (pass_waits).
"""
import heapq
import re
import sys

LATENCY, LAUNCH, WARPS = 0.8e-6, 3e-6, 8
GPUS = {  # table's architecture: SMs, threads an SM, bytes/s of DRAM, FLOP/s of bf16 products by mma.sync, of fp32
    "sm_89": ("RTX 4090", 128, 1536, 1008e9 * 0.92, 165e12, 80e12),
    "sm_90": ("H100", 132, 2048, 3350e9 * 0.92, 990e12 * 0.62, 60e12),
}
T, H, I, QKV, HEADS, KV, D, R = 8192, 4096, 14336, 6144, 32, 8, 128, 16
PAIRS = T * (T + 1) / 2 * HEADS

# kernel as the table names it: (bytes, FLOPs, kind of FLOPs, bytes that a thread has on its way)
KERNELS = {
    "rmsnorm_forward_kept<8, 2, false>": (4 * T * H, 4 * T * H, "fp32", 32),
    "rmsnorm_forward_kept<8, 2, true>": (8 * T * H, 5 * T * H, "fp32", 64),
    "rmsnorm_backward_kept<8, 2, true>": (8 * T * H, 13 * T * H, "fp32", 64),
    "rope_rotate<rh_bf16>": (4 * T * (HEADS + KV) * D, 3 * T * (HEADS + KV) * D, "fp32", 96),
    "qk_rope_forward<rh_bf16, 8>": (4 * T * (HEADS + KV) * D, 8 * T * (HEADS + KV) * D, "fp32", 96),
    "qk_rope_backward<rh_bf16, 8>": (6 * T * (HEADS + KV) * D, 14 * T * (HEADS + KV) * D, "fp32", 128),
    "glu_forward<rh_bf16, 0>": (6 * T * I, 12 * T * I, "fp32", 32),
    "glu_gradient<rh_bf16, 0>": (12 * T * I, 25 * T * I, "fp32", 48),
    "dropout_apply<rh_bf16>": (4 * T * H, 38 * T * H, "fp32", 16),
    "lora_low_rows<16, false>": (2 * T * H, 2 * T * H * R * 3, "mma", 128),
    "lora_low_rows<16, true>": (2 * T * QKV, 2 * T * QKV * R, "mma", 128),
    "lora_part_tile": (2 * T * QKV, 2 * T * QKV * R, "mma", 64),
    "lora_input_gradient_tile": (2 * T * H, 2 * T * H * R * 3, "mma", 64),
    "lora_gradient_tile<16, false>": (2 * T * H, 2 * T * H * R * 3, "mma", 128),
    "lora_gradient_tile<16, true>": (2 * T * QKV, 2 * T * QKV * R, "mma", 128),
    "attention_forward<128, 1, 128>": (4 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 128),
    "attention_forward<128, 2, 128>": (4 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 128),
    "attention_dq<128, 1>": (8 * T * HEADS * D, 6 * D * PAIRS, "mma", 128),
    "attention_dq<128, 2>": (8 * T * HEADS * D, 6 * D * PAIRS, "mma", 128),
    "attention_dk_dv<128, 1>": (8 * T * (HEADS + KV) * D, 8 * D * PAIRS, "mma", 128),
    "attention_keys<keys_layout<128, 128, 4, 4> >": (8 * T * (HEADS + KV) * D, 8 * D * PAIRS, "mma", 128),
    "attention_delta<128>": (4 * T * HEADS * D, 2 * T * HEADS * D, "fp32", 128),
    "attention_pass<128>": (8 * T * (HEADS + KV) * D + 8 * T * HEADS * D * T / 64 / 2 / 32, 10 * D * PAIRS, "mma", 128),
    "attention_forward<256, 1, 128>": (4 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 128),
    "attention_forward<256, 1, 256>": (4 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 128),
    "attention_dq<256, 1>": (8 * T * HEADS * D, 6 * D * PAIRS, "mma", 128),
    "attention_keys<keys_layout<256, 64, 4, 2> >": (8 * T * (HEADS + KV) * D, 8 * D * PAIRS, "mma", 128),
    "attention_512_forward": (4 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 64),
    "attention_512_dq": (8 * T * HEADS * D, 6 * D * PAIRS, "mma", 128),
    "attention_512_dk_dv": (8 * T * (HEADS + KV) * D, 8 * D * PAIRS, "mma", 128),
    "attention_256_gradient<true>": (8 * T * (HEADS + KV) * D, 6 * D * PAIRS, "mma", 128),
    "attention_256_gradient<false>": (8 * T * (HEADS + KV) * D, 4 * D * PAIRS, "mma", 128),
}


def occupancies(path):
    """{kernel: {architecture: share of an SM's threads}}"""
    table, columns = {}, []
    for line in open(path):
        if line.startswith("kernel "):
            columns = re.findall(r"sm_\d+", line)
            continue
        found = re.match(r"(.+?)\s{2,}\d+\s+\d+\s+\d+\s+(.*)", line)
        if found and columns:
            table[found[1]] = dict(zip(columns, (int(x or 0) / 100 for x in re.findall(r"/\s*(\d+)%|-", found[2]))))
    return table


def model(gpu, occupancy, cost):
    _, sms, threads, bandwidth, products, plain = GPUS[gpu]
    moved, flops, kind, ahead = cost
    peak = products if kind == "mma" else plain
    resident = sms * threads * occupancy
    reach = min(bandwidth, resident * ahead / LATENCY)
    busy = min(1, threads * occupancy / 32 / WARPS) if kind == "mma" else min(1, threads * occupancy / 32 / 16)
    return max(moved / bandwidth, flops / peak), LAUNCH + max(moved / reach, flops / (peak * busy))


def pass_waits(tokens, step=4.06e-6, add=2e-6, rows=64, tile=32, slots=256):
    """Blocks of keys in the order in which they are drawn: seconds of the whole, and the share that the order of sums adds to it. A step of two
    blocks on an SM is 160 mma of 32 cycles each; `add` is from one block's counter to the next one's: three trips to L2 and 32 mma."""
    ends = []
    for ordered in (True, False):
        done = [[0.0] * (tokens // tile * (HEADS // KV)) for _ in range(KV)]
        free, end = [0.0] * slots, 0.0
        for ticket in range(tokens // rows * KV):
            block, sums = ticket // KV, done[ticket % KV]
            at = heapq.heappop(free)
            for i in range(len(sums) - 1, block * rows // tile * (HEADS // KV) - 1, -1):
                at = sums[i] = max(at + step, sums[i] + add if ordered and block else 0)
            heapq.heappush(free, at)
            end = max(end, at)
        ends.append(end)
    return ends[0], ends[0] / ends[1] - 1


def main():
    table = occupancies(sys.argv[1])
    print("By a model (bench/gpu/model.py: Llama-3.1-8B, a layer, 8192 tokens of one document, LoRA of rank 16); measured: bench/results/gpu-h100-h200.txt")
    print(f"{'kernel':<44}" + "".join(f"{GPUS[g][0] + ': roofline, model us':>34}" for g in GPUS))
    for name, cost in KERNELS.items():
        row = table.get(name)
        if not row:
            print(f"{name:<44} not in the table", file=sys.stderr)
            continue
        cells = []
        for gpu in GPUS:
            if not row.get(gpu):  # the SM has no room for it
                cells.append(f"{'-':>20} {'-':>13}")
                continue
            low, expected = model(gpu, row[gpu], cost)
            cells.append(f"{low * 1e6:>20.0f} {expected * 1e6:>13.0f}")
        print(f"{name:<44}" + "".join(cells))
    for tokens in (2048, 8192, 32768):
        seconds, waits = pass_waits(tokens)
        print(f"attention_pass<128>, {tokens} tokens, RTX 4090, its blocks one by one: {seconds * 1e6:.0f} us, of which waits for sums {waits:.1%}")


main()
