"""Makes tests/reference/ckpt/: what the checkpoint readers are held against.

    build/venv/run tests/reference/ckpt.py            remakes them
    build/venv/run tests/reference/ckpt.py --check    remakes them in a temporary directory and compares

quants.safetensors     for each GGUF block type random blocks ("Q4_K.blocks", U8) and what gguf.quants.dequantize makes of them
                       ("Q4_K.values", F32); scales are odd (subnormal, negative, zero, huge), infinities and NaNs are left out
<model>/               a tiny seeded model of each architecture as transformers saves it
<model>.gguf           the same weights as a GGUF file, as llama.cpp's converter lays them out (llama: q and k rows permuted), partly quantised
gpt-oss/               a tiny GPT-OSS whose experts are stored in MXFP4, as the published ones are; gpt-oss.safetensors: what transformers'
                       convert_moe_packed_tensors makes of the experts, each matrix turned as the model computes with it
<model>.safetensors    what that GGUF holds: dequantised, in Hugging Face's order, under Hugging Face's names
peft.json              adapter_config.json's and, for modules of the qwen3 model, whether PEFT targets them, with which rank and alpha
"""

import filecmp
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from peft import LoraConfig, get_peft_model
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gguf_parts import add_lengths, gguf_name, permute, rope_factors, unpermute, write_and_close

HERE = pathlib.Path(__file__).parent / "ckpt"
TYPES = [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4, Q.NVFP4]
# byte offsets of the fp16 scales in a block
SCALES = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2],
          Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: [], Q.NVFP4: []}


