"""The tiny seeded models and adapters of the parity references: what each one is, and how it is written to disk.

Weights come from numpy's PCG64, not from torch's generator, so that they stay the same whatever version of torch remakes them.
Nothing is left at its default: norm weights are spread around one, biases and lora_B are not zero, so that a part that is left out or
applied twice moves every figure.
"""

import json
import shutil
import zlib

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForImageTextToText, AutoModelForMaskedLM, AutoModelForSequenceClassification,
                          BertConfig, Gemma3Config, Gemma3TextConfig, GPT2Config, Gemma4Config, Gemma4TextConfig, GptOssConfig, GraniteConfig, GraniteMoeHybridConfig, LlamaConfig, Mistral3Config, MistralConfig, Olmo2Config,
                          Olmo3Config, Phi3Config, SmolLM3Config,
                          Qwen2Config, Qwen3Config, Qwen3MoeConfig, ViTConfig)
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, Glm4MoeLiteConfig, Ministral3Config
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerConfig
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig
from transformers import Qwen3NextConfig

COMMON = dict(bos_token_id=1, eos_token_id=2, pad_token_id=None, max_position_embeddings=128)


def config_llama2():
    return LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=4, rms_norm_eps=1e-5, tie_word_embeddings=False,
                       rope_parameters=dict(rope_type="default", rope_theta=10000.0), **COMMON)


def config_llama3():
    # head_dim 16 and an original length of 64 put wavelengths into all three bands: kept, blended and divided by the factor
    return LlamaConfig(vocab_size=101, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                       num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                            high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON)


def config_llama_bias():
    return LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
                       rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0), **COMMON)


def config_smollm2():
    return LlamaConfig(vocab_size=103, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=3,
                       num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="default", rope_theta=100000.0), **COMMON)


def config_qwen2():
    return Qwen2Config(vocab_size=113, hidden_size=32, intermediate_size=60, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False,
                       rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON)


def config_qwen3():
    return Qwen3Config(vocab_size=127, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False,
                       rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON)


# The rule's first output is <q, k> v, whose norm has the sign of <q, k>: a small epsilon would make every figure hang on it.
QWEN3_5 = dict(hidden_size=32, intermediate_size=44, num_attention_heads=2, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-3,
               linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12, **COMMON)


def config_qwen3_5():
    # two layers with the gated delta rule below one with attention, whose heads are rotated in their first quarter; two value heads a key head
    return Qwen3_5TextConfig(vocab_size=97, num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"],
                             rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25), **QWEN3_5)


def config_qwen3_5_vision():
    # the text model inside the larger one, as published: what is left out is transformers' default
    return Qwen3_5Config(text_config=dict(vocab_size=89, num_hidden_layers=4, tie_word_embeddings=True, **QWEN3_5),
                         vision_config=dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, out_hidden_size=32, patch_size=4,
                                            num_position_embeddings=16),
                         image_token_id=86, video_token_id=87, vision_start_token_id=84, vision_end_token_id=85, tie_word_embeddings=True)


QWEN3_5_MOE = {k: v for k, v in QWEN3_5.items() if k != "intermediate_size"}


def config_qwen3_5_moe():
    # experts, of which most tokens leave some out, and a gated one beside them that all share; each expert's matrices apart in the file
    return Qwen3_5MoeTextConfig(vocab_size=97, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                                num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=20,
                                rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25), **QWEN3_5_MOE)


def config_qwen3_5_moe_vision():
    # inside the larger model and with all experts' matrices in one tensor, as published
    return Qwen3_5MoeConfig(text_config=dict(vocab_size=89, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_experts=5,
                                             num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=12, **QWEN3_5_MOE),
                            vision_config=dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, out_hidden_size=32, patch_size=4,
                                               num_position_embeddings=16),
                            image_token_id=86, video_token_id=87, vision_start_token_id=84, vision_end_token_id=85)


def config_qwen3_next():
    # q, k, v and z in one linear, two value heads a key head; dense layers' size is there, but no dense layer
    return Qwen3NextConfig(vocab_size=97, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                           num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=20,
                           rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25),
                           **dict(QWEN3_5, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=8))


GEMMA4_ROPE = dict(full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25),
                   sliding_attention=dict(rope_type="default", rope_theta=10000.0))


def config_gemma4():
    # windowed, windowed, full: the last one has wider heads, fewer of keys, whose values they are, and three pairs that turn
    return Gemma4TextConfig(vocab_size=97, hidden_size=36, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
                            num_key_value_heads=2, head_dim=16, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True,
                            rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window=7, final_logit_softcapping=6.0,
                            hidden_size_per_layer_input=0, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                            rope_parameters=GEMMA4_ROPE, **COMMON)


def config_gemma4_moe():
    # experts beside each layer's MLP
    return Gemma4TextConfig(vocab_size=97, hidden_size=32, intermediate_size=28, num_hidden_layers=3, num_attention_heads=2,
                            num_key_value_heads=2, head_dim=12, global_head_dim=20, num_global_key_value_heads=1, attention_k_eq_v=True,
                            rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window=7, final_logit_softcapping=6.0,
                            hidden_size_per_layer_input=0, layer_types=["full_attention", "sliding_attention", "full_attention"],
                            enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=12,
                            rope_parameters=GEMMA4_ROPE, **COMMON)


