"""Logits, losses, gradients and training curves of one model, written out by hand in torch (no Trainer): the sums and their order are said below.

A document is a pair (ids, mask) of equal length, or of BERT (ids, mask, target, type), of ViT (ids, mask, target, (pixels, image)): a token whose mask is 1 is trained on the target that
stands at it, not on the token behind it; a micro-batch is a list of documents; a step is a list of micro-batches. Every document
runs through the model by itself, positions from 0: packing without leakage must give the same.
"""

import torch
from transformers import get_scheduler

ADAM = dict(betas=(0.9, 0.999), eps=1e-8)
MAX_GRAD_NORM = 1.0
ACCUMULATION = 2
STEPS = 50
BF16_STEPS = 10
CURVES = {
    "lora": dict(learning_rate=4e-3, weight_decay=0.0, scheduler="linear", warmup_steps=5),
    "full": dict(learning_rate=3e-3, weight_decay=0.01, scheduler="cosine", warmup_steps=0),
}


def trained(document):
    """Targets of a document that count: not masked, and never its first token where they are the tokens themselves."""
    counts = torch.tensor(document[1], dtype=torch.bool)
    if len(document) == 2:
        counts[0] = False
    return counts


def trained_tokens(micro_batches):
    return sum(int(trained(d).sum()) for documents in micro_batches for d in documents)


def rope_varies(model):
    """The rotary table is chosen by the longest document of a micro-batch."""
    return (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope")


def longest_of(model, documents):
    return max(len(d[0]) for d in documents) if rope_varies(model) else 0


def document_logits(model, ids, longest=0):
    """What follows a token changes nothing before it: a document is made as long as its micro-batch's longest, where that matters."""
    row = ids + [0] * (longest - len(ids))
    return model(input_ids=torch.tensor([row]), use_cache=False).logits[0][:len(ids)]


def target_logits(model, document):
    """BERT: of the tokens that are trained; of classes the document's one row. Of images: the same, of the image that is beside the pixels by
    token."""
    ids, _, _, types = document
    if isinstance(types, tuple):
        return model(pixel_values=torch.tensor(types[1])[None].to(next(model.parameters()).dtype)).logits
    logits = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits
    return logits[0][trained(document)] if logits.dim() == 3 else logits


def document_loss(model, document, longest):
    """Sum, not mean, of the cross-entropy over the document's trained tokens; logits are taken to fp32 first."""
    ids = document[0]
    target = trained(document)
    if not target.any():
        return None
    if len(document) == 4:
        return torch.nn.functional.cross_entropy(target_logits(model, document).float(), torch.tensor(document[2])[target], reduction="sum")
    logits = document_logits(model, ids, longest).float()
    return torch.nn.functional.cross_entropy(logits[:-1][target[1:]], torch.tensor(ids)[target], reduction="sum")


def parameters(model):
    """Trainable parameters by the name that files use: PEFT's adapter name is not in it."""
    def in_files(name):
        name = name.replace(".modules_to_save.default.", ".").replace(".default.", ".")
        return name if "lora_" in name else name.removeprefix("base_model.model.")

    return {in_files(name): p for name, p in model.named_parameters() if p.requires_grad}


def step_gradients(model, micro_batches):
    """Each micro-batch's loss is divided by the trained tokens of the whole step; its gradients are folded into
    fp32 sums in micro-batch order. Returns the step's loss and the gradients, rounded once to the parameters' dtype.

    In fp32 the documents of a micro-batch share one backward. In bf16 torch rounds what each backward adds to .grad, so there each
    document has its own, added in fp32: nearest to a product that accumulates in fp32 across the documents of a micro-batch."""
    total = trained_tokens(micro_batches)
    sums = {name: torch.zeros(p.shape) for name, p in parameters(model).items()}
    loss = 0.0
    for documents in micro_batches:
        single = next(model.parameters()).dtype == torch.float32
        losses = [document_loss(model, d, longest_of(model, documents)) for d in documents]
        losses = [x for x in losses if x is not None]
        if single and losses:
            losses = [sum(losses)]
        for x in losses:
            model.zero_grad(set_to_none=True)
            (x / total).backward()
            loss += x.item() / total
            for name, p in parameters(model).items():
                if p.grad is not None:
                    sums[name] += p.grad.float()
    rounded = {name: sums[name].to(p.dtype).float() for name, p in parameters(model).items()}
    return loss, rounded


VIT_FILES = {"vit.layers.": "vit.encoder.layer.", "attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key",
             "attention.v_proj": "attention.attention.value", "attention.o_proj": "attention.output.dense", "mlp.fc1": "intermediate.dense",
             "mlp.fc2": "output.dense"}


def file_gradients(model, gradients):
    """Gradients by the names that files use: transformers holds all experts of a layer in one tensor, files mostly do not; and it names
    ViT's modules otherwise than its files."""
    out = {}
    if model.config.model_type == "vit":
        for name, g in gradients.items():
            for module, stored in VIT_FILES.items() if "lora_" not in name else ():
                name = name.replace(module, stored)
            out[name] = g
        return out
    for name, g in gradients.items():
        if model.config.model_type not in ("qwen3_moe", "qwen3_5_moe_text", "qwen3_next", "glm4_moe_lite", "deepseek_v3") or ".experts." not in name or "lora_" in name:
            out[name] = g
            continue
        stem, kind = name.rsplit(".", 1)
        parts = dict(down_proj=g) if kind == "down_proj" else dict(zip(("gate_proj", "up_proj"), g.chunk(2, dim=1)))
        for part, of_all in parts.items():
            for e, of_one in enumerate(of_all):
                out[f"{stem}.{e}.{part}.weight"] = of_one.contiguous()
    return out


def global_norm(gradients):
    return torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values())).item()