def quants(out):
    rng = np.random.default_rng(11)
    tensors = {}
    for kind in TYPES:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        count = 24 if size == 256 else 64 if size > 1 else 65536
        if size == 1:  # every finite half
            halves = np.arange(65536, dtype=np.uint16)
            exponent = 0x7C00 if kind == Q.F16 else 0x7F80
            halves = halves[(halves & exponent) != exponent][:: 1 if kind == Q.F16 else 16]
            blocks = np.ascontiguousarray(halves).view(np.uint8).reshape(1, -1)
        else:
            blocks = rng.integers(0, 256, (count, width), dtype=np.uint8)
            for offset in SCALES[kind]:
                halves = rng.integers(0, 65536, count).astype(np.uint16)
                halves[(halves & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaNs become subnormals
                halves[:8] = [0, 0x8000, 1, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0x0400]
                blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(count, 2)
            if kind == Q.MXFP4:  # 255 is no number to the format, 2^127 to the package
                blocks[:, 0] = np.linspace(0, 250, count)
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        tensors[f"{kind.name}.blocks"] = blocks
        tensors[f"{kind.name}.values"] = values.reshape(-1)
    save_file(tensors, out / "quants.safetensors")


def write_gguf(model, config, path, kinds):
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    add_lengths(writer, config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if arch == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [chr(ord("A") + i) for i in range(26)] + [chr(ord("a") + i) for i in range(config.vocab_size - 28)] + ["AB", "ab"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["A B", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    expected = {}
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        array = tensor.to(torch.float32).numpy()
        kind = kinds[number % len(kinds)] if array.ndim == 2 else Q.F32
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        stored = permute(array, heads) if arch == "llama" and heads else array
        raw = gguf.quants.quantize(np.ascontiguousarray(stored), kind)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)
        plain = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(stored.shape)
        if arch == "llama" and heads:  # back again
            plain = unpermute(plain, heads)
        expected[name] = np.ascontiguousarray(plain)
    write_and_close(writer)
    save_file(expected, str(path).replace(".gguf", ".safetensors"))


def models(out):
    torch.manual_seed(5)
    common = dict(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    jobs = [
        ("llama", LlamaForCausalLM, LlamaConfig(**{**common, "max_position_embeddings": 131072}, attention_bias=True, mlp_bias=True,
                                                rope_parameters=llama3, rms_norm_eps=1e-5),
         torch.float32, "40KB", [Q.Q8_0, Q.Q4_1, Q.F16, Q.Q5_0, Q.F32]),
        ("qwen2", Qwen2ForCausalLM, Qwen2Config(**common, tie_word_embeddings=True), torch.bfloat16, "5GB", [Q.Q8_0, Q.Q4_0, Q.BF16]),
        ("qwen3", Qwen3ForCausalLM, Qwen3Config(**common, head_dim=16, rope_parameters=dict(rope_type="linear", factor=2.0,
                                                                                             rope_theta=1000000.0)),
         torch.float16, "5GB", [Q.Q5_1, Q.F16]),
    ]
    for name, kind, config, dtype, shard, kinds in jobs:
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        model = model.to(dtype)
        model.save_pretrained(out / name, max_shard_size=shard)
        (out / name / "generation_config.json").unlink(missing_ok=True)
        write_gguf(model, config, out / f"{name}.gguf", kinds)


def mxfp4(out):
    """Blocks and scales of all values; scales from 2^-30 to 2^30, whose products no type here rounds."""
    torch.manual_seed(7)
    config = GptOssConfig(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                          num_key_value_heads=1, head_dim=16, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=64)
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    values = {}
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8)
        scales = torch.randint(97, 158, (experts, outer, inner // 32), dtype=torch.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        turned = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2).contiguous()
        values[name] = turned.reshape(experts * outer, inner).numpy()
    (out / "gpt-oss").mkdir()
    save_torch(tensors, out / "gpt-oss" / "model.safetensors", metadata={"format": "pt"})
    config.quantization_config = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    config.architectures = ["GptOssForCausalLM"]
    config.save_pretrained(out / "gpt-oss")
    save_file(values, out / "gpt-oss.safetensors")


ADAPTERS = [
    dict(r=4, target_modules=["q_proj", "v_proj"]),
    dict(r=4, lora_alpha=3, target_modules=["mlp.up_proj", "model.layers.1.self_attn.k_proj", "proj"], use_rslora=True),
    dict(r=4, target_modules=r".*layers\.1\.(self_attn|mlp)\.(q|down)_proj"),
    dict(r=4, target_modules=r"q_proj|model\.layers\.0\.mlp\.gate_proj"),
    dict(r=2, target_modules="all-linear"),
    dict(r=2, target_modules="all-linear", rank_pattern={"q_proj": 3, r"0\.mlp\.up_proj": 5, "_proj": 7, r"^model.layers.1.mlp.up_proj": 6},
         alpha_pattern={r"layers\.[01]\.self_attn\..*": 11, "mlp.(up|down)_proj": 12.5, "proj": 13}),
    dict(r=2, target_modules=["q_proj", "k_proj"], rank_pattern={"self_attn.q_proj": 8, "layers.0.self_attn.q_proj": 9, "elf_attn.k_proj": 7}),
]


def adapters(out):
    cases = []
    for settings in ADAPTERS:
        torch.manual_seed(1)
        model = Qwen3ForCausalLM.from_pretrained(out / "qwen3", dtype=torch.float32)
        linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        config = LoraConfig(**settings, task_type="CAUSAL_LM")
        written = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
        modules = dict(get_peft_model(model, config).base_model.model.named_modules())
        found = {}
        for name in linears:
            lora = modules[name] if hasattr(modules[name], "lora_A") else None
            found[name] = [lora.r["default"], lora.lora_alpha["default"], lora.scaling["default"]] if lora else None
        cases.append({"config": written, "modules": found})
    (out / "peft.json").write_text(json.dumps(cases, indent=1, default=str) + "\n")


def make(out):
    out.mkdir(exist_ok=True)
    quants(out)
    models(out)
    mxfp4(out)
    adapters(out)


def check():
    with tempfile.TemporaryDirectory() as name:
        fresh = pathlib.Path(name) / "ckpt"
        make(fresh)
        ours, theirs = ({str(f.relative_to(d)) for d in [root] for f in d.rglob("*") if f.is_file()} for root in (HERE, fresh))
        bad = sorted(ours ^ theirs) + [f for f in sorted(ours & theirs) if not filecmp.cmp(HERE / f, fresh / f, shallow=False)]
    print("differs: " + ", ".join(bad) if bad else "the same")
    return bool(bad)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    make(HERE)