def config_gemma4_e2b():
    # as E2B and E4B: the upper two layers reuse the keys and values of the second (full) and the third (windowed) and have MLPs twice as wide;
    # each layer has an input from a wide table; towers see and hear, which nothing trains
    return Gemma4Config(text_config=dict(vocab_size=91, hidden_size=24, intermediate_size=20, num_hidden_layers=5, num_attention_heads=2,
                                         num_key_value_heads=1, head_dim=8, global_head_dim=12, num_kv_shared_layers=2, use_double_wide_mlp=True,
                                         sliding_window=6, hidden_size_per_layer_input=16, vocab_size_per_layer_input=91,
                                         final_logit_softcapping=4.0,
                                         layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                                         rope_parameters=GEMMA4_ROPE, **dict(COMMON, pad_token_id=0)),
                        vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                                           num_key_value_heads=2, head_dim=4, patch_size=4, position_embedding_size=16),
                        audio_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[4, 4], output_proj_dims=8,
                                          attention_chunk_size=4, attention_context_left=5),
                        image_token_id=100, video_token_id=101, audio_token_id=102, boi_token_id=103, eoi_token_id=104,
                        boa_token_id=105, eoa_token_index=106)


def config_gemma4_vision():
    # the text model inside the larger one; values of their own. Its tokens of images are beyond
    # the vocabulary: it would put the padding's embedding in place of theirs
    return Gemma4Config(text_config=dict(vocab_size=91, hidden_size=32, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2,
                                         num_key_value_heads=1, head_dim=12, global_head_dim=20, sliding_window=6, hidden_size_per_layer_input=0,
                                         final_logit_softcapping=4.0, layer_types=["sliding_attention", "full_attention"], rope_parameters=GEMMA4_ROPE, **dict(COMMON, pad_token_id=0)),
                        vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                                           num_key_value_heads=2, head_dim=4, patch_size=4, position_embedding_size=16),
                        audio_config=None, image_token_id=100, video_token_id=101, audio_token_id=102, boi_token_id=103, eoi_token_id=104,
                        boa_token_id=105, eoa_token_index=106)


def config_muse_glimmer():
    # windowed, windowed, full without rotation; the text model inside the larger one, whose tokens of images are beyond the vocabulary
    return MuseGlimmerConfig(text_config=dict(vocab_size=93, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
                                              num_key_value_heads=2, head_dim=12, sliding_window=7, qk_scale_factor=1.7, output_multiplier=0.45,
                                              final_logit_softcapping=5.0, **COMMON),
                             vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, patch_size=4,
                                                pos_emb_height=4, pos_emb_width=4, max_position_embeddings=16),
                             out_hidden_size=32, projector_hidden_size=16, image_token_id=100, video_token_id=101)


def config_smollm3():
    # the second layer does not rotate; 1 in the list means that a layer does
    return SmolLM3Config(vocab_size=103, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=3,
                         num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True, no_rope_layers=[1, 0, 1],
                         rope_parameters=dict(rope_type="default", rope_theta=5000000.0), **COMMON)


def config_olmo2():
    # norms behind the halves, and over all heads' queries or keys at once
    return Olmo2Config(vocab_size=101, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
                       rope_parameters=dict(rope_type="default", rope_theta=500000.0), **COMMON)


def config_olmo3():
    # windowed, windowed, full; only the last one's rotary positions are scaled
    plain = dict(rope_type="default", rope_theta=500000.0)
    return Olmo3Config(vocab_size=99, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False, sliding_window=7,
                       layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                       rope_parameters=dict(full_attention=dict(plain, rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0,
                                                                original_max_position_embeddings=16), sliding_attention=plain), **COMMON)


# Granite's four multipliers, none of which is a power of two
MULTIPLIERS = dict(embedding_multiplier=3.0, attention_multiplier=0.21, residual_multiplier=0.35, logits_scaling=0.6)


def config_granite():
    return GraniteConfig(vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="default", rope_theta=10000000.0), **MULTIPLIERS, **COMMON)


def config_granite4():
    # gate and up in one matrix; neither experts nor recurrent layers
    return GraniteMoeHybridConfig(vocab_size=95, hidden_size=32, shared_intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, num_local_experts=0,
                                  num_experts_per_tok=0, layer_types=["full_attention"] * 2, position_embedding_type="rope", mamba_n_heads=4,
                                  rope_parameters=dict(rope_type="default", rope_theta=10000000.0), **MULTIPLIERS, **COMMON)


def config_gguf_llama():
    return LlamaConfig(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
                       rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                            high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON)


def config_gguf_qwen2():
    return Qwen2Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False,
                       rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON)


def config_mistral():
    # a window shorter than two of the three documents
    return MistralConfig(vocab_size=107, hidden_size=36, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=6,
                         rope_parameters=dict(rope_type="default", rope_theta=10000.0), **COMMON)


def config_phi3():
    # 6 of 12 elements of a head are rotated (3 pairs), a document of 40 takes the long factors, those of 11 the short ones
    return Phi3Config(vocab_size=109, hidden_size=48, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=9,
                      original_max_position_embeddings=24,
                      rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                                           short_factor=[1.0, 1.1, 1.3], long_factor=[1.05, 2.5, 6.0]),
                      **COMMON)


