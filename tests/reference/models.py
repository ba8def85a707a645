#!/usr/bin/env python3
"""References for the models: logits, gradients and training curves of tiny seeded models, made with transformers + PEFT on the CPU.

    models.py             remakes tests/reference/models/ (the committed files)
    models.py --check     remakes them in a temporary directory and compares: the inputs and weights exactly, the figures within the
                          tolerances of difference() (another machine or library version rounds differently); exit 1 on a difference
    models.py --spread    says how far two correct runs are apart: the same figures again with fused attention, and the gated delta rule token
                          by token

One thread, deterministic: twice on one machine gives byte-identical files.

tests/reference/models/<name>/
    config.json               as transformers 5 writes it
    config-4.json             the same configuration as transformers 4 spelled it (rope_theta, rope_scaling, torch_dtype)
    model.safetensors         the weights (llama3: four shards with an index; qwen2: BF16; else F32)
    model.gguf                gguf-* only: the source; model.safetensors then holds its weights dequantised, in Hugging Face order
    adapter/                  PEFT: r 4, alpha 8, all-linear
    adapter-whole/            PEFT: modules_to_save (llama2, llama-bias and smollm2 alone)
    adapter-rs/               PEFT: rsLoRA on q_proj and v_proj with rank_pattern and alpha_pattern (not for gguf-*)
    reference.safetensors     inputs, logits, losses, gradients and curves; README.md here lists its tensors
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import models_run as run
from models_build import GGUF_MODELS, MODELS, adapters_of, empty, generator, load_adapter, load_model, write_adapters, write_model
from models_gguf import write_gguf_model

HERE = Path(__file__).resolve().parent / "models"
BF16_MODELS = ("smollm2", "qwen3", "qwen3.5")  # the last: A_log and dt_bias are rounded too
LENGTHS = {"qwen3.5": (11, 1, 70), "qwen3.5-moe": (11, 1, 70), "qwen3-next": (11, 1, 70)}  # more than a chunk of the gated delta rule
STEP_GRADIENTS = ("smollm2", "qwen3")  # a tied head and an untied one; the others keep the norm only, for the sake of size
attention = None  # --spread: the implementation to use instead


def document(rng, vocabulary, length, masked=0.25):
    """A noisy walk that a model can learn: the next id is a function of the last one, four times in five."""
    ids = [int(rng.integers(vocabulary))]
    while len(ids) < length:
        ids.append((5 * ids[-1] + 3) % vocabulary if rng.random() < 0.8 else int(rng.integers(vocabulary)))
    mask = [int(rng.random() >= masked) for _ in ids]
    mask[-1] = 1
    return ids, mask


def inputs(name, vocabulary):
    """The three inputs, each a list of micro-batches of documents."""
    rng = generator(name, "documents")
    lengths = LENGTHS.get(name, (11, 1, 40)) if name in MODELS else (7, 1, 16)  # logits over the larger vocabulary of a GGUF file take room
    docs = [[document(rng, vocabulary, n) for n in lengths]]
    docs[0][0][1][0] = 1  # set, and still not trained: a document's first token never is
    step = [[document(rng, vocabulary, n) for n in lengths] for lengths in ((5, 1, 9), (14,), (7, 3))]
    step[2][0] = (step[2][0][0], [0] * 7)  # a document with nothing to train
    rng = generator(name, "training")
    training = [[document(rng, vocabulary, int(rng.integers(2, 15))) for _ in range(rng.integers(1, 4))]
                for _ in range(run.STEPS * run.ACCUMULATION)]
    return docs, step, training


def bert_document(rng, vocabulary, length, labels):
    """Tokens with types 0 and then 1. Of masked tokens some targets, half of them other tokens than stand there; of classes one at the
    first token, which the second token mostly tells."""
    ids, mask = document(rng, vocabulary, length, masked=0.7)
    second = int(rng.integers(1, length + 1))
    types = [int(i >= second) for i in range(length)]
    if labels:
        label = ids[-1] % labels if rng.random() < 0.9 else int(rng.integers(labels))
        return ids, [1] + [0] * (length - 1), [label] + [0] * (length - 1), types
    target = [int(t) for t in ids]
    ids = [int(rng.integers(vocabulary)) if m and rng.random() < 0.5 else t for t, m in zip(ids, mask)]
    return ids, mask, target, types


def bert_inputs(name, vocabulary, labels):
    rng = generator(name, "documents")
    docs = [[bert_document(rng, vocabulary, n, labels) for n in (11, 1, 40)]]
    step = [[bert_document(rng, vocabulary, n, labels) for n in lengths] for lengths in ((5, 1, 9), (14,), (7, 3))]
    if not labels:
        d = step[2][0]
        step[2][0] = (d[0], [0] * 7, d[2], d[3])
    rng = generator(name, "training")
    training = [[bert_document(rng, vocabulary, int(rng.integers(2, 15)), labels) for _ in range(rng.integers(1, 4))]
                for _ in range(run.STEPS * run.ACCUMULATION)]
    return docs, step, training


def image_document(rng, config, templates):
    """An image as its tokens: the class token, whose row of pixels is zero, and the patches, by channel, row and column. Noise over its
    label's template, nine times in ten."""
    label = int(rng.integers(len(templates)))
    image = (templates[label] + rng.standard_normal(templates[label].shape)).astype(np.float32)
    if rng.random() > 0.9:
        label = int(rng.integers(len(templates)))
    side, across = config.patch_size, config.image_size // config.patch_size
    patches = image.reshape(-1, across, side, across, side).transpose(1, 3, 0, 2, 4).reshape(across * across, -1)
    pixels = np.concatenate([np.zeros((1, patches.shape[1]), np.float32), patches])
    rest = [0] * len(patches)
    return [0] + [1] * len(patches), [1] + rest, [label] + rest, (pixels, image)


