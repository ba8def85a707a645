"""Makes tests/reference/packed/lora.safetensors: how LoRA trains on bases that stay packed, by PEFT on the same weights made plain.

    build/venv/run tests/reference/packed_train.py [CASE...]  remakes it and the adapters; of the cases named alone
    build/venv/run tests/reference/packed_train.py --check    remakes them in a temporary directory and compares

adapter/, adapter-gguf/, adapter-moe-fp8/, adapter-gpt-oss/   PEFT: r 4, alpha 8, all-linear (of the last: attention and experts), with
                          which all runs begin
lora.safetensors          <case>.loss and <case>.learning_rate of 50 steps (models_run.py: "lora"), fp32, F64. A case is a model of packed.py,
                          or a GGUF type: the model that packed_make of tests/train/packed.h makes, whose blocks are drawn here too and
                          made plain by gguf; gpt-oss is ckpt's, experts in MXFP4. <case>.bnb.loss: PEFT on bitsandbytes' own layers, in train() mode.
"""

import copy
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import models_run as run
from packed import HERE, MAKERS, in_files

CKPT = HERE.parent / "ckpt"

NF4 = ("bnb-nf4", "bnb-nf4-nested")
DOCUMENTS, LENGTH = 2, 9
WIDE = dict(vocab_size=288, hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            head_dim=64, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False)
GGUF = {"model.embed_tokens": (288, 256), "lm_head": (288, 256), "self_attn.q_proj": (256, 256), "self_attn.k_proj": (128, 256),
        "self_attn.v_proj": (128, 256), "self_attn.o_proj": (256, 256), "mlp.gate_proj": (512, 256), "mlp.up_proj": (512, 256),
        "mlp.down_proj": (256, 512)}
# The fp16 numbers of a block: offset and value; as packed_scales of tests/train/packed.h has them.
TENTH, STEP = 0.0125, 2.0**-14
SCALES = {T.Q4_0: {0: TENTH}, T.Q4_1: {0: TENTH, 2: -0.1}, T.Q5_0: {0: TENTH}, T.Q5_1: {0: TENTH, 2: -0.1}, T.Q8_0: {0: 0.001},
          T.Q2_K: {80: 0.005, 82: 0.01}, T.Q3_K: {108: 0.002}, T.Q4_K: {0: 4 * STEP, 2: 32 * STEP}, T.Q5_K: {0: 2 * STEP, 2: 32 * STEP},
          T.Q6_K: {208: STEP}, T.IQ4_NL: {0: 0.002}, T.IQ4_XS: {0: STEP}, T.MXFP4: {}, T.NVFP4: {}}


def random_bytes(state, count):
    """check_random of tests/check.h: bytes 2 of its numbers."""
    out = bytearray(count)
    for i in range(count):
        state ^= state >> 12
        state ^= state << 25 & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 27
        out[i] = (state * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF) >> 48 & 0xFF
    return state, out