def round_to_bf16(x):
    """The upload form: half away from zero, (bits + 0x8000) >> 16."""
    return (((x.view(torch.int32) + 0x8000) >> 16) << 16).view(torch.float32).to(torch.bfloat16)


def decays(name):
    return "bias" not in name and "norm" not in name.lower() and ".ln_" not in name


def train(model, masters, steps, settings, count, gradients_of=step_gradients):
    """Trains `masters` (fp32, by name; in fp32 the model's own parameters) for the first `count` of `steps` and returns the curves.

    Per step: the loss over all its micro-batches; the norm of the stored gradients before clipping; the learning rate used; then clip
    (torch: the factor is max_norm / (norm + 1e-6), at most 1), AdamW with decoupled decay (not on biases and norm weights), schedule."""
    groups = [
        dict(params=[p for n, p in masters.items() if decays(n)], weight_decay=settings["weight_decay"]),
        dict(params=[p for n, p in masters.items() if not decays(n)], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=settings["learning_rate"], foreach=False, **ADAM)
    scheduler = get_scheduler(settings["scheduler"], optimizer, num_warmup_steps=settings["warmup_steps"], num_training_steps=STEPS)
    curves = dict(loss=[], grad_norm=[], learning_rate=[])
    for micro_batches in steps[:count]:
        for name, p in parameters(model).items():
            if p.dtype == torch.bfloat16:
                p.data.copy_(round_to_bf16(masters[name].data))
        loss, gradients = gradients_of(model, micro_batches)
        for name, p in masters.items():
            p.grad = gradients[name]
        norm = torch.nn.utils.clip_grad_norm_(list(masters.values()), MAX_GRAD_NORM).item() if MAX_GRAD_NORM else 0.0
        curves["loss"].append(loss)
        curves["grad_norm"].append(norm)
        curves["learning_rate"].append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in curves.items()}


def greedy(model, prompt, count):
    """Greedy continuation, and the smallest gap between the best and the second logit on the way. By whole forwards (no cache), but where
    the rotary table changes on the way: there old keys keep the angles that they were given."""
    ids, gap, cache = list(prompt), float("inf"), None
    with torch.no_grad():
        for _ in range(count):
            if rope_varies(model):
                out = model(input_ids=torch.tensor([ids if cache is None else ids[-1:]]), past_key_values=cache, use_cache=True)
                best, cache = out.logits[0][-1].topk(2), out.past_key_values
            else:
                best = document_logits(model, ids)[-1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            ids.append(best.indices[0].item())
    return ids[len(prompt):], gap