def image_inputs(name, config):
    rng = generator(name, "documents")
    shape = (config.num_channels, config.image_size, config.image_size)
    templates = rng.standard_normal((config.num_labels, *shape))
    docs = [[image_document(rng, config, templates) for _ in range(3)]]
    step = [[image_document(rng, config, templates) for _ in range(n)] for n in (3, 1, 2)]
    rng = generator(name, "training")
    training = [[image_document(rng, config, templates) for _ in range(rng.integers(1, 4))] for _ in range(run.STEPS * run.ACCUMULATION)]
    return docs, step, training


def inputs_of(name, model):
    if model.config.model_type == "vit":
        return image_inputs(name, model.config)
    if model.config.model_type == "bert":
        return bert_inputs(name, model.config.vocab_size, model.config.num_labels if name.endswith("cls") else 0)
    return inputs(name, model.config.get_text_config().vocab_size)


def pack(prefix, micro_batches, out):
    """Documents end to end; `start` has one entry more than there are documents, `micro` one more than there are micro-batches."""
    documents = [d for m in micro_batches for d in m]
    ends, sizes = [0], [0]
    for d in documents:
        ends.append(ends[-1] + len(d[0]))
    for m in micro_batches:
        sizes.append(sizes[-1] + len(m))
    of_images = len(documents[0]) == 4 and isinstance(documents[0][3], tuple)
    for part, key in enumerate(("ids", "mask", "target", "type")[:3 if of_images else len(documents[0])]):
        out[f"{prefix}.{key}"] = torch.tensor([i for d in documents for i in d[part]], dtype=torch.int32)
    if of_images:
        out[f"{prefix}.pixel"] = torch.tensor(np.concatenate([d[3][0] for d in documents]))
    out[f"{prefix}.start"] = torch.tensor(ends, dtype=torch.int32)
    out[f"{prefix}.micro"] = torch.tensor(sizes, dtype=torch.int32)


def logits_of(model, micro_batches):
    with torch.no_grad():
        return torch.cat([run.target_logits(model, d) if len(d) == 4 else run.document_logits(model, d[0], run.longest_of(model, m))
                          for m in micro_batches for d in m])


CLOSEST = 1e-4  # of two routing logits that decide which expert is chosen, or in which order: far above what rounding makes of them


def choice_of(router, logits):
    """What a router chooses by, and how far apart the groups are between which it chooses first. Of Gemma 4 `logits` are what their softmax
    makes; sigmoids have biases, and groups."""
    kind = type(router).__name__
    if kind == "Gemma4TextRouter":
        return logits.log(), float("inf")
    if not kind.endswith("TopkRouter"):
        return logits, float("inf")
    scores = logits.sigmoid() + router.e_score_correction_bias
    groups = scores.view(len(scores), router.num_group, -1)
    sums = groups.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True)
    is_in = torch.zeros_like(sums.values).scatter_(1, sums.indices[:, :router.topk_group], 1).bool()
    apart = (sums.values[:, router.topk_group - 1] - sums.values[:, router.topk_group]).min().item() if router.topk_group < router.num_group else float("inf")
    return groups.masked_fill(~is_in.unsqueeze(-1), float("-inf")).view_as(scores), apart