def config_gemma3():
    # windowed, windowed, full (a pattern of 3); heads divided by another root than their own
    return Gemma3TextConfig(vocab_size=105, hidden_size=36, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3,
                            num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window=7,
                            query_pre_attn_scalar=24,
                            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                            rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                                                 sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **COMMON)


def config_qwen3_moe():
    # a layer with one MLP between two with experts, of which most tokens leave some out
    return Qwen3MoeConfig(vocab_size=89, hidden_size=28, intermediate_size=44, moe_intermediate_size=20, num_hidden_layers=3,
                          num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=7, num_experts_per_tok=3,
                          mlp_only_layers=[1], norm_topk_prob=True, rms_norm_eps=1e-6, tie_word_embeddings=False,
                          rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON)


def config_glm4_lite():
    # a layer with one MLP below two with experts: sigmoids and biases choose groups first. Two shared experts are one MLP. The norms of
    # latent attention have an epsilon of their own
    return Glm4MoeLiteConfig(vocab_size=97, hidden_size=32, intermediate_size=44, moe_intermediate_size=12, num_hidden_layers=3,
                             num_attention_heads=2, num_key_value_heads=2, n_routed_experts=8, n_shared_experts=2, n_group=4, topk_group=2,
                             num_experts_per_tok=3, kv_lora_rank=20, q_lora_rank=24, qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=16,
                             rms_norm_eps=1e-2, rope_parameters=dict(rope_type="default", rope_theta=10000.0), **COMMON)


def config_deepseek3():
    # values shorter than keys; the first two layers have one MLP; YaRN's factor of scores
    return DeepseekV3Config(vocab_size=97, hidden_size=28, intermediate_size=36, moe_intermediate_size=12, num_hidden_layers=3,
                            num_attention_heads=3, num_key_value_heads=3, n_routed_experts=9, n_shared_experts=1, n_group=3, topk_group=2,
                            num_experts_per_tok=3, first_k_dense_replace=2, kv_lora_rank=18, q_lora_rank=22, qk_rope_head_dim=8,
                            qk_nope_head_dim=10, v_head_dim=12, rms_norm_eps=1e-5, attention_bias=True,
                            rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                                                 mscale_all_dim=0.7, original_max_position_embeddings=16), **COMMON)


def config_gpt_oss():
    # a window in the first and third layer; lengths beyond YaRN's original 16; clamps that some gates and ups reach
    return GptOssConfig(vocab_size=95, hidden_size=36, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=12, num_local_experts=6, num_experts_per_tok=2, sliding_window=5,
                        rms_norm_eps=1e-5, tie_word_embeddings=False,
                        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0,
                                             truncate=False, original_max_position_embeddings=16), **COMMON)


def gpt2(vocabulary, **sizes):
    return GPT2Config(vocab_size=vocabulary, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
                      eos_token_id=2, **sizes)


def config_gpt2():
    # heads of 11 elements, an MLP that is not four times as wide
    return gpt2(91, n_embd=33, n_inner=52, n_layer=3, n_head=3)


def config_gguf_gpt2():
    return gpt2(288, n_embd=32, n_layer=2, n_head=4)
VISION = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)


def config_gemma3_vision():
    # the text model inside a larger one; what its configuration leaves out is transformers' default (8 heads of 256 are not)
    return Gemma3Config(text_config=dict(vocab_size=91, hidden_size=32, intermediate_size=28, num_hidden_layers=2, num_attention_heads=2,
                                         num_key_value_heads=1, head_dim=12, sliding_window=6, query_pre_attn_scalar=16,
                                         layer_types=["sliding_attention", "full_attention"], **COMMON),
                        vision_config=VISION, mm_tokens_per_image=4)


def config_mistral3():
    # a head of its own, which only the files tell: the larger model's configuration says nothing, or that it is tied
    return Mistral3Config(text_config=dict(model_type="mistral", vocab_size=93, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                           num_attention_heads=3, num_key_value_heads=1, head_dim=14, rms_norm_eps=1e-5,
                                           sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON),
                          vision_config=dict(head_dim=4, **VISION), tie_word_embeddings=False)


def config_ministral3():
    # the text model inside a larger one; queries grow every 8 positions
    rope = dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0,
                mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
    return Mistral3Config(text_config=dict(model_type="ministral3", vocab_size=89, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                           num_attention_heads=3, num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-5,
                                           tie_word_embeddings=False, rope_parameters=rope, **COMMON),
                          vision_config=dict(head_dim=4, **VISION), tie_word_embeddings=False)


def bert(vocabulary, **more):
    return BertConfig(vocab_size=vocabulary, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=64, pad_token_id=None,
                      type_vocab_size=2, **more)


def config_bert_mlm():
    # heads of 11 elements
    return bert(93, hidden_size=33, intermediate_size=52, num_hidden_layers=3, num_attention_heads=3)


def config_bert_cls():
    return bert(83, hidden_size=36, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4, num_labels=3)


def config_vit():
    # heads of 11 elements; an image is a class token and nine patches
    return ViTConfig(hidden_size=33, intermediate_size=52, num_hidden_layers=3, num_attention_heads=3, image_size=6, patch_size=2, num_channels=3,
                     num_labels=4, tie_word_embeddings=False)


