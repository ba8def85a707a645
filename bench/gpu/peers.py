#!/usr/bin/env python3
"""What bench/gpu-check.sh measures ours against: PyTorch's attention, and whole steps of transformers, PEFT and the PyPI package roundpipe.

Every result is one line of JSON on stdout; what is not installed, or does not run, is a line with "result": "skipped" and the reason.
  peers.py attention OURS.jsonl                  SDPA on the shapes of ours, with ratios
  peers.py step full|lora|roundpipe|roundpipe-lora CONFIG      tokens/s, random weights and ids, recompute of every layer
"""

import argparse
import contextlib
import json
import statistics
import sys
import time


def say(**line):
    print(json.dumps(line), flush=True)


def import_torch(bench, device):
    try:
        import torch
    except ImportError:
        say(bench=bench, result="skipped", why="PyTorch is not installed")
        return None
    except Exception as fault:  # a library of its own is missing, or another CUDA's is found first
        say(bench=bench, result="skipped", why=f"PyTorch cannot be imported: {(str(fault) or repr(fault)).splitlines()[0][:160]}")
        return None
    if device == "cuda" and not torch.cuda.is_available():
        say(bench=bench, result="skipped", why="PyTorch sees no GPU")
        return None
    return torch


def wait(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(torch, device, work, repeat=9):
    """The median of a few runs after two, by events where there is a GPU: each behind another that keeps it busy while Python enqueues."""
    taken = []
    for i in range(repeat + 2):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work()
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
        else:
            begin = time.monotonic()
            work()
            taken.append((time.monotonic() - begin) * 1e3)
    return statistics.median(taken[2:])


def attention_of(torch, device, backend, shape, deterministic):
    from torch.nn.attention import sdpa_kernel

    heads, kv_heads, length, dim, documents = (shape[k] for k in ("heads", "kv_heads", "length", "head_dim", "documents"))
    make = lambda n: torch.randn(documents, n, length, dim, device=device, dtype=torch.bfloat16, requires_grad=True)  # noqa: E731
    q, k, v = make(heads), make(kv_heads), make(kv_heads)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        with sdpa_kernel(backend):
            run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  # noqa: E731
            forward = milliseconds(torch, device, run)
            out = run()
            grad = torch.randn_like(out)
            backward = milliseconds(torch, device, lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
    finally:
        torch.use_deterministic_algorithms(False)
    return forward, backward


def bars(name, deterministic, forward):
    if not name.startswith("flash"):
        return None
    return dict(forward=forward, backward=0.0) if forward else dict(forward=0.9, backward=0.9 if deterministic else 0.7)


def attention(arguments):
    torch = import_torch("attention", arguments.device)
    if not torch:
        return
    try:
        from torch.nn.attention import SDPBackend
    except ImportError as fault:
        say(bench="attention", result="skipped", why=f"this PyTorch has no torch.nn.attention: {fault}")
        return

    with open(arguments.ours, encoding="utf-8") as lines:
        ours = [line for line in map(json.loads, lines) if line.get("who") == "ours" and line.get("bench") == "attention"]
    kinds = [("flash", SDPBackend.FLASH_ATTENTION, False), ("flash, deterministic", SDPBackend.FLASH_ATTENTION, True),
             ("cuDNN", SDPBackend.CUDNN_ATTENTION, False)]
    if arguments.forward_bar:
        kinds = kinds[:1]
    if arguments.device == "cpu":
        kinds = [("math", SDPBackend.MATH, False)]
    for shape in ours:
        for name, backend, deterministic in kinds:
            line = dict(bench="attention", who=f"PyTorch {torch.__version__} SDPA {name}",
                        **{k: shape[k] for k in ("documents", "length", "heads", "kv_heads", "head_dim")})
            try:
                forward, backward = attention_of(torch, arguments.device, backend, shape, deterministic)
            except Exception as fault:  # one shape or backend less is no reason to lose the others
                say(**line, result="skipped", why=(str(fault) or repr(fault)).splitlines()[0][:160])
                continue
            say(**line, forward_ms=round(forward, 4), backward_ms=round(backward, 4), forward_ratio=round(forward / shape["forward_ms"], 3),
                backward_ratio=round(backward / shape["backward_ms"], 3),
                bars=bars(name, deterministic, arguments.forward_bar))


def model_of(torch, arguments, where):
    import transformers

    config = transformers.AutoConfig.from_pretrained(arguments.config)
    if arguments.layers:
        config.num_hidden_layers = arguments.layers
    config._attn_implementation = "sdpa"
    config.use_cache = False
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(where):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    return model.train(), config


def backend_of(torch, device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if device == "cuda" else contextlib.nullcontext()


def resident_step(torch, arguments, vocabulary, model, optimizer, parameters):
    """One optimizer step over micro-batches; the model stays on the device."""
    loss = 0.0
    for _ in range(arguments.micro_batches):
        ids = torch.randint(vocabulary, (arguments.rows, arguments.length), device=arguments.device)
        with backend_of(torch, arguments.device):
            part = model(input_ids=ids, labels=ids).loss / arguments.micro_batches
            part.backward()
        loss += part.detach()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss)


def resident(torch, arguments):
    import transformers

    model, config = model_of(torch, arguments, arguments.device)
    who = f"transformers {transformers.__version__}"
    if arguments.kind == "lora":
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"))
        model.enable_input_require_grads()
        who += f", PEFT {peft.__version__}"
    model.gradient_checkpointing_enable(dict(use_reentrant=False))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    who += ", all on the device, bf16 weights and moments, fused AdamW, every layer recomputed, SDPA " + ("flash" if arguments.device == "cuda" else "default")
    return who, lambda: resident_step(torch, arguments, config.vocab_size, model, optimizer, parameters)


def roundpipe(torch, arguments):
    if arguments.cap_gib:  # the package plans with what is free: let it see a card of that size
        whole = torch.cuda.mem_get_info
        torch.cuda.mem_get_info = lambda *where: tuple(min(n, int(arguments.cap_gib * 2**30)) for n in whole(*where))
    import roundpipe as package
    from roundpipe.models import wrap_model

    plain, config = model_of(torch, arguments, "cpu")
    if arguments.kind == "roundpipe-lora":
        import peft

        adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=32, lora_alpha=64, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        plain = peft.get_peft_model(plain, adapters).base_model.model  # the package wraps models by their class
    model = wrap_model(plain, optim_dtype=torch.float32, model_run_config=package.RoundPipeRunConfig(num_microbatch=arguments.micro_batches))
    optimizer = package.optim.Adam(model.optim_parameters(), lr=1e-5)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    def step():
        ids = torch.randint(config.vocab_size, (arguments.rows * arguments.micro_batches, arguments.length))
        with backend_of(torch, arguments.device):
            loss = model.forward_backward(input_kwargs=dict(input_ids=ids, labels=ids, return_logits=False),
                                          loss_fn=lambda outputs, _: outputs.loss)
        model.step(update, is_async=not arguments.sync)
        return float(loss)

    return f"roundpipe {package.__version__}, {'sync' if arguments.sync else 'async'} optimizer", step


def step(arguments):
    bench = dict(bench="steps", model=arguments.name, kind=arguments.kind)
    torch = import_torch("steps", arguments.device)
    if not torch:
        return
    try:
        if arguments.cap_gib and arguments.device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.cap_gib * 2**30 / total))
        who, one = (roundpipe if arguments.kind.startswith("roundpipe") else resident)(torch, arguments)
        seconds = []
        for _ in range(arguments.steps):
            wait(torch, arguments.device)
            begin = time.monotonic()
            loss = one()
            wait(torch, arguments.device)
            seconds.append(time.monotonic() - begin)
    except Exception as fault:  # whatever a package of others does, the next line is measured all the same
        lines = (str(fault) or repr(fault)).splitlines()
        say(**bench, result="skipped", why=f"{type(fault).__name__}: {lines[0][:200]}")
        return
    timed = seconds[1:] or seconds
    speed = arguments.rows * arguments.length * arguments.micro_batches / statistics.median(timed)
    peak = torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0
    say(**bench, who=who, rows=arguments.rows, length=arguments.length, micro_batches=arguments.micro_batches, loss=round(loss, 4),
        tokens_per_second=round(speed, 1), device_peak_bytes=peak, ours=arguments.ours,
        ratio=round(arguments.ours / speed, 3) if arguments.ours else None, bar=dict(roundpipe=1.3).get(arguments.kind, 2.5 if arguments.kind == "roundpipe-lora" else 0.95))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("attention")
    one.add_argument("ours")
    one.add_argument("--forward-bar", type=float, default=0, help="FlashAttention alone, its forward against this bar; the backward is only told")
    two = verbs.add_parser("step")
    two.add_argument("kind", choices=("full", "lora", "roundpipe", "roundpipe-lora"))
    two.add_argument("config")
    two.add_argument("--name", default="")
    two.add_argument("--layers", type=int, default=0)
    two.add_argument("--rows", type=int, default=4)
    two.add_argument("--length", type=int, default=2048)
    two.add_argument("--micro-batches", type=int, default=8)
    two.add_argument("--steps", type=int, default=4)
    two.add_argument("--cap-gib", type=float, default=0)
    two.add_argument("--sync", action="store_true")
    two.add_argument("--ours", type=float, default=0)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    (attention if arguments.verb == "attention" else step)(arguments)


if __name__ == "__main__":
    main()
