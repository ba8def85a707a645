"""Makes tests/reference/ckpt/k_quants.safetensors and k_types.txt with llama.cpp's own quantiser, in the sources of llama-cpp-python.

    build/venv/run tests/reference/k_quants.py [--source DIR]             remakes them
    build/venv/run tests/reference/k_quants.py --check [--source DIR]     remakes them in a temporary directory and compares; then holds what
                                                                          the program writes against that quantiser

DIR holds llama.cpp; without it llama-cpp-python's source distribution is downloaded. Of it ggml-quants.c is compiled, and llama-quant.cpp
with the few files that its choice of types needs. No FMA: as ggml-base is built for x86-64.

k_quants.safetensors   values (F32) of many kinds, and "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1": their blocks
k_types.txt            a line for each model ("architecture layers heads kv_heads is_tied experts without_values": of each so many layers the
                       last has no matrix of values, 0: none), below it each matrix of its GGUF with the length of its rows and its type in
                       files q4_k_m, q5_k_m and q6_k
"""

import ctypes
import filecmp
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

import interchange

HERE = pathlib.Path(__file__).parent / "ckpt"
PROGRAM = HERE.parent.parent.parent / "build/release/roundhouse"
VERSION = "0.3.36"
KINDS = {"Q4_K": "quantize_q4_K", "Q5_K": "quantize_q5_K", "Q6_K": "quantize_q6_K", "Q5_0": "quantize_q5_0", "Q5_1": "quantize_q5_1"}
FILES = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}  # enum llama_ftype
DRIVER = r"""
#include "llama-quant.cpp"
#include <cstdlib>
#include <iostream>
// architecture layers is_70b experts ftype, then lines of name, columns, rows: a type for each
int main() {
    std::string arch, name; int layers, is_70b, experts, ftype; long long cols, rows;
    std::cin >> arch >> layers >> is_70b >> experts >> ftype;
    llama_model * model = (llama_model *)calloc(1, sizeof(llama_model)); // the constructor takes the whole library; these fields are all that is read
    model->arch = llm_arch_from_string(arch);
    model->type = is_70b ? LLM_TYPE_70B : LLM_TYPE_UNKNOWN;
    model->hparams.n_layer_all = layers;
    model->hparams.n_expert = experts;
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = (llama_ftype)ftype;
    std::vector<ggml_tensor> list; std::vector<ggml_tensor *> at;
    while (std::cin >> name >> cols >> rows) {
        ggml_tensor t = {}; t.type = GGML_TYPE_F32;
        t.ne[0] = cols; t.ne[1] = rows; t.ne[2] = name.find("_exps.") == std::string::npos ? 1 : experts; t.ne[3] = 1;
        snprintf(t.name, sizeof t.name, "%s", name.c_str());
        list.push_back(t);
    }
    for (auto & t : list) at.push_back(&t);
    std::vector<ggml_type> types(list.size());
    quantize_state_impl * qs = llama_quant_init(model, &params);
    llama_quant_compute_types(qs, params.ftype, at.data(), types.data(), at.size());
    for (auto t : types) std::cout << (int)t << "\n";
}
"""


