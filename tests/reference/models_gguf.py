"""Tiny GGUF files written with gguf's own writer, as llama.cpp's converter lays them out, and the same weights dequantised in
Hugging Face order, which is what transformers runs.
"""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T

from gguf_parts import ARCHITECTURES, add_lengths, apart, joined, parts_of, permute, rope_factors, tiled, together, unpermute, write_and_close
from models_build import GGUF_MODELS, auto_class, generator, is_conv1d, is_text, random_weights, write_config

# A different mix in each layer; vectors are always F32
TYPES = {
    "token_embd": T.Q8_0, "output": T.F16,
    "blk.0.attn_q": T.Q4_0, "blk.0.attn_k": T.Q8_0, "blk.0.attn_v": T.F16, "blk.0.attn_output": T.Q8_0,
    "blk.0.ffn_gate": T.Q4_0, "blk.0.ffn_up": T.Q8_0, "blk.0.ffn_down": T.BF16,
    "blk.1.attn_q": T.Q8_0, "blk.1.attn_k": T.F16, "blk.1.attn_v": T.Q4_0, "blk.1.attn_output": T.F32,
    "blk.1.ffn_gate": T.F16, "blk.1.ffn_up": T.Q4_0, "blk.1.ffn_down": T.Q8_0,
}


GPT2_TYPES = {
    "token_embd": T.Q8_0, "position_embd": T.F32,
    "blk.0.attn_qkv": T.Q4_0, "blk.0.attn_output": T.Q8_0, "blk.0.ffn_up": T.F16, "blk.0.ffn_down": T.BF16,
    "blk.1.attn_qkv": T.Q8_0, "blk.1.attn_output": T.F32, "blk.1.ffn_up": T.Q4_0, "blk.1.ffn_down": T.Q8_0,
}


def heads_permuted(config, name):
    """How many heads the rows of this tensor are permuted by, or None."""
    if config.model_type not in ("llama", "mistral", "smollm3", "granite", "ministral3", "muse_glimmer_text"):
        return None
    if "q_proj" in name:
        return config.num_attention_heads
    return config.num_key_value_heads if "k_proj" in name else None


def byte_symbols():
    """GPT-2's printable stand-in for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in shown else chr(next(spare)) for b in range(256)]


def add_vocabulary(writer):
    """256 bytes, one token for each of 30 merges, and two control tokens: 288 in all."""
    merges = ["Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "n d", "Ġ o", "i s", "o r", "e n", "Ġ c",
              "e s", "Ġo f", "e d", "in g", "Ġa nd", "a l", "Ġ in", "o u", "a r", "Ġt o", "l l", "Ġw h", "Ġ f"]
    tokens = byte_symbols() + [m.replace(" ", "") for m in merges] + ["<|endoftext|>", "<|im_end|>"]
    assert len(tokens) == len(set(tokens)) == 288
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 286 + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(286)
    writer.add_eos_token_id(287)
    writer.add_add_bos_token(False)


def add_metadata(writer, config, name):
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    add_lengths(writer, config)
    if config.model_type in ("llama", "mistral", "smollm3", "granite"):
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)


def rope_type(config):
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type")


def kind_of(config, target, value):
    """Of matrices and of experts one after the other; vectors and biases are F32."""
    if value.ndim == 1 or target.endswith("bias") or "conv1d" in target:
        return T.F32
    if config.model_type == "gpt_oss" and "_exps" in target:
        return T.MXFP4
    types = GPT2_TYPES if config.model_type == "gpt2" else TYPES
    if any(fused in target for fused in ("0.ssm_in", "1.attn_qkv", "1.attn_gate")) and config.model_type == "qwen3_next":
        return T.Q8_0
    if config.model_type in ("llama", "qwen2", "gpt2"):
        return types[target.rsplit(".", 1)[0]]
    if "gate_inp" in target:
        return T.F32
    return (T.Q8_0, T.F16, T.BF16, T.Q4_0)[sum(map(ord, target)) % 4]


def fused_parts(config, name, value):
    """Of Qwen3-Next's in_proj_qkvz; None of others. In the lowest layer whole, as the converter's first version had it."""
    if "in_proj_qkvz" not in name:
        return None
    layer = name.split(".")[2]
    if layer == "0":
        return [(f"blk.{layer}.ssm_in.weight", value)]
    return list(zip((f"blk.{layer}.attn_qkv.weight", f"blk.{layer}.attn_gate.weight"), apart(config, value)))


def quantised(value, kind):
    if kind == T.F32:
        return value
    return value.astype(np.float16) if kind == T.F16 else gguf.quants.quantize(value, kind)


def write_gguf_model(name, directory):
    """Writes model.gguf, and config.json + model.safetensors with the same weights dequantised."""
    config = GGUF_MODELS[name]()
    if config.model_type in ("llama", "qwen2", "phi3", "smollm3", "granite", "olmo3"):
        config.head_dim = config.hidden_size // config.num_attention_heads
    model = auto_class(name, config).from_config(config)
    config = config.get_text_config()
    random_weights(model, generator(name, "weights"))
    config.bos_token_id, config.eos_token_id = 286, 287
    writer = gguf.GGUFWriter(directory / "model.gguf", ARCHITECTURES.get(config.model_type, config.model_type))
    add_metadata(writer, config, name)
    add_vocabulary(writer)
    if rope_type(config) == "llama3":
        factors = rope_factors(config)
        own = model.model.rotary_emb.inv_freq.numpy()
        plain = config.rope_parameters["rope_theta"] ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        assert np.allclose(plain / factors, own, rtol=1e-6)
        writer.add_tensor("rope_freqs.weight", factors)
    scalars = [(key, b) for key, b in model.named_buffers() if key.endswith("layer_scalar")]
    for key, parameter in [*model.named_parameters(), *scalars]:
        if not is_text(key):
            continue
        key, value = key.replace("model.language_model.", "model."), parameter.detach().numpy()
        heads = heads_permuted(config, key)
        if heads:
            value = permute(value, heads)
        is_tiled = "linear_attn" in key and config.model_type != "qwen3_next"
        if is_tiled:
            value = tiled(config, key, value)
        if is_conv1d(model, key):
            value = value.T
        plain = []
        for target, part in fused_parts(config, key, value) or parts_of(config.model_type, key, value):
            kind = kind_of(config, target, part)
            stored = quantised(np.ascontiguousarray(part), kind)
            writer.add_tensor(target, stored, raw_dtype=kind)
            plain.append(gguf.quants.dequantize(stored, kind).astype(np.float32))
        plain = together(config, *plain) if len(plain) == 2 and "in_proj_qkvz" in key else joined(config.model_type, key, plain)
        if heads:
            plain = unpermute(plain, heads)
        if is_tiled:
            plain = tiled(config, key, plain, back=True)
        if is_conv1d(model, key):
            plain = plain.T
        parameter.data.copy_(torch.from_numpy(np.ascontiguousarray(plain)))
    write_and_close(writer)
    model.save_pretrained(directory)
    write_config(directory)