# name -> (config, dtype of the saved weights, largest shard)
MODELS = {
    "llama2": (config_llama2, torch.float32, "1GB"),
    "llama3": (config_llama3, torch.float32, "40KB"),  # several shards and an index
    "llama-bias": (config_llama_bias, torch.float32, "1GB"),
    "smollm2": (config_smollm2, torch.float32, "1GB"),
    "qwen2": (config_qwen2, torch.bfloat16, "1GB"),
    "qwen3": (config_qwen3, torch.float32, "1GB"),
    "mistral": (config_mistral, torch.float32, "30KB"),
    "phi3": (config_phi3, torch.float32, "1GB"),
    "gemma3": (config_gemma3, torch.float32, "1GB"),
    "smollm3": (config_smollm3, torch.float32, "1GB"),
    "olmo2": (config_olmo2, torch.float32, "1GB"),
    "olmo3": (config_olmo3, torch.float32, "1GB"),
    "granite": (config_granite, torch.float32, "1GB"),
    "granite4": (config_granite4, torch.float32, "1GB"),
    "qwen3.5": (config_qwen3_5, torch.float32, "1GB"),
    "qwen3.5-vision": (config_qwen3_5_vision, torch.float32, "1GB"),
    "gemma4": (config_gemma4, torch.float32, "1GB"),
    "gemma4-moe": (config_gemma4_moe, torch.float32, "1GB"),
    "gemma4-e2b": (config_gemma4_e2b, torch.float32, "1GB"),
    "gemma4-vision": (config_gemma4_vision, torch.float32, "1GB"),
    "muse-glimmer": (config_muse_glimmer, torch.float32, "1GB"),
    "qwen3.5-moe": (config_qwen3_5_moe, torch.float32, "1GB"),
    "qwen3.5-moe-vision": (config_qwen3_5_moe_vision, torch.float32, "1GB"),
    "qwen3-next": (config_qwen3_next, torch.float32, "1GB"),
    "qwen3-moe": (config_qwen3_moe, torch.float32, "50KB"),
    "glm4-lite": (config_glm4_lite, torch.float32, "1GB"),
    "deepseek3": (config_deepseek3, torch.float32, "1GB"),
    "gpt-oss": (config_gpt_oss, torch.float32, "60KB"),
    "gpt2": (config_gpt2, torch.float32, "50KB"),
    "gemma3-vision": (config_gemma3_vision, torch.float32, "1GB"),
    "mistral3": (config_mistral3, torch.float32, "40KB"),
    "ministral3": (config_ministral3, torch.float32, "1GB"),
    "bert-mlm": (config_bert_mlm, torch.float32, "1GB"),
    "bert-cls": (config_bert_cls, torch.float32, "1GB"),
    "vit": (config_vit, torch.float32, "1GB"),
}
def config_gguf_gemma3():
    # the sixth layer sees all, with linear scaling; heads divided by their own root, as every size but one has it
    return Gemma3TextConfig(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2,
                            num_key_value_heads=1, head_dim=32, tie_word_embeddings=True, sliding_window=6, query_pre_attn_scalar=32,
                            rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                                                 sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **COMMON)


def config_gguf_gemma4():
    # as 26B-A4B: experts, windows in two layers, a third one with wider heads whose values are its keys and of whose pairs a quarter turns
    return Gemma4TextConfig(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
                            num_key_value_heads=2, head_dim=32, global_head_dim=64, num_global_key_value_heads=1, attention_k_eq_v=True,
                            tie_word_embeddings=True, sliding_window=6, final_logit_softcapping=6.0, hidden_size_per_layer_input=0,
                            layer_types=["sliding_attention", "sliding_attention", "full_attention"], enable_moe_block=True, num_experts=5,
                            top_k_experts=2, moe_intermediate_size=32, rope_parameters=GEMMA4_ROPE, **COMMON)


def config_gguf_gemma4_e2b():
    # as E2B: the upper two layers borrow keys and have wider MLPs, and each layer has an input of its own
    return Gemma4TextConfig(vocab_size=288, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
                            num_key_value_heads=1, head_dim=32, global_head_dim=64, tie_word_embeddings=True, sliding_window=6,
                            final_logit_softcapping=6.0, hidden_size_per_layer_input=32, vocab_size_per_layer_input=288, num_kv_shared_layers=2,
                            use_double_wide_mlp=True, layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters=GEMMA4_ROPE, **COMMON)


def config_gguf_qwen3_moe():
    return Qwen3MoeConfig(vocab_size=288, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=3,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_experts=5, num_experts_per_tok=2,
                          mlp_only_layers=[1], norm_topk_prob=True, tie_word_embeddings=False,
                          rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON)


def config_gguf_gpt_oss():
    return GptOssConfig(vocab_size=288, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                        num_key_value_heads=1, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
                        tie_word_embeddings=False,
                        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                             truncate=False, original_max_position_embeddings=16), **COMMON)


def config_gguf_phi3():
    return Phi3Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, tie_word_embeddings=False, sliding_window=9, original_max_position_embeddings=12,
                      rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                                           short_factor=[1.0, 1.1], long_factor=[1.05, 2.5]), **COMMON)