class Reference:
    def __init__(self, source, folder):
        source = source or self.download(folder)
        ggml, self.types_program = source / "ggml", folder / "types"
        (folder / "ggml-version.h").write_text('#define GGML_VERSION "x"\n#define GGML_COMMIT "x"\n')
        (folder / "types.cpp").write_text(DRIVER)
        include = [f"-I{folder}", f"-I{source}/src", f"-I{source}/include", f"-I{ggml}/include", f"-I{ggml}/src"]
        missing = "-Wl,--unresolved-symbols=ignore-all"
        objects = []
        for path in (ggml / "src/ggml-quants.c", ggml / "src/ggml.c", folder / "types.cpp", source / "src/llama-arch.cpp",
                     source / "src/llama-impl.cpp", source / "src/llama-hparams.cpp"):
            objects.append(folder / (path.stem + ".o"))
            language = ["gcc", "-O3", "-std=gnu11", "-D_GNU_SOURCE", "-DNDEBUG"] if path.suffix == ".c" else ["g++", "-O1", "-std=c++17"]
            subprocess.run([*language, "-w", "-fPIC", "-ffunction-sections", *include, "-c", "-o", objects[-1], path], check=True)
        subprocess.run(["g++", missing, "-shared", "-o", folder / "libk.so", *objects[:2]], check=True)
        subprocess.run(["g++", missing, "-Wl,--gc-sections", "-no-pie", "-o", self.types_program, *objects[1:]], check=True)
        self.library = ctypes.CDLL(str(folder / "libk.so"), mode=1)  # lazily: what is missing is never called
        for arch in ("llama", "qwen2"):
            assert "case 80: type = " in (source / f"src/models/{arch}.cpp").read_text()

    @staticmethod
    def download(folder):
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder,
                        f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))

    def blocks(self, kind, values):
        """values: (rows, cols)"""
        values = np.ascontiguousarray(values, dtype=np.float32)
        size, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        out = np.zeros(values.size // size * width, np.uint8)
        function = getattr(self.library, KINDS[kind])
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p], ctypes.c_size_t
        assert function(values.ctypes.data, out.ctypes.data, *values.shape, None) == out.size
        return out

    def types(self, arch, layers, heads, kv, experts, tensors, kind):
        """tensors: (name, cols, rows) in any order; llama.cpp takes them by layer, then by name."""
        def place(tensor):
            return int(tensor[0].split(".")[1]) if tensor[0].startswith("blk.") else -1, tensor[0]
        is_70b = layers == 80 and (arch == "qwen2" or (arch == "llama" and heads != kv))  # src/models/llama.cpp, qwen2.cpp: load_arch_hparams
        tensors = sorted(tensors, key=place)
        lines = [f"{arch} {layers} {int(is_70b)} {experts} {FILES[kind]}"] + [f"{name} {cols} {rows}" for name, cols, rows in tensors]
        ran = subprocess.run([self.types_program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
        return {tensor[0]: gguf.GGMLQuantizationType(int(line)).name for tensor, line in zip(tensors, ran.stdout.split(), strict=True)}


def values():
    """Blocks of 256 values of many kinds."""
    rng = np.random.default_rng(5)
    n = 256
    normal = rng.normal(size=(12, n)) * np.logspace(-3, 1, 12)[:, None]
    heavy = rng.standard_t(2, size=(6, n)) * 0.02
    uniform = rng.uniform(-1, 1, (4, n))
    above, below = rng.uniform(0.5, 1.5, (2, n)), rng.uniform(-1.5, -0.5, (2, n))
    spiked = rng.normal(size=(4, n)) * 0.01
    spiked[np.arange(4), [0, 31, 128, 255]] = [3, -3, 5, -40]
    runs = np.repeat(rng.normal(size=(2, n // 32)), 32, axis=1)  # each run constant
    sparse = np.where(rng.random((4, n)) < 0.03, rng.normal(size=(4, n)), 0)
    mixed = rng.normal(size=(4, n)) * np.repeat(np.logspace(-9, 0, 16), 16)[None]  # runs whose rounded scale is 0
    tiny = rng.normal(size=(4, n)) * np.array([1e-6, 1e-9, 1e-16, 1e-30])[:, None]
    large = rng.normal(size=(2, n)) * np.array([1e3, 1e4])[:, None]
    zero = np.zeros((2, n))
    bf16 = torch.tensor(rng.normal(size=(8, n)) * 0.05).bfloat16().double().numpy()
    return np.concatenate([normal, heavy, uniform, above, below, spiked, runs, sparse, mixed, tiny, large, zero, bf16]).astype(np.float32)


def tensors_of(arch, layers, hidden, inner, kv_width, is_tied, experts, without_values):
    """experts: (how many, their length), or None."""
    if arch == "gpt2":
        parts = [("attn_qkv", hidden, 3 * hidden), ("attn_output", hidden, hidden), ("ffn_up", hidden, inner), ("ffn_down", inner, hidden)]
        rest = [("token_embd", hidden, 512), ("position_embd", hidden, 64)]
    else:
        parts = [("attn_q", hidden, hidden), ("attn_k", hidden, kv_width), ("attn_v", hidden, kv_width), ("attn_output", hidden, hidden),
                 ("ffn_gate", hidden, inner), ("ffn_up", hidden, inner), ("ffn_down", inner, hidden)]
        rest = [("token_embd", hidden, 512)] + ([] if is_tied else [("output", hidden, 512)])
    if experts:
        count, wide = experts
        routed = [("ffn_gate_inp", hidden, count), ("ffn_down_exps", wide, hidden)]
        routed += [("ffn_gate_up_exps", hidden, 2 * wide)] if arch == "gemma4" else [("ffn_gate_exps", hidden, wide), ("ffn_up_exps", hidden, wide)]
        shared = parts[4:] if arch == "gemma4" else [(f"{name}_shexp", *sizes) for name, *sizes in parts[4:]] if arch == "qwen35moe" else []
        parts = parts[:4] + routed + shared
    delta = [("attn_qkv", hidden, 2 * hidden), ("attn_gate", hidden, hidden), ("ssm_alpha", hidden, 32), ("ssm_beta", hidden, 32),
             ("ssm_out", hidden, hidden)] + parts[4:]
    silent = [part for part in parts if part[0] != "attn_v"]
    in_layer = lambda i: delta if arch.startswith("qwen35") and i % 4 < 3 else silent if without_values and i % without_values == without_values - 1 else parts
    return [(f"{name}.weight", cols, rows) for name, cols, rows in rest] + \
           [(f"blk.{i}.{name}.weight", cols, rows) for i in range(layers) for name, cols, rows in in_layer(i)]


def make_types(reference, out):
    models = [("llama", 32, 32, 8, 4096, 14336, 1024, 0), ("llama", 80, 64, 8, 8192, 28672, 1024, 0), ("llama", 80, 64, 64, 8192, 22016, 8192, 0),
              ("llama", 30, 9, 3, 576, 1536, 192, 1), ("llama", 2, 4, 2, 48, 80, 24, 1), ("qwen2", 80, 64, 8, 8192, 29568, 1024, 0),
              ("qwen2", 24, 14, 2, 896, 4864, 128, 1), ("qwen3", 28, 16, 8, 1024, 3072, 1024, 1), ("qwen3", 7, 4, 2, 256, 800, 128, 0),
              ("qwen3", 1, 4, 2, 256, 512, 128, 1), ("qwen35", 32, 16, 4, 4096, 12288, 1024, 0),
              ("olmo2", 16, 16, 16, 2048, 8192, 2048, 0), ("mistral3", 26, 32, 8, 3072, 9216, 1024, 1), ("gpt2", 12, 12, 12, 768, 3072, 768, 1), ("gpt2", 5, 4, 4, 96, 256, 96, 1),
              ("qwen3moe", 48, 32, 4, 2048, 6144, 512, 0, (128, 768)), ("qwen3moe", 11, 8, 8, 256, 512, 256, 0, (8, 224)),
              ("qwen35moe", 40, 16, 2, 2048, 512, 512, 0, (256, 512)), ("gpt-oss", 24, 64, 8, 2880, 2880, 512, 0, (32, 2880)),
              ("gemma4", 30, 16, 8, 2816, 2112, 2048, 1, (128, 704), 6), ("gemma4", 13, 8, 4, 512, 1024, 256, 1, (8, 256), 6),
              ("gemma4", 20, 32, 16, 5376, 21504, 4096, 1, None, 6), ("muse-glimmer", 17, 32, 2, 6656, 19968, 256, 0)]
    lines = []
    for arch, layers, heads, kv, hidden, inner, kv_width, is_tied, *more in models:
        experts, without_values = (more + [None, 0][len(more):])[:2]
        tensors = tensors_of(arch, layers, hidden, inner, kv_width, is_tied, experts, without_values)
        kinds = [reference.types(arch, layers, heads, kv, experts[0] if experts else 0, tensors, kind) for kind in FILES]
        lines.append(f"{arch} {layers} {heads} {kv} {is_tied} {experts[0] if experts else 0} {without_values}")
        lines += [f"{name} {cols} {' '.join(kind[name] for kind in kinds)}" for name, cols, _ in tensors]
    (out / "k_types.txt").write_text("\n".join(lines) + "\n")


def make(reference, out):
    x = values()
    save_file({"values": x.reshape(-1), **{kind: reference.blocks(kind, x) for kind in KINDS}}, out / "k_quants.safetensors")
    make_types(reference, out)


class Check:
    def __init__(self, reference, folder):
        self.reference, self.folder, self.good = reference, folder, True

    def say(self, holds, line):
        self.good = self.good and bool(holds)
        print(("" if holds else "DIFFERS: ") + line)

    def file(self, name, model, words=()):
        """Each tensor of each file against the quantiser's blocks of the F32 file's, and its error."""
        def write(kind):
            path = self.folder / f"{name}-{kind}.gguf"
            ran = subprocess.run([PROGRAM, "export", "--model_name_or_path", model, "--outfile", path, "--outtype", kind, "--force", *words],
                                 capture_output=True, text=True)
            if ran.returncode:
                sys.exit(ran.stderr)
            return gguf.GGUFReader(path)
        plain = {tensor.name: tensor for tensor in write("f32").tensors}
        for kind in FILES:
            reader = write(kind)
            seen = {tensor.name: tensor for tensor in reader.tensors}
            arch = reader.fields["general.architecture"].contents()
            layers, heads = (int(reader.fields[f"{arch}.{key}"].contents()) for key in ("block_count", "attention.head_count"))
            kv = int(reader.fields[f"{arch}.attention.head_count_kv"].contents())
            experts = int(reader.fields[f"{arch}.expert_count"].contents()) if f"{arch}.expert_count" in reader.fields else 0
            listed = [(t.name, int(t.shape[0]), int(t.shape[1])) for t in plain.values() if len(t.shape) > 1]
            types = self.reference.types(arch, layers, heads, kv, experts, listed, kind)
            blocks = equal = 0
            ours = theirs = 0.0
            assert seen.keys() == plain.keys() and int(reader.fields["general.file_type"].contents()) == FILES[kind]
            wrong = [key for key in seen if seen[key].tensor_type.name != types.get(key, "F32")]
            for key in types:
                tensor, x = seen[key], np.asarray(plain[key].data)
                x = x.reshape(-1, x.shape[-1])
                if tensor.tensor_type.name in KINDS and key not in wrong:
                    width = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
                    a, b = np.asarray(tensor.data).reshape(-1), self.reference.blocks(tensor.tensor_type.name, x)
                    blocks += a.size // width
                    equal += int((a.reshape(-1, width) == b.reshape(-1, width)).all(axis=1).sum())
                    back = [gguf.quants.dequantize(y.reshape(-1, width), tensor.tensor_type).reshape(x.shape) for y in (a, b)]
                    ours, theirs = ours + float(((back[0] - x) ** 2).sum()), theirs + float(((back[1] - x) ** 2).sum())
            self.say(not wrong and equal >= 0.999 * blocks and ours <= theirs * (1 + 1e-6),
                     f"{name} {kind}: {equal} of {blocks} blocks equal, squared error {ours:.8g} ({theirs:.8g}), {len(types) - len(wrong)} of "
                     f"{len(types)} matrices of the same type")

    def all(self):
        vocabulary = interchange.tokenizer_json()
        size = max(list(vocabulary["model"]["vocab"].values()) + [t["id"] for t in vocabulary["added_tokens"]]) + 1
        common = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=9, num_attention_heads=4, num_key_value_heads=2, vocab_size=size)
        t = transformers
        models = {"llama": t.LlamaConfig(**common), "qwen2": t.Qwen2Config(**{**common, "hidden_size": 320}),
                  "qwen3": t.Qwen3Config(**common, head_dim=64, tie_word_embeddings=True),
                  "qwen3moe": t.Qwen3MoeConfig(**common, head_dim=64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256,
                                               norm_topk_prob=True),
                  "gpt2": t.GPT2Config(n_embd=256, n_layer=9, n_head=4, vocab_size=size, n_positions=64)}
        for name, config in models.items():
            torch.manual_seed(3)
            model, path = t.AutoModelForCausalLM.from_config(config), self.folder / name
            for parameter in model.parameters():
                torch.nn.init.trunc_normal_(parameter, std=0.05)
            model.save_pretrained(path)
            (path / "tokenizer.json").write_text(json.dumps(vocabulary))
            (path / "tokenizer_config.json").write_text("{}")
            self.file(name, path)
        demo = PROGRAM.parent.parent / "demo/SmolLM2-135M-Instruct.Q4_1.gguf"
        if demo.exists():
            self.file("demo", demo)


def main():
    words = sys.argv[1:]
    source = pathlib.Path(words[words.index("--source") + 1]) if "--source" in words else None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        reference = Reference(source, folder)
        if "--check" not in words:
            make(reference, HERE)
            return
        made = folder / "made"
        made.mkdir()
        make(reference, made)
        check = Check(reference, folder)
        for name in ("k_quants.safetensors", "k_types.txt"):
            check.say(filecmp.cmp(made / name, HERE / name, shallow=False), f"{name}: remade")
        check.all()
        sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
