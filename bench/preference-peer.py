#!/usr/bin/env python3
"""The peer of bench/preference: DPO of an adapter with TRL and PEFT on the CPU.

    preference-peer.py adapter MODEL DIR     an adapter that changes nothing yet, for both to begin with
    preference-peer.py train MODEL DATA      judges DATA/held-out.jsonl, trains DATA/adapter on DATA/train.jsonl, judges again; prints one JSON line

TRL with its faster settings: the reference's log-probabilities precomputed, no gradient checkpointing, SDPA attention, fused AdamW, every core. Seconds are
those of the reference's pass and of training, without what makes the rows ready. Tokens are those that are no padding.
"""

import argparse
import json
import os
import tempfile
import time
import warnings
from pathlib import Path


def load(model, bf16=False):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16 if bf16 else torch.float32, attn_implementation="sdpa")


def make_adapter(arguments):
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(42)
    config = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
    get_peft_model(load(arguments.model), config).save_pretrained(arguments.out)


def answers_logps(net, tokenizer, pairs, key):
    """The summed log-probability of each pair's answer under this key."""
    import torch

    base, out = net.get_base_model(), []
    for i in range(0, len(pairs), 16):
        prompts = [tokenizer(pair["prompt"])["input_ids"] for pair in pairs[i:i + 16]]
        wholes = [tokenizer(pair["prompt"] + pair[key])["input_ids"] for pair in pairs[i:i + 16]]
        batch = tokenizer.pad(dict(input_ids=wholes), padding_side="right", return_tensors="pt")
        hidden = base.model(**batch).last_hidden_state
        for row, prompt, whole in zip(hidden, prompts, wholes):
            logits = base.lm_head(row[len(prompt) - 1:len(whole) - 1]).float()
            out.append(logits.log_softmax(-1).gather(1, torch.tensor(whole[len(prompt):])[:, None]).sum().item())
    return out


def share_right(net, tokenizer, pairs):
    import torch

    with torch.no_grad():
        chosen, rejected = (answers_logps(net, tokenizer, pairs, key) for key in ("chosen", "rejected"))
    return sum(c > r for c, r in zip(chosen, rejected)) / len(pairs)


def train(arguments):
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    class Timed(DPOTrainer):
        reference_seconds = processor_seconds = 0.0

        def compute_ref_log_probs(self, *args, **kwargs):
            began, processor = time.monotonic(), time.process_time()
            out = super().compute_ref_log_probs(*args, **kwargs)
            Timed.reference_seconds += time.monotonic() - began
            Timed.processor_seconds += time.process_time() - processor
            return out

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(arguments.model / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                        model_input_names=["input_ids", "attention_mask"])
    pairs, held_out = ([json.loads(line) for line in open(arguments.data / f"{name}.jsonl")] for name in ("train", "held-out"))
    net = PeftModel.from_pretrained(load(arguments.model, arguments.bf16), arguments.data / "adapter", is_trainable=True)
    before = share_right(net, tokenizer, held_out)
    with tempfile.TemporaryDirectory() as out:
        config = DPOConfig(output_dir=out, use_cpu=True, bf16=arguments.bf16, learning_rate=arguments.learning_rate, lr_scheduler_type="constant",
                           num_train_epochs=1, per_device_train_batch_size=arguments.batch, logging_steps=1, save_strategy="no", report_to=[],
                           train_sampling_strategy="sequential", max_length=512, gradient_checkpointing=False, disable_tqdm=True, beta=arguments.beta,
                           weight_decay=0.0, precompute_ref_log_probs=True, max_grad_norm=1.0, dataloader_pin_memory=False, optim="adamw_torch_fused")
        trainer = Timed(net, args=config, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
        processor = time.process_time()
        seconds = trainer.train().metrics["train_runtime"]
        processor = time.process_time() - processor
    tokens = sum(len(tokenizer(pair["prompt"] + pair[key])["input_ids"]) for pair in pairs for key in ("chosen", "rejected"))
    print(json.dumps(dict(before=before, after=share_right(net.eval(), tokenizer, held_out), tokens=tokens,
                          seconds=Timed.reference_seconds + seconds, processor_seconds=Timed.processor_seconds + processor,
                          loss=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry])))


def main():
    parser = argparse.ArgumentParser(description="bench/preference's peer")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("adapter")
    one.add_argument("model", type=Path)
    one.add_argument("out", type=Path)
    two = verbs.add_parser("train")
    two.add_argument("model", type=Path)
    two.add_argument("data", type=Path)
    two.add_argument("--batch", type=int, required=True)
    two.add_argument("--learning-rate", type=float, required=True)
    two.add_argument("--beta", type=float, required=True)
    two.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.verb == "adapter":
        make_adapter(arguments)
        return
    with tempfile.TemporaryDirectory() as cache:  # TRL keeps the reference there, and would find an earlier run's
        os.environ["HF_DATASETS_CACHE"] = cache
        train(arguments)


if __name__ == "__main__":
    main()
