"""What `roundhouse merge` and `export` write, against PEFT and gguf.

    build/venv/run tests/reference/merge.py --check [path of the program]

For each tiny model with an adapter: the F32 directory gives the logits of base + adapter (1e-5, of the largest), every tensor of each GGUF
(F16, BF16, Q8_0, Q4_0; also of the models that are GGUF files) is gguf.quants.quantize of that merge, bit for bit, and the program trains
on what it wrote: the GGUF opens again. The models bring no tokenizer; they get one that the ids of tokens do not matter to.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import interchange
from gguf_parts import gguf_name, permute

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "models"
TYPES = {"f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "q4_0": gguf.GGMLQuantizationType.Q4_0}


def in_file(config, name, array):
    """Hugging Face's rows as a GGUF has them: of Llama in another order, of GPT-2's matrices transposed."""
    if config["model_type"] in ("llama", "mistral") and any(f".{x}_proj" in name for x in "qk"):
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return permute(array, array.shape[0] // head)
    return np.ascontiguousarray(array.T) if config["model_type"] == "gpt2" and ".h." in name and array.ndim == 2 else array


class Check:
    def __init__(self, program):
        self.program, self.good = program, True

    def run(self, *words):
        ran = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{words}: {ran.stderr}")

    def say(self, holds, line):
        self.good = self.good and bool(holds)
        print(("" if holds else "DIFFERS: ") + line)

    def logits(self, name, model, merged):
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        ids = torch.randint(0, base.config.vocab_size, (1, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = PeftModel.from_pretrained(base, MODELS / name / "adapter")(ids).logits
            seen = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(ids).logits
        apart = ((seen - expected).abs().max() / expected.abs().max()).item()
        self.say(apart < 1e-5, f"{name}: logits of the F32 merge differ by {apart:.2g} of the largest")

    def tensors(self, name, merged, path, kind, config):
        file, equal, count = gguf.GGUFReader(path), 0, 0
        seen = {tensor.name: tensor for tensor in file.tensors}
        for key, value in load_file(merged / "model.safetensors").items():
            array, tensor = in_file(config, key, value.numpy()), seen.pop(gguf_name(key))
            wanted = TYPES[kind] if array.ndim == 2 else gguf.GGMLQuantizationType.F32
            if array.ndim == 2 and array.shape[1] % gguf.GGML_QUANT_SIZES[wanted][0]:
                wanted = gguf.GGMLQuantizationType.F16
            expected = gguf.quants.quantize(array, wanted)
            count += 1
            equal += tensor.tensor_type == wanted and np.array_equal(np.asarray(tensor.data).view(np.uint8).ravel(), expected.view(np.uint8).ravel())
        seen.pop("rope_freqs.weight", None)
        self.say(equal == count and not seen, f"{name} {kind}: {equal} of {count} tensors of the GGUF are gguf.quants.quantize of the merge")

    def files(self, name, words, folder):
        """Of a GGUF base: each type against the F32 merge, in the file's own order."""
        whole = folder / f"{name}-f32.gguf"
        self.run("merge", *words, "--outfile", whole, "--outtype", "f32")
        for kind, wanted in TYPES.items():
            path, equal = folder / f"{name}-{kind}.gguf", 0
            self.run("merge", *words, "--outfile", path, "--outtype", kind)
            seen = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
            for tensor in gguf.GGUFReader(whole).tensors:
                array = np.asarray(tensor.data)
                vector = array.ndim == 1
                fits = vector or array.shape[1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
                target = gguf.GGMLQuantizationType.F32 if vector else wanted if fits else gguf.GGMLQuantizationType.F16
                expected = gguf.quants.quantize(array, target).view(np.uint8).ravel()
                equal += np.array_equal(np.asarray(seen[tensor.name].data).view(np.uint8).ravel(), expected)
            self.say(equal == len(seen), f"{name} {kind}: {equal} of {len(seen)} tensors are gguf.quants.quantize of the F32 merge")

    def adapter(self, name, model, folder, config):
        """The adapter alone: its factors as they are, B's rows in the order that the file of the base has."""
        path = folder / f"{name}-lora.gguf"
        self.run("export", "--model_name_or_path", model, "--adapter_name_or_path", MODELS / name / "adapter", "--outfile", path)
        file, equal = gguf.GGUFReader(path), 0
        given = json.loads((MODELS / name / "adapter" / "adapter_config.json").read_text())
        seen = {tensor.name: np.asarray(tensor.data) for tensor in file.tensors}
        factors = load_file(MODELS / name / "adapter" / "adapter_model.safetensors")
        for key, value in factors.items():
            module, factor = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
            array = value.float().numpy()
            if factor == "B" and config["model_type"] != "gpt2":
                array = in_file(config, module, array)
            equal += np.array_equal(seen[f"{gguf_name(module + '.weight')}.lora_{factor.lower()}"], array)
        told = [file.fields[key].contents() for key in ("general.type", "adapter.type", "adapter.lora.alpha")]
        self.say(equal == len(factors) == len(seen) and told == ["adapter", "lora", given["lora_alpha"]],
                 f"{name} adapter: {equal} of {len(factors)} factors in the GGUF are those of PEFT")

    def model(self, name, folder):
        """A directory with a tokenizer, or the GGUF itself."""
        if name.startswith("gguf-"):
            return MODELS / name / "model.gguf"
        target = folder / name
        shutil.copytree(MODELS / name, target, ignore=shutil.ignore_patterns("adapter*", "reference*"))
        config = json.loads((target / "config.json").read_text())
        tokenizer = interchange.tokenizer_json()
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {token: i for token, i in vocabulary.items() if i < config["vocab_size"]}
        tokenizer["model"]["merges"] = [m for m in tokenizer["model"]["merges"] if "".join(m) in tokenizer["model"]["vocab"]]
        tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < config["vocab_size"]]
        (target / "tokenizer.json").write_text(json.dumps(tokenizer))
        (target / "tokenizer_config.json").write_text("{}")
        return target

    def all(self, folder):
        for name in ("llama2", "llama3", "llama-bias", "smollm2", "qwen2", "qwen3", "gguf-llama", "gguf-qwen2", "gpt2", "gguf-gpt2"):
            model, merged = self.model(name, folder), folder / f"{name}-merged"
            words = ["--model_name_or_path", model, "--adapter_name_or_path", MODELS / name / "adapter"]
            if name.startswith("gguf-"):
                self.files(name, words, folder)
                continue
            self.run("merge", *words, "--output_dir", merged, "--outtype", "f32")
            config = json.loads((merged / "config.json").read_text())
            self.logits(name, model, merged)
            self.adapter(name, model, folder, config)
            for kind in TYPES:
                path = folder / f"{name}-{kind}.gguf"
                self.run("merge", *words, "--outfile", path, "--outtype", kind)
                self.tensors(name, merged, path, kind, config)
            path = folder / f"{name}-export.gguf"
            self.run("export", "--model_name_or_path", merged, "--outfile", path, "--outtype", "q8_0")
            self.tensors(f"{name} export", merged, path, "q8_0", config)


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    check = Check(words[0] if words else str(HERE.parent.parent / "build/release/roundhouse"))
    with tempfile.TemporaryDirectory() as folder:
        check.all(pathlib.Path(folder))
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