def config_gguf_mistral3():
    # the text model inside Mistral Small 3: no window, heads whose sizes do not add up to the hidden size
    return MistralConfig(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None,
                         rope_parameters=dict(rope_type="default", rope_theta=100000000.0), **COMMON)


def config_gguf_smollm3():
    # the fourth layer does not rotate, which no GGUF says
    return SmolLM3Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                         tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=5000000.0), **COMMON)


def config_gguf_olmo2():
    return Olmo2Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=500000.0), **COMMON)


def config_gguf_granite():
    return GraniteConfig(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000000.0), **MULTIPLIERS, **COMMON)


def config_gguf_olmo3():
    # one layer of four without a window, whose rotary positions are scaled
    plain = dict(rope_type="default", rope_theta=500000.0)
    return Olmo3Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                       tie_word_embeddings=False, sliding_window=5,
                       rope_parameters=dict(full_attention=dict(plain, rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0, attention_factor=1.1,
                                                                original_max_position_embeddings=8), sliding_attention=plain), **COMMON)


def config_gguf_ministral3():
    return Ministral3Config(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=16, tie_word_embeddings=True, sliding_window=None,
                            rope_parameters=dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, beta_fast=16.0, beta_slow=1.0, mscale=1.0,
                                                 mscale_all_dim=1.0, llama_4_scaling_beta=0.1, original_max_position_embeddings=6), **COMMON)


def config_gguf_muse_glimmer():
    return MuseGlimmerConfig(text_config=dict(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4,
                                              num_key_value_heads=2, head_dim=16, sliding_window=5, qk_scale_factor=1.7, output_multiplier=0.45,
                                              final_logit_softcapping=5.0, **COMMON),
                             vision_config=config_muse_glimmer().vision_config, out_hidden_size=32, projector_hidden_size=16, image_token_id=300,
                             video_token_id=301)


def config_gguf_qwen3_5():
    # two value heads a key head, which the file has in another order
    return Qwen3_5TextConfig(vocab_size=288, num_hidden_layers=4, tie_word_embeddings=True,
                             **dict(QWEN3_5, intermediate_size=64, num_attention_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16),
                             rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))


def config_gguf_qwen3_5_moe():
    return Qwen3_5MoeTextConfig(vocab_size=288, num_hidden_layers=4, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
                                shared_expert_intermediate_size=64,
                                **dict(QWEN3_5_MOE, num_attention_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16),
                                rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))


def config_gguf_qwen3_next():
    return Qwen3NextConfig(vocab_size=288, num_hidden_layers=4, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
                           shared_expert_intermediate_size=64, **dict(QWEN3_5, num_attention_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16),
                           rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))


GGUF_MODELS = {"gguf-qwen3.5": config_gguf_qwen3_5, "gguf-qwen3.5-moe": config_gguf_qwen3_5_moe, "gguf-qwen3-next": config_gguf_qwen3_next, "gguf-olmo3": config_gguf_olmo3, "gguf-ministral3": config_gguf_ministral3, "gguf-muse-glimmer": config_gguf_muse_glimmer,
               "gguf-gemma3": config_gguf_gemma3, "gguf-gemma4": config_gguf_gemma4, "gguf-gemma4-e2b": config_gguf_gemma4_e2b, "gguf-qwen3-moe": config_gguf_qwen3_moe, "gguf-gpt-oss": config_gguf_gpt_oss,
               "gguf-phi3": config_gguf_phi3, "gguf-mistral3": config_gguf_mistral3, "gguf-smollm3": config_gguf_smollm3,
               "gguf-olmo2": config_gguf_olmo2, "gguf-granite": config_gguf_granite, "gguf-llama": config_gguf_llama,
               "gguf-qwen2": config_gguf_qwen2, "gguf-gpt2": config_gguf_gpt2}

# The two adapters of each model. rank_pattern and alpha_pattern hold a plain suffix and a longer one.
ADAPTERS = {
    "adapter": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    "adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_rslora=True,
                       rank_pattern={"q_proj": 2, "layers.1.self_attn.v_proj": 6},
                       alpha_pattern={"layers.0.self_attn.q_proj": 6, "v_proj": 12}),
}


# A larger model's other parts have modules of the same names.
TEXT_ONLY = dict(adapter=dict(r=4, lora_alpha=8, target_modules=r"model\.language_model\..*\.(?:q|k|v|o|gate|up|down)_proj"))
TEXT_ONLY["adapter-rs"] = dict(ADAPTERS["adapter-rs"], target_modules=r"model\.language_model\..*\.(?:q_proj|v_proj)")

# In place of q_proj and v_proj, where a family has other modules.
BERT_ADAPTERS = {
    "adapter": dict(r=4, lora_alpha=8, target_modules=["query", "key", "value", "intermediate.dense", "output.dense"]),
    "adapter-rs": dict(r=4, lora_alpha=8, target_modules=["query", "value"], use_rslora=True,
                       rank_pattern={"query": 2, "layer.1.attention.self.value": 6},
                       alpha_pattern={"layer.0.attention.self.query": 6, "value": 12}),
}
# The classifier is trained whole, which PEFT does by itself for classes of texts alone.
VIT_ADAPTERS = {
    "adapter": dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "o_proj", "fc1", "fc2"], modules_to_save=["classifier"]),
    "adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_rslora=True, modules_to_save=["classifier"],
                       rank_pattern={"q_proj": 2, "layers.1.attention.v_proj": 6},
                       alpha_pattern={"layers.0.attention.q_proj": 6, "v_proj": 12}),
}
QWEN3_5_RS = dict(r=4, lora_alpha=8, target_modules=["in_proj_qkv", "in_proj_a", "out_proj", "q_proj", "v_proj"], use_rslora=True,
                  rank_pattern={"in_proj_qkv": 2, "layers.1.linear_attn.out_proj": 6},
                  alpha_pattern={"layers.0.linear_attn.in_proj_qkv": 6, "q_proj": 12})
