"""Makes tests/reference/ckpt/converted.txt: what llama.cpp's own converter, in the sources of llama-cpp-python, writes of tiny models.

    build/venv/run tests/reference/converted.py [--source DIR]            remakes it
    build/venv/run tests/reference/converted.py --check [--source DIR]    remakes it and compares

DIR holds llama.cpp; without it llama-cpp-python's source distribution is downloaded. The tokenizers here are made up, so the converter is
told how they cut text, which it looks up by a checksum otherwise.

converted.txt          a model begins with "model FOLDER OUTTYPE TOKENIZER" (folders of tests/reference) and its "edit OLD => NEW" of config.json;
                       then "key NAME TYPE VALUE" for metadata and "tensor NAME TYPE SIZES CRC32", sizes innermost first. Long lists are
                       their length and CRC32. Of ssm_a, which exp makes, the values in place of a checksum
converted/NAME/        two tokenizers: of few tokens, and of Gemma 4's kind; and a Gemma 4 as E2B is, but with borrowers as llama.cpp takes them
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

import models_build
from k_quants import Reference

HERE = pathlib.Path(__file__).parent
OUT = HERE / "ckpt"
BYTES, GEMMA, SMALL = "adapters/qwen3", "ckpt/converted/gemma4", "ckpt/converted/small"
DENSE = [('"enable_moe_block": true', '"enable_moe_block": false'), ('"num_experts": 5', '"num_experts": null'),
         ('"top_k_experts": 2', '"top_k_experts": null'), ('"moe_intermediate_size": 32', '"moe_intermediate_size": null')]
ONE_LAYER = [('"num_hidden_layers": 3', '"num_hidden_layers": 1'), ('"mlp_only_layers": [\n    1\n  ]', '"mlp_only_layers": []')]
# folder, outtype, tokenizer, edits of config.json, tensors that are left out with them
CASES = [
    ("models/gguf-qwen3-moe", "f16", BYTES, ONE_LAYER, r"layers\.[12]\."),
    ("models/gguf-gpt-oss", "bf16", BYTES, [], None),
    ("ckpt/gpt-oss", "f16", SMALL, [], None),
    ("models/gguf-qwen3.5", "f32", BYTES, [], None),
    ("models/gguf-qwen3.5-moe", "q8_0", BYTES, [], None),
    ("models/gguf-qwen3-next", "f32", BYTES, [], None),
    ("models/gguf-muse-glimmer", "f32", BYTES, [], None),
    ("models/gguf-gemma4", "f16", GEMMA, [], None),
    ("models/gguf-gemma4", "f32", GEMMA, DENSE, r"experts|router|layernorm_[12]"),
    ("ckpt/converted/gemma4-e2b", "f16", GEMMA, [], None),
    ("models/gguf-olmo3", "q8_0", BYTES, [], None),
    ("models/gguf-llama", "f32", BYTES, [], None),
    ("models/gguf-qwen2", "f16", BYTES, [], None),
    ("models/gguf-smollm3", "f32", BYTES, [], None),
    ("models/gguf-granite", "bf16", BYTES, [], None),
    ("models/gguf-mistral3", "f32", BYTES, [], None),  # of a directory that is Mistral's alone: a llama
    ("models/gguf-ministral3", "f32", BYTES, [], None),
    ("models/gguf-phi3", "f16", BYTES, [('"sliding_window": 9', '"sliding_window": 128')], None),
]
# Of the folder's name and of the number of parameters; a separator, which texts never have here
LEFT_OUT = {"general.name", "general.basename", "general.finetune", "general.size_label", "tokenizer.ggml.add_sep_token"}
RUN = """
import os, sys
source, jobs = sys.argv[1], sys.argv[2:]
sys.path[:0] = [source, source + "/gguf-py"]
os.environ["NO_LOCAL_GGUF"] = "1"
import conversion.base, conversion.phi, convert_hf_to_gguf
def missing(self):  # a tokenizer.model, which sentencepiece would read
    raise FileNotFoundError
conversion.base.TextModel._set_vocab_sentencepiece = missing
conversion.phi.Phi3MiniModel.set_vocab = lambda self: self._set_vocab_gpt2()  # as of Phi-4, which it knows by its tokenizer's class
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
for folder, kind in zip(jobs[::2], jobs[1::2]):
    sys.argv = ["", folder, "--outfile", folder + ".gguf", "--outtype", kind] + (["--no-mtp"] if "qwen3.5" in folder or "qwen3-next" in folder else [])
    convert_hf_to_gguf.main()
"""
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_call>"]
PIECES = ["▁", *"abcehint", "\n", "▁t", "th", "▁th", "he", "▁the", "an", "in", "\n\n", "ab", "abc", "▁a", "▁an", "▁in", "ti", "tin"]
MERGES = ["▁ t", "t h", "▁t h", "h e", "▁th e", "a n", "i n", "\n \n", "a b", "ab c", "▁ a", "▁a n", "▁ in", "t i", "t in"]


def added(texts, vocabulary):
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return [{"id": vocabulary[text], "content": text, **flags} for text in texts]


def gemma_tokenizer():
    """Gemma 4's parts, with 288 tokens."""
    tokens = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)] + PIECES
    vocabulary = {token: i for i, token in enumerate(tokens)}
    text, begin = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    other = [{"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    blank = {"String": " "}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added(SPECIAL, vocabulary),
        "normalizer": {"type": "Replace", "pattern": blank, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": blank, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, *other],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [vocabulary["<bos>"]], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary,
                  "merges": [merge.split(" ") for merge in MERGES]},
    }
    return tokenizer, dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
                           extra_special_tokens=dict(sot_token="<|turn>", eot_token="<turn|>", stc_token="<|tool_call>"),
                           chat_template="{{ messages }}")


