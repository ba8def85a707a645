"""What PyTorch's fused CPU AdamW, and DeepSpeed's CPUAdam where it is installed, take for the job of bench/adamw: bf16 gradient in, fp32
master and moments, bf16 weights out. Both want fp32 gradients and leave fp32 weights, so a copy before and one behind belong to the job.

usage: adamw-peer.py MILLIONS THREADS. Prints one JSON object: parameters a second, best of 8; null where a peer is not installed."""
import json
import sys
import time

import torch


def best(job, rounds=9):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main():
    count, threads = int(sys.argv[1]) << 20, int(sys.argv[2])
    torch.set_num_threads(threads)
    master = torch.nn.Parameter(torch.randn(count))
    master.grad = torch.empty(count)
    gradient, weights = torch.randn(count).bfloat16(), torch.empty(count, dtype=torch.bfloat16)

    def job(optimizer):
        master.grad.copy_(gradient)
        optimizer.step()
        with torch.no_grad():
            weights.copy_(master)

    fused = torch.optim.AdamW([master], lr=1e-3, weight_decay=0.01, fused=True)
    out = {"torch": count / best(lambda: job(fused)), "deepspeed": None}
    del fused
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        cpu_adam = DeepSpeedCPUAdam([master], lr=1e-3, weight_decay=0.01, adamw_mode=True)
        out["deepspeed"] = count / best(lambda: job(cpu_adam))
    except ImportError:
        pass
    print(json.dumps(out))


if __name__ == "__main__":
    main()
