"""Loads with transformers and PEFT the directories that tests/ckpt/test_written wrote (run it, or make test, first), and compares.

    build/venv/run tests/reference/ckpt_written.py [build/release/ckpt-written]

Weights must be those of the source as the gguf package and transformers read it, configurations those that made it, the adapter must land
where it belongs: its output is compared with the sum written out by hand.
"""

import pathlib
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent / "ckpt"
KEYS = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps",
        "max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id", "rope_parameters"]


def check(folder, name):
    plain = name.removesuffix("-dir")
    config, wanted = AutoConfig.from_pretrained(folder), AutoConfig.from_pretrained(HERE / plain)
    for key in KEYS:
        assert getattr(config, key) == getattr(wanted, key), (name, key, getattr(config, key), getattr(wanted, key))
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    if name == plain:
        source = load_file(HERE / f"{plain}.safetensors")
    else:
        source = AutoModelForCausalLM.from_pretrained(HERE / plain, dtype=torch.float32).state_dict()
    state = model.state_dict()
    for key, value in source.items():
        assert torch.equal(state[key], value), (name, key)
    ids = torch.arange(1, 20).reshape(1, -1)
    inputs = {}
    layer = model.model.layers[1].mlp.down_proj
    handle = layer.register_forward_hook(lambda module, args, out: inputs.update(x=args[0], y=out))
    model(ids)
    handle.remove()
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    tuned = PeftModel.from_pretrained(model, folder / "adapter")
    lora = dict(tuned.named_modules())["base_model.model.model.layers.1.mlp.down_proj"]
    assert lora.r["default"] == 3 and abs(lora.scaling["default"] - 4 / 3**0.5) < 1e-12
    prefix = "base_model.model.model.layers.1.mlp.down_proj."
    by_hand = inputs["y"] + 4 / 3**0.5 * inputs["x"] @ adapter[prefix + "lora_A.weight"].T @ adapter[prefix + "lora_B.weight"].T
    torch.testing.assert_close(lora(inputs["x"]), by_hand, rtol=1e-5, atol=1e-5)
    loaded = [key for key, _ in tuned.named_parameters() if "lora_" in key]
    assert len(loaded) == len(adapter) == 8
    print(f"{name}: the same")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    root = pathlib.Path(arguments[0] if arguments else "build/release/ckpt-written")
    folders = sorted(root.glob("*/config.json"))
    if not folders:
        print(f"skipped: {root} holds no models (make test writes them)")
    for path in folders:
        check(path.parent, path.parent.name)