QWEN3_5_TEXT = r"model\.language_model\..*\.(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|in_proj_qkv|in_proj_z|in_proj_b|in_proj_a|out_proj)"
QWEN3_5_MOE_TEXT = QWEN3_5_TEXT.replace("out_proj", "out_proj|shared_expert_gate")
ADAPTERS_OF = {
    # experts beside linears; gate and up of a rank of their own. Then inside the larger model: the router, and one of the experts' parameters
    "qwen3.5-moe": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj", "shared_expert_gate"], use_rslora=True,
                                       target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                                       rank_pattern={"mlp.experts.gate_up_proj": 3}, alpha_pattern={"shared_expert_gate": 12})},
    # both fused linears, of ranks of their own
    "qwen3-next": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["in_proj_qkvz", "in_proj_ba", "q_proj"], use_rslora=True,
                                      target_parameters=["mlp.experts.gate_up_proj"], rank_pattern={"in_proj_qkvz": 2},
                                      alpha_pattern={"layers.0.linear_attn.in_proj_qkvz": 6, "in_proj_ba": 12})},
    "qwen3.5-moe-vision": {"adapter": dict(r=4, lora_alpha=8, target_modules=QWEN3_5_MOE_TEXT),
                           "adapter-rs": dict(r=3, lora_alpha=8, target_modules=[], use_rslora=True,
                                              target_parameters=["mlp.experts.down_proj", "mlp.gate.weight"])},
    # the router is a linear; experts beside it
    "gemma4-moe": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_proj", "router.proj"], use_rslora=True,
                                      target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                                      rank_pattern={"experts.gate_up_proj": 3}, alpha_pattern={"router.proj": 12})},
    "qwen3.5": {"adapter-rs": QWEN3_5_RS},
    "qwen3.5-vision": {"adapter": dict(r=4, lora_alpha=8, target_modules=QWEN3_5_TEXT),
                       "adapter-rs": dict(QWEN3_5_RS, target_modules=r"model\.language_model\..*\.(?:in_proj_qkv|out_proj|q_proj)")},
    "vit": VIT_ADAPTERS,
    "bert-mlm": BERT_ADAPTERS,
    "bert-cls": BERT_ADAPTERS,
    "gguf-qwen3-moe": {"adapter": dict(r=4, lora_alpha=8, target_modules=["k_proj", "q_proj"])},
    "gguf-qwen3-next": {"adapter": dict(r=4, lora_alpha=8, target_modules=["in_proj_ba", "in_proj_qkvz", "out_proj", "q_proj", "shared_expert_gate"])},
    "gpt2": {"adapter": dict(r=4, lora_alpha=8, target_modules="all-linear", fan_in_fan_out=True),
             "adapter-rs": dict(r=4, lora_alpha=8, target_modules=["c_attn", "mlp.c_proj"], use_rslora=True, fan_in_fan_out=True,
                                rank_pattern={"c_attn": 2, "h.1.mlp.c_proj": 6}, alpha_pattern={"h.0.attn.c_attn": 6, "c_proj": 12})},
    "gguf-gpt2": {"adapter": dict(r=4, lora_alpha=8, target_modules="all-linear", fan_in_fan_out=True)},
    "gemma3-vision": TEXT_ONLY,
    "gemma4-vision": TEXT_ONLY,
    # each linear of the text model
    "gemma4-e2b": {"adapter": dict(r=4, lora_alpha=8, target_modules=r"model\.language_model\..*(?:\.(?:q|k|v|o|gate|up|down)_proj|per_layer_model_projection|per_layer_input_gate|per_layer_projection)"),
                   "adapter-rs": dict(ADAPTERS["adapter-rs"], target_modules=r"model\.language_model\..*\.(?:q_proj|v_proj|per_layer_input_gate)")},
    "gguf-muse-glimmer": TEXT_ONLY,
    "muse-glimmer": TEXT_ONLY,  # the attention's gate_proj beside the MLP's
    "mistral3": TEXT_ONLY,
    "ministral3": TEXT_ONLY,
    "deepseek3": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_a_proj", "kv_b_proj", "o_proj"], use_rslora=True,
                                     target_parameters=["mlp.experts.down_proj"], rank_pattern={"kv_b_proj": 2},
                                     alpha_pattern={"layers.0.self_attn.o_proj": 6})},
    # all-linear is experts and routers beside attention: the dense and shared MLPs' names become the experts'. Then some of each
    "glm4-lite": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_b_proj", "kv_a_proj_with_mqa", "o_proj", "down_proj"],
                                     use_rslora=True, rank_pattern={"q_b_proj": 2, "layers.1.self_attn.o_proj": 6},
                                     alpha_pattern={"layers.0.self_attn.q_b_proj": 6, "o_proj": 12})},
    # experts and routers; gate and up of twice the rank. Then experts alone, of which one parameter has a rank of its own
    "qwen3-moe": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], use_rslora=True,
                                     rank_pattern={"down_proj": 3}, alpha_pattern={"layers.2.mlp.experts.down_proj": 6})},
    "gpt-oss": {"adapter": dict(r=4, lora_alpha=8, target_modules=["k_proj", "o_proj", "q_proj", "v_proj"],
                                target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
                "adapter-rs": dict(r=3, lora_alpha=8, target_modules=[], use_rslora=True,
                                   target_parameters=["mlp.experts.gate_up_proj", "mlp.router.weight"])},
    "phi3": {"adapter-rs": dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "down_proj"], use_rslora=True,
                                rank_pattern={"qkv_proj": 2, "layers.1.mlp.down_proj": 6},
                                alpha_pattern={"layers.0.self_attn.qkv_proj": 6, "down_proj": 12})},
}


