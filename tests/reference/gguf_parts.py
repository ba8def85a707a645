"""What ckpt.py and models_gguf.py write into GGUF files in the same way: as llama.cpp's converter does."""

import gguf
import numpy as np

BLOCK_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.gate_proj": "attn_gate",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.out_proj": "ssm_out", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}


ARCHITECTURES = {"gemma3_text": "gemma3", "gemma4_text": "gemma4", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "mistral": "mistral3", "olmo3": "olmo2",
                 "ministral3": "mistral3", "muse_glimmer_text": "muse-glimmer", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
                 "qwen3_next": "qwen3next"}  # of others it is their model_type
# Where an architecture names a part otherwise than most do.
OWN_NAMES = {
    "gemma3_text": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm"},
    "gemma4_text": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
                    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
                    "router.proj": "ffn_gate_inp", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
                    "post_per_layer_input_norm": "post_norm"},
    "qwen3_moe": {"mlp.gate": "ffn_gate_inp"},
    "gpt_oss": {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
    "olmo2": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    "olmo3": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    "muse_glimmer_text": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                          "post_feedforward_layernorm": "post_ffw_norm"},
    "qwen3_5_text": {"post_attention_layernorm": "post_attention_norm"},
    "qwen3_5_moe_text": {"post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp"},
    "qwen3_next": {"post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp"},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
}


def has_one_added(kind, name):
    if kind.startswith(("qwen3_5", "qwen3_next")):
        return name.endswith("norm.weight") and "linear_attn" not in name
    return kind == "gemma3_text" and "norm" in name or kind == "muse_glimmer_text" and "layernorm" in name


def tiled(config, name, value, back=False):
    """Value heads in the order of their numbers within a key head, where the model has them by key head; and back."""
    keys, per_key = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    part = name.split("linear_attn.")[1].split(".")[0]
    wide = part in ("in_proj_qkv", "conv1d", "in_proj_z", "out_proj")
    first = 2 * keys * config.linear_key_head_dim if part in ("in_proj_qkv", "conv1d") else 0
    size, axis = config.linear_value_head_dim if wide else 1, 1 if part == "out_proj" else 0
    if part == "norm":
        return value
    value = value.swapaxes(0, axis)
    heads = value[first:].reshape(*((per_key, keys) if back else (keys, per_key)), size, *value.shape[1:])
    return np.concatenate([value[:first], heads.swapaxes(0, 1).reshape(-1, *value.shape[1:])]).swapaxes(0, axis)


def apart(config, value):
    """Qwen3-Next's in_proj_qkvz, each key head's q, k, v and z behind one another, as attn_qkv and attn_gate."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    key, cols = config.linear_key_head_dim, value.shape[1]
    q, k, v, z = (p.reshape(-1, cols) for p in np.split(value.reshape(keys, -1, cols), np.cumsum([key, key, values]), axis=1))
    return np.concatenate([q, k, v]), z


def together(config, qkv, z):
    keys, wide, cols = config.linear_num_key_heads, config.linear_num_key_heads * config.linear_key_head_dim, z.shape[1]
    parts = [*np.split(qkv, [wide, 2 * wide]), z]
    return np.concatenate([p.reshape(keys, -1, cols) for p in parts], axis=1).reshape(-1, cols)


def parts_of(kind, name, value):
    """The tensors of a GGUF that hold a parameter: (name, array) each. Experts' gates and ups lie apart there, and matrices are (out, in)."""
    layer = name.split(".")[2] if name.startswith("model.layers.") else None
    if name.endswith("self_attn.sinks"):
        return [(f"blk.{layer}.attn_sinks.weight", value)]
    gemma4 = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale", "layer_scalar": "layer_output_scale.weight",
              "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight"}
    for end, target in gemma4.items() if kind == "gemma4_text" else ():
        if name.endswith("." + end):
            return [(f"blk.{layer}.{target}", value)]
    if ".mlp.experts." in name:
        part = name.rsplit(".", 1)[1]
        suffix = "bias" if part.endswith("_bias") else "weight"
        if kind == "gpt_oss" and suffix == "weight":
            value = value.swapaxes(1, 2)
        if part.startswith("down"):
            return [(f"blk.{layer}.ffn_down_exps.{suffix}", value)]
        half = value.shape[1] // 2
        gate, up = (value[:, ::2], value[:, 1::2]) if kind == "gpt_oss" else (value[:, :half], value[:, half:])
        return [(f"blk.{layer}.ffn_gate_exps.{suffix}", gate), (f"blk.{layer}.ffn_up_exps.{suffix}", up)]
    if has_one_added(kind, name):
        value = value + np.float32(1)
    if name.endswith("linear_attn.A_log"):
        return [(f"blk.{layer}.ssm_a", -np.exp(value))]
    if name.endswith("linear_attn.dt_bias"):
        return [(f"blk.{layer}.ssm_dt.bias", value)]
    if "conv1d" in name or "shared_expert_gate" in name:
        value = value.squeeze()
    stem, last = name.rsplit(".", 1)
    part = stem.removeprefix(f"model.layers.{layer}.")
    own = OWN_NAMES.get(kind, {})
    return [(f"blk.{layer}.{own[part]}.{last}" if part in own else gguf_name(name), value)]


