"""What transformers' gated delta rule takes for the job of bench/delta: torch_chunk_gated_delta_rule, fp32, one thread.

usage: delta-peer.py TOKENS KEY_HEADS HEADS LENGTH ROUNDS. Prints the processor seconds of forward, and of forward with backward: medians."""
import statistics
import sys
import time

import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule


def main():
    tokens, key_heads, heads, length, rounds = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    q, k = (torch.rand(1, tokens, key_heads, length) * 2 - 1 for _ in range(2))
    v, dy = (torch.rand(1, tokens, heads, length) * 2 - 1 for _ in range(2))
    b, a = (torch.rand(1, tokens, heads) * 2 - 1 for _ in range(2))
    a_log, bias = (torch.rand(heads) * 2 - 1 for _ in range(2))
    leaves = [x.requires_grad_() for x in (q, k, v, b, a, a_log, bias)]
    forward, both = [], []
    for r in range(rounds + 1):
        for leaf in leaves:
            leaf.grad = None
        start = time.process_time()
        g = -a_log.exp() * torch.nn.functional.softplus(a + bias)
        out, _ = torch_chunk_gated_delta_rule(q, k, v, g=g, beta=b.sigmoid(), initial_state=None, output_final_state=False,
                                              use_qk_l2norm_in_kernel=True)
        middle = time.process_time()
        out.backward(dy)
        if r:
            forward.append(middle - start)
            both.append(time.process_time() - start)
    print(statistics.median(forward), statistics.median(both))


if __name__ == "__main__":
    main()