# Modules trained whole beside an adapter: both ends of a model whose lowest layer has none; the head alone; a tied table.
WHOLE = {
    "llama2": dict(r=4, lora_alpha=8, target_modules=["layers.1.self_attn.v_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    "llama-bias": dict(r=4, lora_alpha=8, target_modules=["layers.2.mlp.up_proj"], modules_to_save=["lm_head"]),
    "smollm2": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True),
}


def adapter_settings(name, adapter):
    if adapter == "adapter-whole":
        return WHOLE[name]
    return ADAPTERS_OF.get(name, {}).get(adapter, ADAPTERS[adapter])


def adapters_of(name):
    return ["adapter"] if name in GGUF_MODELS else [*ADAPTERS, *(["adapter-whole"] if name in WHOLE else [])]


def generator(*words):
    """A generator of its own for each purpose, so that adding a model changes no other."""
    return np.random.default_rng(zlib.crc32("/".join(words).encode()))


def is_norm(name):
    return "norm" in name.lower() or ".ln_" in name


def is_conv1d(model, name):
    """GPT-2 keeps its matrices as (in, out)."""
    return model.config.model_type == "gpt2" and ".h." in name and name.endswith("weight") and not is_norm(name)
AUTO = {"bert-mlm": AutoModelForMaskedLM, "bert-cls": AutoModelForSequenceClassification, "vit": AutoModelForImageClassification}  # others: by their configuration


def auto_class(name, config):
    if name in AUTO:
        return AUTO[name]
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def is_text(name):
    return not any(part in name for part in ("vision_", "multi_modal_projector", ".visual.", "embed_vision", "audio"))


def random_weights(model, rng):
    text = model.config.get_text_config()
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if is_norm(name):
            less_one = (text.model_type == "gemma3_text" or text.model_type.startswith(("qwen3_5", "qwen3_next")) and "linear_attn.norm" not in name
                        or text.model_type == "muse_glimmer_text" and "layernorm" in name)
            value = rng.uniform(0.6, 1.4, shape) - (less_one or name.endswith("bias"))
        elif name.endswith("A_log"):
            value = rng.uniform(-3, 1, shape)
        elif name.endswith("router.scale") or name.endswith("per_expert_scale"):
            value = rng.uniform(0.6, 1.4, shape)
        elif name.endswith("sinks"):
            value = rng.standard_normal(shape)
        elif name.endswith("bias"):
            value = 0.3 * rng.standard_normal(shape)
        elif any(table in name for table in ("embed_tokens", "wte", "wpe", "_embeddings")):
            value = (0.25 if getattr(model.config, "tie_word_embeddings", text.tie_word_embeddings) else 1.0) * rng.standard_normal(shape)
        else:
            width = shape[0] if is_conv1d(model, name) else shape[-1]
            if model.config.model_type == "gpt_oss" and "experts" in name:
                width = shape[-2]
            # the gate of a layer's own input reads the residual itself: far below zero all that it lets through would be rounding's
            factor = 4 if name.endswith("gate_up_proj") else 0.2 if name.endswith("per_layer_input_gate.weight") else 1
            value = factor * rng.standard_normal(shape) / np.sqrt(width)
        parameter.data.copy_(torch.from_numpy(value.astype(np.float32)))
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.copy_(torch.from_numpy(rng.uniform(0.6, 1.4, tuple(buffer.shape)).astype(np.float32)))
        elif name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.from_numpy((0.3 * rng.standard_normal(tuple(buffer.shape))).astype(np.float32)))


def transformers4_config(config):
    """The same configuration as transformers 4 spelled it."""
    if "text_config" in config:
        dtype = config.pop("dtype")
        text = transformers4_config(dict(config.pop("text_config"), dtype=dtype))
        text.pop("transformers_version")
        config.pop("tie_word_embeddings", None)  # was not said there
        return dict(config, text_config=text, torch_dtype=dtype, transformers_version="4.51.0")
    rope = config.pop("rope_parameters", None)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    if rope is None:
        return config
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        period = 1 + config["layer_types"].index("full_attention")
        if all((kind == "full_attention") == ((i + 1) % period == 0) for i, kind in enumerate(config["layer_types"])):
            del config["layer_types"]
            config["sliding_window_pattern"] = period
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    # "linear" in the oldest spelling of all, where the key is `type`
    config["rope_scaling"] = None if kind == "default" else {("type" if kind == "linear" else "rope_type"): kind, **rope}
    return config