@contextlib.contextmanager
def chosen_experts(model, out, name):
    """While it is open, what each router chooses; then `name`: (layers with experts, tokens, experts per token)."""
    chosen = {}

    def note(key, router, result):
        logits, _, index = result
        values, apart = choice_of(router, logits)
        order = values.sort(dim=-1, descending=True)
        best = order.values[:, :index.shape[-1] + 1]
        closest = min(apart, (best[:, :-1] - best[:, 1:]).min().item())
        assert torch.equal(order.indices[:, :index.shape[-1]].sort().values, index.sort().values)
        index = order.indices[:, :index.shape[-1]]  # transformers does not say in which order they are
        assert closest > CLOSEST, f"{key}: the choice hangs on a difference of {closest}"
        chosen.setdefault(key, []).append(index)

    hooks = [module.register_forward_hook(lambda router, _, result, key=key: note(key, router, result))
             for key, module in model.named_modules() if type(module).__name__.lower().endswith("topkrouter") or type(module).__name__ == "Gemma4TextRouter"]
    yield
    for hook in hooks:
        hook.remove()
    if chosen:
        out[name] = torch.stack([torch.cat(parts) for parts in chosen.values()]).to(torch.int32)


def record(prefix, model, micro_batches, out, logits=False, every_gradient=True):
    """Loss, trained tokens and gradient norm of one step; also the logits of every position with the experts chosen, each gradient tensor."""
    if logits:
        with chosen_experts(model, out, f"{prefix}.experts"):
            out[f"{prefix}.logits"] = logits_of(model, micro_batches)
    loss, gradients = run.step_gradients(model, micro_batches)
    out[f"{prefix}.loss"] = torch.tensor([loss], dtype=torch.float64)
    out[f"{prefix}.trained"] = torch.tensor([run.trained_tokens(micro_batches)], dtype=torch.int32)
    out[f"{prefix}.grad_norm"] = torch.tensor([run.global_norm(gradients)], dtype=torch.float64)
    if every_gradient:
        for name, gradient in run.file_gradients(model, gradients).items():
            out[f"{prefix}.grad.{name}"] = gradient


def load(directory, adapter=None, dtype=torch.float32):
    model = load_model(directory, dtype)
    if attention:
        model.set_attn_implementation({"text_config": attention} if hasattr(model.config, "audio_config") else attention)
    return load_adapter(model, directory / adapter, dtype) if adapter else model


def curve(prefix, directory, adapter, steps, out, bf16=False):
    """One training run. In bf16 the masters are fp32 and the model holds their rounded copy; frozen weights are rounded once."""
    model = load(directory, adapter)
    masters = run.parameters(model)
    count = run.STEPS
    if bf16:
        count = run.BF16_STEPS
        model = load(directory, adapter, torch.bfloat16)
        for name, p in model.named_parameters():
            assert p.dtype == torch.bfloat16, name
    for name, values in run.train(model, masters, steps, run.CURVES["lora" if adapter else "full"], count).items():
        out[f"{prefix}.{name}"] = values


def make_reference(name, directory):
    out = {}
    model = load(directory)
    docs, step, training = inputs_of(name, model)
    pack("docs", docs, out)
    record("docs", model, docs, out, logits=True, every_gradient=name in MODELS)
    for adapter in adapters_of(name):
        record(adapter, load(directory, adapter), docs, out, logits=True)
    if name in MODELS:
        pack("step", step, out)
        record("step", model, step, out, every_gradient=name in STEP_GRADIENTS)
        pack("train", training, out)
        steps = [training[i:i + run.ACCUMULATION] for i in range(0, len(training), run.ACCUMULATION)]
        for prefix, adapter in (("lora", "adapter"), ("whole", "adapter-whole"), ("full", None)):
            if adapter and adapter not in adapters_of(name):
                continue
            curve(prefix, directory, adapter, steps, out)
            if name in BF16_MODELS:
                curve(prefix + "_bf16", directory, adapter, steps, out, bf16=True)
    if model.config.model_type in ("bert", "vit"):
        save_file(out, directory / "reference.safetensors")
        return
    for first in range(6):  # the first prompt whose text hangs on no difference that rounding could turn round
        prompt = docs[0][0][0][first:first + 5]
        ids, gap = run.greedy(model.eval(), prompt, 64)
        if gap > 1e-3:
            break
    assert gap > 1e-3, f"{name}: the greedy text hangs on a difference of {gap} between two logits"
    out["greedy.prompt"] = torch.tensor(prompt, dtype=torch.int32)
    out["greedy.ids"] = torch.tensor(ids, dtype=torch.int32)
    save_file(out, directory / "reference.safetensors")


