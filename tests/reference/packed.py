"""Makes tests/reference/packed/: small models as quantisers store them, and what their own code makes of them.

    build/venv/run tests/reference/packed.py            remakes them
    build/venv/run tests/reference/packed.py --check    remakes them in a temporary directory and compares

<name>/             a tiny Llama: bnb-nf4, bnb-nf4-nested, bnb-fp4, bnb-fp4-nested, bnb-int8 (bitsandbytes' CPU code), fp8-blocks with ragged
                    edges and fp8 per tensor (its form as transformers' finegrained fp8 has it), fp8-blocks-e8m0 (scales are powers of two),
                    nvfp4-compressed (compressed-tensors' own code), nvfp4-modelopt (ModelOpt's); moe-fp8, a tiny Qwen3-MoE in
                    fp8 blocks, its experts one by one; and next-fp8, a tiny Qwen3-Next, whose in_proj_qkvz has whole blocks for each key
                    head's q, k, v and z, and whose in_proj_ba has not
<name>.safetensors  the same model's weights, dequantised to fp32 by the code that packed them; of fp8 by the product that transformers'
                    Fp8Dequantize takes. next-fp8 has none: its test reads it both ways
"""

import filecmp
import json
import pathlib
import sys
import tempfile

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import NVFP4
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3NextConfig,
                          Qwen3NextForCausalLM)

HERE = pathlib.Path(__file__).parent / "packed"
UNIT = 7.874015718698502e-3


def four_bits(name, weight, kind, nested):
    packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    stored = {name: packed}
    stored |= {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
    return stored, bnb.dequantize_4bit(packed, state).float()


def int8(name, weight):
    absmax = weight.abs().amax(dim=1)
    q = (weight * (127.0 / absmax[:, None])).round().to(torch.int8)
    scale = name.removesuffix("weight") + "SCB"
    return {name: q, scale: absmax}, q.float() * absmax[:, None] * torch.tensor(UNIT)


def fp8(name, weight, block, is_power=False):
    rows, cols = weight.shape
    tall, wide = (block, block) if block else (rows, cols)
    grid = -(-rows // tall), -(-cols // wide)
    scale = torch.empty(grid)
    spread = torch.empty(rows, cols)
    for r in range(grid[0]):
        for c in range(grid[1]):
            part = slice(r * tall, (r + 1) * tall), slice(c * wide, (c + 1) * wide)
            scale[r, c] = weight[part].abs().max() / 448
            if is_power:
                scale[r, c] = 2.0 ** torch.ceil(torch.log2(scale[r, c]))
            spread[part] = scale[r, c]
    q = (weight / spread).to(torch.float8_e4m3fn)
    if is_power:
        scale = scale.to(torch.float8_e8m0fnu)
    return {name: q, f"{name}_scale_inv": scale if block else scale.reshape(())}, q.float() * spread


def compressed(name, weight):
    scheme = QuantizationScheme(targets=["Linear"], **NVFP4)
    by = 448 * 6 / weight.abs().max().reshape(1)
    scale = (weight.reshape(len(weight), -1, 16).abs().amax(-1) / 6 * by).to(torch.float8_e4m3fn)
    state = NVFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale.float(), "weight_global_scale": by}, scheme)
    q = unpack_fp4_from_uint8(state["weight_packed"], *weight.shape, dtype=torch.float32)
    value = dequantize(x_q=q, scale=state["weight_scale"].float(), args=scheme.weights, global_scale=by, dtype=torch.float32)
    module = name.removesuffix("weight")
    return {module + key: state[key] for key in state} | {module + "input_global_scale": torch.tensor([7.0])}, value


def modelopt(name, weight):
    packed, scale, by = NVFP4QTensor.quantize(weight.clone(), 16)
    value = packed.dequantize(torch.float32, scale=scale, double_scale=by, block_sizes={-1: 16})
    stored = {name: packed._quantized_data, name + "_scale": scale, name + "_scale_2": by}
    return stored | {name.removesuffix("weight") + "input_scale": torch.tensor(0.25)}, value


MAKERS = {
    "bnb-nf4": lambda n, w: four_bits(n, w, "nf4", False), "bnb-nf4-nested": lambda n, w: four_bits(n, w, "nf4", True),
    "bnb-fp4": lambda n, w: four_bits(n, w, "fp4", False), "bnb-fp4-nested": lambda n, w: four_bits(n, w, "fp4", True),
    "bnb-int8": int8, "fp8-blocks": lambda n, w: fp8(n, w, 128), "fp8": lambda n, w: fp8(n, w, 0),
    "fp8-blocks-e8m0": lambda n, w: fp8(n, w, 128, True), "nvfp4-compressed": compressed, "nvfp4-modelopt": modelopt,
}


