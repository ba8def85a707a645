"""What transformers' mixture of experts (Qwen3-MoE, experts_implementation grouped_mm, its default) takes for the job of bench/moe-cpu:
forward and backward of one layer, fp32. The input is a file of floats: x, dy, the router, all gate_up, all down.

usage: moe-cpu-peer.py INPUT OUTPUT TOKENS HIDDEN WIDE EXPERTS TOP THREADS. Then, for each line `frozen` or `full` on its standard input, it
runs the layer once and prints the seconds. After a run of `full` OUTPUT holds y, dx and the router's gradient."""
import sys
import time

import numpy
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock


def main():
    source, output = sys.argv[1:3]
    tokens, hidden, wide, experts, top, threads = (int(word) for word in sys.argv[3:])
    torch.set_num_threads(threads)
    sizes = {"hidden_size": hidden, "moe_intermediate_size": wide, "num_experts": experts, "num_experts_per_tok": top}
    config = Qwen3MoeConfig(**sizes, norm_topk_prob=True)
    config._experts_implementation = "grouped_mm"
    layer = Qwen3MoeSparseMoeBlock(config)
    weights = [layer.gate.weight, layer.experts.gate_up_proj, layer.experts.down_proj]
    file = open(source, "rb")

    def read(*shape):
        return torch.from_numpy(numpy.fromfile(file, dtype=numpy.float32, count=torch.Size(shape).numel()).reshape(shape))

    x, dy = read(1, tokens, hidden).requires_grad_(), read(1, tokens, hidden)
    with torch.no_grad():
        for weight in weights:
            weight.copy_(read(*weight.shape))
    for line in sys.stdin:
        full = line.strip() == "full"
        for weight in weights:
            weight.requires_grad_(full)
            weight.grad = None
        x.grad = None
        start = time.perf_counter()
        y = layer(x)
        y.backward(dy)
        seconds = time.perf_counter() - start
        if full:
            with open(output, "wb") as results:
                for result in (y.detach(), x.grad, layer.gate.weight.grad):
                    results.write(result.numpy().tobytes())
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
