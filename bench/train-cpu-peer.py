#!/usr/bin/env python3
"""The peer of bench/train-cpu: the demo's training with PyTorch + transformers + PEFT on the CPU.

    train-cpu-peer.py convert MODEL.gguf DIR              dequantises the GGUF into a Hugging Face directory with its tokenizer
    train-cpu-peer.py train DIR TRAIN.jsonl --mode lora   trains and prints one JSON line

What a person would run, with PyTorch's better settings: every core, fused (SDPA) attention, fused AdamW, no cache; rows of a batch padded
on the right to its longest, standard forward with labels on the completion, logits of every position. Conversion is a run of its own so
that it adds nothing to the peak memory of training. Tokens counted are those that are no padding; the first step, which sets up
PyTorch's buffers and kernels, is not timed.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import torch
import transformers


def converted_tensors(reader):
    """Yields (Hugging Face name, fp32 array in Hugging Face order) of a llama GGUF."""
    import gguf
    import numpy as np

    heads = {"attn_q": int(reader.fields["llama.attention.head_count"].contents()),
             "attn_k": int(reader.fields["llama.attention.head_count_kv"].contents())}
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in top:
            yield top[tensor.name], value
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in heads:  # undo the converter's row order
            n = heads[part]
            value = value.reshape(n, value.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(value.shape)
        yield f"model.layers.{layer}.{parts[part]}.{kind}", value


def tokenizer_of(reader):
    """The vocabulary inside the file, `smollm` pre-tokenization: single digits, then GPT-2's pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def convert(source, directory):
    import gguf

    reader = gguf.GGUFReader(source)
    field = lambda key: reader.fields[f"llama.{key}"].contents()  # noqa: E731
    config = transformers.LlamaConfig(
        vocab_size=field("vocab_size"), hidden_size=field("embedding_length"), intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"), num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"), rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=field("context_length"), bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=not any(t.name == "output.weight" for t in reader.tensors),
        rope_parameters=dict(rope_type="default", rope_theta=field("rope.freq_base")))
    model = transformers.AutoModelForCausalLM.from_config(config)
    parameters = dict(model.named_parameters())
    for name, value in converted_tensors(reader):
        parameters.pop(name).data.copy_(torch.from_numpy(value))
    assert not parameters, f"not in the file: {sorted(parameters)}"
    model.save_pretrained(directory)
    tokenizer_of(reader).save(str(Path(directory) / "tokenizer.json"))


def read_rows(tokenizer, path, count, max_length, eos):
    """(ids, labels) of the first rows: prompt and completion as one string, end-of-sequence appended, the prompt's tokens masked."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if len(rows) == count:
                break
            row = json.loads(line)
            completion = row["completion"] if row["completion"].endswith(eos) else row["completion"] + eos
            masked = len(tokenizer.encode(row["prompt"]).ids)
            ids = tokenizer.encode(row["prompt"] + completion).ids[:max_length]
            if len(ids) > masked:
                rows.append((ids, [-100] * masked + ids[masked:]))
    if len(rows) < count:
        raise SystemExit(f"{path}: {len(rows)} rows, {count} are needed")
    return rows


def batch_of(rows, pad):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
    return dict(input_ids=ids, attention_mask=mask, labels=labels)


def peak_rss_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def prepare(arguments):
    """The model, as Trainer would have it: bf16 is autocast over fp32 weights, and for LoRA over a frozen base stored in bf16."""
    dtype = torch.bfloat16 if arguments.bf16 and arguments.mode == "lora" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.directory, dtype=dtype, attn_implementation="sdpa")
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable(dict(use_reentrant=False))
    if arguments.mode == "lora":
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0,
                                                           target_modules="all-linear"))
    model.config.use_cache = False
    return model.train()


def train(arguments):
    from tokenizers import Tokenizer

    torch.manual_seed(arguments.seed)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(Path(arguments.directory) / "tokenizer.json"))
    rows = read_rows(tokenizer, arguments.rows, arguments.steps * arguments.batch, arguments.max_length, arguments.eos)
    batches = [batch_of(rows[i:i + arguments.batch], pad=tokenizer.token_to_id(arguments.eos))
               for i in range(0, len(rows), arguments.batch)]
    model = prepare(arguments)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=arguments.learning_rate, weight_decay=0.0, fused=True)
    scheduler = transformers.get_scheduler("cosine", optimizer, num_warmup_steps=arguments.warmup_steps, num_training_steps=arguments.steps)
    losses, seconds = [], []
    for batch in batches:
        begin = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(round(loss.item(), 6))
        seconds.append(time.monotonic() - begin)
    timed = 1 if len(batches) > 1 else 0
    tokens = sum(int(b["attention_mask"].sum()) for b in batches[timed:])
    print(json.dumps(dict(mode=arguments.mode, dtype="bfloat16" if arguments.bf16 else "float32", steps=len(batches),
                          tokens_per_second=round(tokens / sum(seconds[timed:]), 2), peak_rss_bytes=peak_rss_bytes(),
                          seconds=round(sum(seconds), 3), tokens=sum(len(ids) for ids, _ in rows), threads=torch.get_num_threads(),
                          torch=torch.__version__, transformers=transformers.__version__, loss=losses)))


def main():
    parser = argparse.ArgumentParser(description="bench/train-cpu's peer")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("convert")
    one.add_argument("source")
    one.add_argument("directory")
    two = verbs.add_parser("train")
    two.add_argument("directory")
    two.add_argument("rows")
    two.add_argument("--mode", choices=("lora", "full"), default="lora")
    two.add_argument("--steps", type=int, default=10)
    two.add_argument("--batch", type=int, default=8)
    two.add_argument("--learning-rate", type=float, default=5e-4)
    two.add_argument("--warmup-steps", type=int, default=10)
    two.add_argument("--max-length", type=int, default=1024)
    two.add_argument("--eos", default="<|im_end|>")
    two.add_argument("--seed", type=int, default=42)
    two.add_argument("--threads", type=int, default=os.cpu_count())
    two.add_argument("--bf16", action="store_true")
    two.add_argument("--gradient-checkpointing", action="store_true", help="less memory, slower; not what is compared by default")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # transformers and PEFT about each other
    if arguments.verb == "convert":
        convert(arguments.source, arguments.directory)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