def small_tokenizer():
    """Letters, of a byte-level tokenizer."""
    tokens = [chr(ord("a") + i) for i in range(26)] + ["ab", "abc", "<|begin|>", "<|end|>", "<|pad|>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added(tokens[-3:], vocabulary), "normalizer": None,
        "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for token, i in vocabulary.items() if i < 28}, "merges": [["a", "b"], ["ab", "c"]]},
    }, dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>")


def write_tokenizers(out):
    for name, make in (("gemma4", gemma_tokenizer), ("small", small_tokenizer)):
        (out / "converted" / name).mkdir(parents=True, exist_ok=True)
        for file, content in zip(("tokenizer.json", "tokenizer_config.json"), make(), strict=True):
            (out / "converted" / name / file).write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_borrower(out):
    """Layers of E2B whose upper two take keys and values from the two below them."""
    config = models_build.config_gemma4_e2b()
    text = config.text_config
    text.vocab_size = text.vocab_size_per_layer_input = 288
    text.hidden_size_per_layer_input, text.bos_token_id, text.eos_token_id = 8, 2, 1
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    text = type(text)(**{key: value for key, value in text.to_dict().items() if key not in ("layer_types", "per_layer_config")},
                      layer_types=kinds, global_head_dim=12)
    model = models_build.auto_class("gemma4-text", text).from_config(text)
    models_build.random_weights(model, models_build.generator("converted", "weights"))
    folder = out / "converted" / "gemma4-e2b"
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def crc(data):
    return f"{zlib.crc32(data):08x}"


def shown(field):
    """A value of the metadata as a type and a text."""
    kinds, value = [kind.name for kind in field.types], field.contents()
    if kinds[0] != "ARRAY":
        return {"UINT32": "U32", "FLOAT32": "F32", "STRING": "STR", "BOOL": "BOOL"}[kinds[0]], str(int(value) if kinds[0] == "BOOL" else value)
    kind = {"INT32": "I32", "FLOAT32": "F32", "STRING": "STR", "BOOL": "BOOL"}[kinds[1]]
    if kind == "STR":
        return "[STR]", f"{len(value)} {crc(b''.join(text.encode() + bytes(1) for text in value))}"
    if len(value) > 16:
        return f"[{kind}]", f"{len(value)} {crc(np.array(value, np.float32 if kind == 'F32' else np.int32).tobytes())}"
    return f"[{kind}]", " ".join(str(int(number) if kind == "BOOL" else number) for number in value)


def describe(path):
    reader = gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in LEFT_OUT:
            yield " ".join(("key", name, *shown(field)))
    for tensor in reader.tensors:
        values = np.asarray(tensor.data)
        last = " ".join(f"{value:.9g}" for value in values) if tensor.name.endswith(".ssm_a") else crc(values.tobytes())
        yield f"tensor {tensor.name} {tensor.tensor_type.name} {'x'.join(str(int(size)) for size in tensor.shape)} {last}"


def lay_out(place, model, tokenizer, edits, without):
    """The model's folder as the converter takes it."""
    place.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE / tokenizer / file, place)
    text = (HERE / model / "config.json").read_text()
    for old, new in edits:
        assert text.count(old) == 1, (model, old)
        text = text.replace(old, new)
    (place / "config.json").write_text(text)
    if without:
        kept = {name: value for name, value in load_file(HERE / model / "model.safetensors").items() if not re.search(without, name)}
        save_file(kept, place / "model.safetensors", {"format": "pt"})
    else:
        shutil.copy(HERE / model / "model.safetensors", place)


def convert(source, folder):
    lines, jobs = [], []
    for number, (model, kind, tokenizer, edits, without) in enumerate(CASES):
        place = folder / f"{number}-{model.rsplit('/', 1)[1]}"
        lay_out(place, model, tokenizer, edits, without)
        jobs += [place, kind]
    ran = subprocess.run([sys.executable, "-c", RUN, source, *jobs], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    for place, (model, kind, tokenizer, edits, _) in zip(jobs[::2], CASES, strict=True):
        lines += [f"model {model} {kind} {tokenizer}"]
        lines += [f"edit {json.dumps(old)} => {json.dumps(new)}" for old, new in edits]
        lines += describe(f"{place}.gguf")
    return "\n".join(lines) + "\n"


def main():
    words = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = pathlib.Path(words[words.index("--source") + 1]) if "--source" in words else Reference.download(folder)
        if "--check" not in words:
            write_tokenizers(OUT)
            write_borrower(OUT)
        text = convert(source, folder)
        if "--check" not in words:
            (OUT / "converted.txt").write_text(text)
            return
        write_tokenizers(folder)
        write_borrower(folder)
        made = [path.relative_to(folder) for path in sorted((folder / "converted").rglob("*.*"))]
        same = text == (OUT / "converted.txt").read_text() and all((folder / path).read_bytes() == (OUT / path).read_bytes() for path in made)
    print("the same" if same else "differs")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