def make(root, names):
    for name in names:
        directory = root / name
        empty(directory)
        if name in MODELS:
            write_model(name, directory)
        else:
            write_gguf_model(name, directory)
        write_adapters(name, directory)
        make_reference(name, directory)


def difference(name, a, b, scale):
    """How far apart two tensors are, as a multiple of what is allowed between two correct fp32 implementations."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if name.split(".")[0] in ("docs", "step", "adapter", "adapter-rs", "adapter-whole") and ".grad." in name:
        if b.norm() <= 1e-6 * scale:
            return 0.0
        return ((a - b).norm() / b.norm() / 1e-4).item()
    if name.endswith(".logits"):
        return ((a - b).abs().max() / b.abs().max() / 1e-5).item()
    if name.endswith(".learning_rate"):
        return 0.0 if torch.allclose(a, b, rtol=1e-12, atol=0) else float("inf")
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    relative = (a - b).abs() / b.abs()
    allowed = torch.full_like(a, 1e-5)
    if "bf16" in name:
        allowed[:] = 5e-3
    elif name.startswith("full."):
        allowed[10:] = 1e-3
    if name.endswith("grad_norm"):
        allowed *= 10  # no bound of its own: that of the gradients it is made of
    return (relative / allowed).max().item()


def tensors(path):
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


def compare_references(path, made):
    """The worst difference of each kind of figure (docs.grad.x and docs.grad.y are of one kind), in multiples of its tolerance."""
    ours, theirs = tensors(made), tensors(path)
    if ours.keys() != theirs.keys():
        sys.exit(f"{path}: holds other tensors than the script makes: {sorted(ours.keys() ^ theirs.keys())}")
    scale = max(t.norm().item() for name, t in theirs.items() if ".grad." in name)
    worst = {}
    for name in theirs:
        kind = ".".join(name.split(".")[:2])
        worst[kind] = max(worst.get(kind, 0.0), difference(name, ours[name], theirs[name], scale))
    return worst


def check(root, names):
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        make(made, names)
        for name in names:
            for path in sorted((root / name).rglob("*")):
                other = made / path.relative_to(root)
                if path.is_dir():
                    continue
                if path.name == "reference.safetensors":
                    for kind, times in compare_references(path, other).items():
                        if not times <= 1:
                            print(f"{path}: {kind} differs by {times:.3g} times its tolerance")
                            bad += 1
                elif not other.exists() or path.read_bytes() != other.read_bytes():
                    print(f"{path}: the script makes {'another one' if other.exists() else 'no such file'}")
                    bad += 1
            extra = {p.relative_to(made) for p in (made / name).rglob("*")} - {p.relative_to(root) for p in (root / name).rglob("*")}
            for path in sorted(extra):
                print(f"{root / path}: missing")
                bad += 1
    print(f"models: {len(names)} compared, {bad} differences")
    return 1 if bad else 0


def spread(root, names):
    global attention
    attention = "sdpa"
    from transformers.models.qwen3_5 import modeling_qwen3_5
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
    from transformers.models.qwen3_next import modeling_qwen3_next
    for of in (modeling_qwen3_5, modeling_qwen3_5_moe, modeling_qwen3_next):
        of.torch_chunk_gated_delta_rule = of.torch_recurrent_gated_delta_rule  # the definition, token by token
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary), names)
        for name in names:
            worst = compare_references(root / name / "reference.safetensors", Path(temporary) / name / "reference.safetensors")
            print(name, json.dumps({kind: round(times, 4) for kind, times in worst.items() if times > 0}))
    return 0


def main():
    parser = argparse.ArgumentParser(description="references for the models")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("names", nargs="*", default=[*MODELS, *GGUF_MODELS])
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # transformers and PEFT about each other
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.check:
        return check(HERE, arguments.names)
    if arguments.spread:
        return spread(HERE, arguments.names)
    make(arguments.out, arguments.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