def joined(kind, name, parts):
    """The parameter that parts_of took apart."""
    if ".mlp.experts." in name:
        value = parts[0]
        if len(parts) == 2 and kind == "gpt_oss":
            value = np.stack(parts, axis=2).reshape(parts[0].shape[0], -1, *parts[0].shape[2:])
        elif len(parts) == 2:
            value = np.concatenate(parts, axis=1)
        return value.swapaxes(1, 2) if kind == "gpt_oss" and not name.endswith("_bias") else value
    if name.endswith("linear_attn.A_log"):
        return np.log(-parts[0])
    if "conv1d" in name:
        return parts[0][:, None]
    if "shared_expert_gate" in name:
        return parts[0][None]
    if has_one_added(kind, name):
        return parts[0] - np.float32(1)
    return parts[0]


GPT2_NAMES = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}


def gguf_name(name):
    """model.layers.0.self_attn.q_proj.weight -> blk.0.attn_q.weight"""
    stem, kind = name.rsplit(".", 1)
    if stem in GPT2_NAMES:
        return f"{GPT2_NAMES[stem]}.{kind}"
    if stem.startswith("transformer.h."):
        layer, part = stem.removeprefix("transformer.h.").split(".", 1)
        return f"blk.{layer}.{GPT2_NAMES[part]}.{kind}"
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
           "model.per_layer_projection_norm": "per_layer_proj_norm"}
    if stem in top:
        return f"{top[stem]}.{kind}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{BLOCK_NAMES[part]}.{kind}"


def permute(value, heads):
    """The converter's row order for attn_q and attn_k of the llama architecture."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def unpermute(value, heads):
    return value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def rope_factors(config):
    """What rope_freqs.weight holds for Llama-3's scaling: what each frequency is divided by."""
    rope = config.rope_parameters
    original, low, high, factor = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
    factors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / config.head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_lengths(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    gpt2 = config.model_type == "gpt2"
    if config.model_type != "qwen3_5_moe_text":  # it has experts alone
        lengths = (config.n_inner or 4 * config.n_embd) if gpt2 else config.intermediate_size
        if getattr(config, "use_double_wide_mlp", False):
            lengths = [lengths * (2 if mode == "reuse" else 1) for mode in config.kv_sharing_modes]
        writer.add_feed_forward_length(lengths)
    writer.add_head_count(config.num_attention_heads)
    if gpt2:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    if config.model_type == "gemma4_text":
        add_kinds(writer, config)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type not in ("gemma3_text", "qwen3_moe", "gpt_oss", "phi3", "mistral", "olmo3", "ministral3", "muse_glimmer_text",
                                 "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
        return
    if config.model_type.startswith(("qwen3_5", "qwen3_next")):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_uint32(f"{ARCHITECTURES[config.model_type]}.full_attention_interval", 4)
        writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
        if config.model_type != "qwen3_next":
            writer.add_rope_dimension_sections([1, 1, 0, 0])
    if config.model_type in ("olmo3", "muse_glimmer_text"):
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in config.layer_types])
    if config.model_type == "muse_glimmer_text":
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_logit_scale(config.output_multiplier)
        for i in range(config.num_hidden_layers):
            writer.add_tensor(f"blk.{i}.attn_q_norm.weight", np.full(config.head_dim, config.qk_scale_factor, dtype=np.float32))
            writer.add_tensor(f"blk.{i}.attn_k_norm.weight", np.ones(config.head_dim, dtype=np.float32))
    if config.model_type in ("olmo3", "ministral3"):
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if config.model_type == "olmo3":
        writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if config.model_type == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type in ("qwen3_moe", "qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if config.model_type in ("qwen3_moe", "gpt_oss", "qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_count(config.num_local_experts if config.model_type == "gpt_oss" else config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        factor = config.max_position_embeddings / config.original_max_position_embeddings
        writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(factor) / np.log(config.original_max_position_embeddings))))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))


def add_kinds(writer, config):
    """Gemma 4's two kinds of layers."""
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    full, other = config.per_layer_config[windowed.index(False)], config.per_layer_config[windowed.index(True)]
    writer.add_head_count_kv([other.num_key_value_heads if w else full.num_key_value_heads for w in windowed])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windowed)
    for length, swa in ((writer.add_key_length, writer.add_key_length_swa), (writer.add_value_length, writer.add_value_length_swa)):
        length(full.head_dim)
        swa(other.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(other.head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.num_experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    turning = int(full.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (full.head_dim // 2 - turning), dtype=np.float32))


def write_and_close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
