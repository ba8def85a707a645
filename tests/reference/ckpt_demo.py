"""Makes tests/reference/ckpt_demo.txt: a checksum of each tensor of the demo model as Hugging Face has it.

    build/venv/run tests/reference/ckpt_demo.py [--check] [MODEL.gguf]    the model of `make demo` where none is named

Each line: name, rows, columns (0: a vector), sum over i of (i + 1) * bits(element i) modulo 2^64, elements dequantised by the gguf package and,
for q and k, put back into Hugging Face's row order.
"""

import pathlib
import sys

import gguf
import numpy as np

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}

OUT = pathlib.Path(__file__).parent / "ckpt_demo.txt"


def checksums(path):
    reader = gguf.GGUFReader(path)
    heads = {part: int(reader.get_field(f"llama.attention.{key}").parts[-1][0])
             for part, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv"))}
    lines = []
    for tensor in reader.tensors:
        body, kind = tensor.name.rsplit(".", 1)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in tensor.shape][::-1])
        part = body.split(".")[-1]
        if part in heads:
            rows = values.shape[0]
            values = values.reshape(heads[part], rows // heads[part] // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        name = TOP.get(body) or f"model.layers.{body.split('.')[1]}.{NAMES[part]}"
        bits = np.ascontiguousarray(values).view(np.uint32).reshape(-1).astype(np.uint64)
        checksum = int((bits * np.arange(1, bits.size + 1, dtype=np.uint64)).sum(dtype=np.uint64))
        lines.append(f"{name}.{kind} {values.shape[0]} {values.shape[1] if values.ndim == 2 else 0} {checksum}\n")
    return "".join(sorted(lines))


if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if a != "--check"] or sorted(str(f) for f in pathlib.Path("build/demo").glob("*.gguf"))
    if not names:
        print("skipped: build/demo holds no .gguf file (make demo brings it)")
    elif "--check" not in sys.argv:
        OUT.write_text(checksums(names[0]))
    else:
        same = checksums(names[0]) == OUT.read_text()
        print("the same" if same else "differs: ckpt_demo.txt")
        sys.exit(not same)