def gguf_weights(kind):
    """The tensors of packed_make(kind, seed 100 + kind), plain and in Hugging Face's order."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    state, weights = 100 + int(kind), {}
    for name, (rows, cols) in GGUF.items():
        state, stored = random_bytes(state, rows * cols // values * size)
        for at in range(0, len(stored), size):
            for offset, value in SCALES[kind].items():
                stored[at + offset:at + offset + 2] = np.float16(value).tobytes()
            if kind == T.MXFP4:
                stored[at] = 122
            if kind == T.NVFP4:
                stored[at:at + 4] = b"\x18" * 4
        plain = gguf.quants.dequantize(np.frombuffer(bytes(stored), np.uint8).reshape(rows, -1), kind).astype(np.float32)
        if name.endswith(("q_proj", "k_proj")):
            plain = plain.reshape(-1, 32, 2, cols).swapaxes(1, 2).reshape(rows, cols)
        key = name if name.startswith(("model", "lm")) else "model.layers.0." + name
        weights[key + ".weight"] = torch.from_numpy(np.ascontiguousarray(plain))
    return weights


CLASSES = {"llama": LlamaForCausalLM, "qwen3_moe": Qwen3MoeForCausalLM, "gpt_oss": GptOssForCausalLM}


def model_of(weights, config):
    config = copy.deepcopy(config)
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = CLASSES[config.model_type](config).float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            for name, part in (in_files(key, parameter) if config.model_type == "qwen3_moe" else {key: parameter}).items():
                part.copy_(weights[name] if name in weights else torch.ones_like(part))
    return model


def config_of(name):
    if name.startswith("gguf."):
        return LlamaConfig(**WIDE)
    said = json.loads(((CKPT if name == "gpt-oss" else HERE) / name / "config.json").read_text())
    said.pop("quantization_config")
    return {"llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig, "gpt_oss": GptOssConfig}[said["model_type"]](**said)


def steps(vocabulary):
    """Of each of 100 micro-batches two documents of nine tokens, as packed_steps of tests/train/test_packed_lora.c makes them."""
    micros = []
    for m in range(run.STEPS * run.ACCUMULATION):
        documents = []
        for d in range(DOCUMENTS):
            at = (m * DOCUMENTS + d) * LENGTH
            documents.append(([(7 * i + i * i // 3) % vocabulary for i in range(at, at + LENGTH)], [1] * LENGTH))
        micros.append(documents)
    return [micros[i:i + run.ACCUMULATION] for i in range(0, len(micros), run.ACCUMULATION)]


def write_adapter(directory, model):
    targets = dict(target_modules="all-linear")
    if model.config.model_type == "gpt_oss":
        targets = dict(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM", **targets)
    adapted = get_peft_model(model, lora)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.05 if "lora_A" in name else 0.01))
    adapted.save_pretrained(directory)
    said = json.loads((directory / "adapter_config.json").read_text())
    said["base_model_name_or_path"] = None
    for key in ("target_modules", "target_parameters"):
        said[key] = sorted(said[key]) if isinstance(said[key], list) else said[key]
    (directory / "adapter_config.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    (directory / "README.md").unlink(missing_ok=True)


def curve(model, adapter, vocabulary):
    adapted = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    adapted.train()
    masters = run.parameters(adapted)
    curves = run.train(adapted, masters, steps(vocabulary), run.CURVES["lora"], run.STEPS)
    return {"loss": curves["loss"], "learning_rate": curves["learning_rate"]}


def bitsandbytes_model(name):
    model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32, device_map="cpu")
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.compute_dtype = torch.float32
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model


def make(out, only=()):
    out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cases = list(MAKERS) + ["moe-fp8", "gpt-oss"] + [f"gguf.{kind.name}" for kind in SCALES]
    curves = load_file(out / "lora.safetensors") if only else {}
    for name in only or cases:
        is_gguf = name.startswith("gguf.")
        config = config_of(name)
        weights = gguf_weights(T[name[5:]]) if is_gguf else load_file((CKPT if name == "gpt-oss" else HERE) / f"{name}.safetensors")
        if name == "gpt-oss":  # all experts' matrices one under another, as the model multiplies them; transformers holds each transposed
            weights = load_file(CKPT / name / "model.safetensors") | {
                key: value.reshape(config.num_local_experts, -1, value.shape[1]).transpose(1, 2) for key, value in weights.items()}
        adapter = out / ("adapter-gguf" if is_gguf else "adapter" if name in MAKERS else f"adapter-{name}")
        if not adapter.exists():
            write_adapter(adapter, model_of(weights, config))
        of_case = {name: curve(model_of(weights, config), adapter, config.vocab_size)}
        if name in NF4:
            of_case[name + ".bnb"] = curve(bitsandbytes_model(name), adapter, config.vocab_size)
        for which, values in of_case.items():
            curves |= {f"{which}.{key}": value for key, value in values.items()}
            print(which, *(f"{values['loss'][i].item():.6f}" for i in (0, 1, 9, 49)), flush=True)
    save_file(curves, out / "lora.safetensors")


def check():
    """Another machine rounds otherwise: losses within 1e-5."""
    with tempfile.TemporaryDirectory() as name:
        fresh = pathlib.Path(name)
        make(fresh)
        ours, theirs = load_file(HERE / "lora.safetensors"), load_file(fresh / "lora.safetensors")
        bad = sorted(set(ours) ^ set(theirs))
        bad += [key for key in set(ours) & set(theirs) if not torch.allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-12)]
    print("differs: " + ", ".join(bad) if bad else "the same")
    return bool(bad)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    make(HERE, sys.argv[1:])