def write_config(directory):
    """Writes config-4.json beside config.json and makes the latter independent of the installed version."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["transformers_version"] = "5.23.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (directory / "config-4.json").write_text(json.dumps(transformers4_config(config), indent=2, sort_keys=True) + "\n")
    (directory / "generation_config.json").unlink(missing_ok=True)


def write_model(name, directory):
    make_config, dtype, shard = MODELS[name]
    config = make_config()
    model = auto_class(name, config).from_config(config)
    random_weights(model, generator(name, "weights"))
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    if name == "qwen3.5-moe-vision":
        stack_experts(directory / "model.safetensors")
    if name == "qwen3-next":
        add_prediction(directory / "model.safetensors")
    if name == "gemma4-e2b":
        add_unread_keys(directory / "model.safetensors", config.text_config)
    write_config(directory)


def add_prediction(path):
    """Tensors of multi-token prediction, which transformers does not read."""
    value = torch.arange(24, dtype=torch.float32).reshape(3, 8)
    save_file(load_file(path) | {"mtp.fc.weight": value.bfloat16(), "mtp.norm.weight": value[0]}, path, metadata={"format": "pt"})


def add_unread_keys(path, config):
    """Published files have keys and values of layers that reuse those of others, too; nobody reads them."""
    tensors, rng = load_file(path), generator("gemma4-e2b", "unread")
    for layer in range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers):
        size = config.per_layer_config[layer].head_dim
        for part, shape in (("k_proj", (size, config.hidden_size)), ("v_proj", (size, config.hidden_size)), ("k_norm", (size,))):
            value = rng.standard_normal(shape).astype(np.float32)
            tensors[f"model.language_model.layers.{layer}.self_attn.{part}.weight"] = torch.from_numpy(value)
    save_file(tensors, path, metadata={"format": "pt"})


def stack_experts(path):
    """All experts' matrices of a layer in one tensor, as published files have them; transformers reads them, and writes them apart."""
    tensors = load_file(path)
    out = {name: t for name, t in tensors.items() if ".experts." not in name}
    for stem in {name.split(".experts.")[0] + ".experts" for name in tensors.keys() - out.keys()}:
        count = max(int(name.removeprefix(stem + ".").split(".")[0]) for name in tensors if name.startswith(stem + ".")) + 1
        of = {part: [tensors[f"{stem}.{e}.{part}_proj.weight"] for e in range(count)] for part in ("gate", "up", "down")}
        out[stem + ".gate_up_proj"] = torch.stack([torch.cat(both) for both in zip(of["gate"], of["up"])])
        out[stem + ".down_proj"] = torch.stack(of["down"])
    save_file(out, path, metadata={"format": "pt"})


def load_model(directory, dtype=torch.float32):
    # eager in fp32 is the plainest arithmetic; in bf16 sdpa keeps scores and probabilities in fp32, as a fused kernel does
    attention = "eager" if dtype == torch.float32 else "sdpa"
    model = auto_class(directory.name, AutoConfig.from_pretrained(directory)).from_pretrained(directory, dtype=dtype, attn_implementation=attention, experts_implementation="eager")
    for module in model.modules():  # the padding's row learns like any other: the documents here have that token
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(is_text(key))
    assert all(b.dtype == torch.float32 for n, b in model.named_buffers() if n.endswith("inv_freq"))
    return model.train()


TASK_TYPES = {"bert-mlm": None, "bert-cls": "SEQ_CLS", "vit": None}


def write_adapters(name, directory):
    """Makes each adapter with PEFT on a fresh copy of the model in `directory`, fills it and saves it below that directory."""
    for adapter in adapters_of(name):
        model = get_peft_model(load_model(directory), LoraConfig(task_type=TASK_TYPES.get(name, "CAUSAL_LM"), lora_dropout=0.0, **adapter_settings(name, adapter)))
        rng = generator(name, adapter)
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                scale = 1 / np.sqrt(parameter.shape[1]) if "lora_A" in key else 0.2
                value = scale * rng.standard_normal(tuple(parameter.shape))
                parameter.data.copy_(torch.from_numpy(value.astype(np.float32)))
            elif adapter == "adapter-whole" and "modules_to_save" in key:
                parameter.data += torch.from_numpy(0.05 * rng.standard_normal(tuple(parameter.shape)).astype(np.float32))
        model.peft_config["default"].base_model_name_or_path = name
        target = directory / adapter
        model.save_pretrained(target, save_embedding_layers=False)
        (target / "README.md").unlink(missing_ok=True)
        path = target / "adapter_config.json"
        config = json.loads(path.read_text())
        for key in ("target_modules", "target_parameters", "modules_to_save"):
            if isinstance(config[key], list):
                config[key] = sorted(config[key])  # a set in PEFT: its order changes from run to run
        config["peft_version"] = "0.21.0"
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_adapter(model, directory, dtype=torch.float32):
    model = PeftModel.from_pretrained(model, directory, is_trainable=True, autocast_adapter_dtype=False)
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data = parameter.data.to(dtype)
    return model.train()


def empty(directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