def quantization(name):
    if name.startswith(("fp8", "moe-fp8", "next-fp8")):
        return {"quant_method": "fp8", "weight_block_size": None if name == "fp8" else [128, 128]}
    if name == "nvfp4-compressed":
        return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"]}
    if name == "nvfp4-modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return {"quant_method": "bitsandbytes", "load_in_8bit": name == "bnb-int8", "load_in_4bit": name != "bnb-int8"}


def write(out, name, config, architecture, stored, values):
    directory = out / name
    directory.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in stored.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    said = config.to_dict() | {"architectures": [architecture], "quantization_config": quantization(name)}
    (directory / "config.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    if values:
        save_file({key: value.contiguous() for key, value in values.items()}, out / f"{name}.safetensors")


def in_files(key, value):
    """Experts one by one, gates and ups apart."""
    if ".experts." not in key:
        return {key: value}
    stem, kind = key.rsplit(".", 1)
    parts = {"down_proj": value} if kind == "down_proj" else dict(zip(("gate_proj", "up_proj"), value.chunk(2, dim=1)))
    return {f"{stem}.{e}.{part}.weight": of_one for part, of_all in parts.items() for e, of_one in enumerate(of_all)}


def make_moe(out):
    torch.manual_seed(4)
    config = Qwen3MoeConfig(vocab_size=40, hidden_size=144, intermediate_size=32, moe_intermediate_size=40, num_hidden_layers=1,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=5, num_experts_per_tok=2,
                            norm_topk_prob=True, tie_word_embeddings=False, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    stored, values = {}, {}
    for key, value in Qwen3MoeForCausalLM(config).state_dict().items():
        in_blocks(key, value.detach().clone() * (10 if ".mlp." in key else 1), stored, values)
    write(out, "moe-fp8", config, "Qwen3MoeForCausalLM", stored, values)


def in_blocks(key, value, stored, values):
    for name, part in in_files(key, value).items():
        if part.ndim == 2 and not name.endswith(("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "shared_expert_gate.weight")):
            beside, values[name] = fp8(name, part, 128)
            stored |= beside
        else:
            stored[name] = values[name] = part


def make_next(out):
    torch.manual_seed(5)
    config = Qwen3NextConfig(vocab_size=40, hidden_size=136, intermediate_size=32, moe_intermediate_size=24, shared_expert_intermediate_size=16,
                             num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_attention_heads=2,
                             num_key_value_heads=1, head_dim=16, num_experts=3, num_experts_per_tok=2, linear_num_key_heads=2,
                             linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=64, rms_norm_eps=1e-3,
                             max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    stored, values = {}, {}
    for key, value in Qwen3NextForCausalLM(config).state_dict().items():
        value = value.detach().clone()
        if key.endswith("in_proj_qkvz.weight"):  # a scale of its own for each block
            value *= torch.arange(1, len(value) // 128 + 1).repeat_interleave(128)[:, None]
        in_blocks(key, value, stored, values)
    write(out, "next-fp8", config, "Qwen3NextForCausalLM", stored, None)


def make(out):
    out.mkdir(exist_ok=True)
    make_moe(out)
    make_next(out)
    for name, maker in MAKERS.items():
        torch.manual_seed(3)
        config = LlamaConfig(vocab_size=40, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4,
                             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
        model = LlamaForCausalLM(config)
        stored, values = {}, {}
        for key, value in model.state_dict().items():
            value = value.detach().clone()
            if value.ndim == 2 and "embed" not in key and "lm_head" not in key:
                beside, values[key] = maker(key, value)
                stored |= beside
            else:
                stored[key] = values[key] = value
        write(out, name, config, "LlamaForCausalLM", stored, values)


# lora.safetensors and the adapters are packed_train.py's
def own(root):
    return [f for f in root.rglob("*") if f.is_file() and "adapter" not in str(f.relative_to(root)) and f.name != "lora.safetensors"]


def check():
    with tempfile.TemporaryDirectory() as name:
        fresh = pathlib.Path(name) / "packed"
        make(fresh)
        ours, theirs = ({str(f.relative_to(d)) for d in [root] for f in own(d)} for root in (HERE, fresh))
        bad = sorted(ours ^ theirs) + [f for f in sorted(ours & theirs) if not filecmp.cmp(HERE / f, fresh / f, shallow=False)]
    print("differs: " + ", ".join(bad) if bad else "the same")
    return bool(bad)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    make(HERE)
