#!/usr/bin/env python3
"""How far bf16 gradients of adapters are from fp32's, layer by layer, in a deep Gemma 4 at random: what is behind its 31B's name for gradient
norms that explode.

    gemma4_gradients.py [--layers 60] [--width 256] [--seeds 3]

Each model has the shape of 31B's layers (heads of two sizes, keys as values, scores that nothing divides, one layer of six without a window)
at a smaller width, transformers' own initial weights rounded to bf16, and PEFT's default adapters on every linear, whose A is random and B
zero: so the gradient is B's. The same weights run in fp32 and in bf16 (transformers, CPU, sdpa). Of each layer it prints the norm of its
gradients in fp32, the ratio of the norm in bf16 to it, and the difference's norm over it. Beside it the same with
q_norm's weights divided by the root of their length, so that scores are of the size that others' are, and a Llama of the same depth and width.
"""

import argparse
import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Gemma4TextConfig, LlamaConfig

TOKENS, ROWS, VOCABULARY = 64, 2, 512


def gemma(layers, width):
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
    return Gemma4TextConfig(vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
                            num_attention_heads=width // 32, num_key_value_heads=width // 64, head_dim=64, global_head_dim=128,
                            num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=32, hidden_size_per_layer_input=0,
                            final_logit_softcapping=30.0, layer_types=kinds, pad_token_id=None)


def llama(layers, width):
    return LlamaConfig(vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
                       num_attention_heads=width // 64, num_key_value_heads=width // 128, tie_word_embeddings=True)


def gradients(model, ids):
    """Of each layer, all of its adapters' B in one vector of fp64; and the loss."""
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    out = {}
    for name, p in model.named_parameters():
        if "lora_B" in name:
            layer = int(name.split(".layers.")[1].split(".")[0])
            out.setdefault(layer, []).append(p.grad.double().flatten())
    return loss.item(), [torch.cat(out[layer]) for layer in sorted(out)]


def measure(config, seed, divides):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for name, p in model.named_parameters():
        if divides and name.endswith("q_norm.weight"):
            p.data /= p.shape[0] ** 0.5
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear"), autocast_adapter_dtype=False)
    rounded = {name: t.to(torch.bfloat16) for name, t in model.state_dict().items()}
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS))
    model.load_state_dict({name: t.float() for name, t in rounded.items()})
    loss, exact = gradients(model, ids)
    narrow_loss, narrow = gradients(model.to(torch.bfloat16), ids)
    rows = [(a.norm().item(), (b.norm() / a.norm()).item(), ((a - b).norm() / a.norm()).item()) for a, b in zip(exact, narrow)]
    whole, other = torch.cat(exact), torch.cat(narrow)
    return loss, narrow_loss, rows, (whole.norm().item(), (other.norm() / whole.norm()).item(), ((whole - other).norm() / whole.norm()).item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, make, divides in (("gemma 4", gemma, False), ("gemma 4, scores divided", gemma, True), ("llama", llama, False)):
        for seed in range(arguments.seeds):
            loss, narrow, rows, whole = measure(make(arguments.layers, arguments.width), seed, divides)
            print(f"{name} seed {seed}: loss {loss:.4f}, in bf16 {narrow:.4f}; all layers: norm {whole[0]:.4g}, ratio {whole[1]:.4f}, "
                  f"difference {whole[2]:.4f}")
            if seed == 0:
                for layer, row in enumerate(rows):
                    if layer % 6 in (4, 5) or layer == 0:
                        print(f"  layer {layer}: norm {row[0]:.4g}, ratio {row[1]:.4f}, difference {row[2]:.4f}")


if __name__ == "__main__":
    main()
