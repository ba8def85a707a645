"""Do our files mean to others what they mean to us? Trains tiny models with build/release/roundhouse, loads what it wrote with PEFT and
transformers, and compares the loss of held-out rows (1e-5, relative) and 64 greedy tokens. And a model of each family that was trained with a
learning rate of 0 is loaded in transformers: each tensor as it was, to the bit.

    build/venv/run tests/reference/interchange.py --check [--only=WORDS OF A CASE] [path of the program]

An adapter trained on a GGUF file is put on the same weights dequantised in Hugging Face order (models/gguf-*/model.safetensors). Without
--check it remakes interchange/tokenizer.json, the vocabulary of models/gguf-*/model.gguf as a tokenizer.json, which tests/cli uses too.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import torch
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer, Tokenizer
from transformers import AutoConfig, AutoTokenizer, Qwen3Config

import models_build

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "models"
TOKENIZER = HERE / "interchange" / "tokenizer.json"
TOLERANCE = 1e-5
WORDS = "the of and in cat sat on mat one two three here there is".split()
PROMPT = "the cat sat on"
END = "<|endoftext|>"  # what rows end with; not the end-of-sequence token. Both end generated text: a model is asked as it was trained


def tokenizer_json():
    fields = gguf.GGUFReader(MODELS / "gguf-qwen2" / "model.gguf").fields
    strings = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    control = [i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL]
    bytes_alone = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in control],
        "normalizer": None, "pre_tokenizer": bytes_alone, "post_processor": {**bytes_alone, "trim_offsets": False}, "decoder": bytes_alone,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens) if i not in control}, "merges": [m.split(" ") for m in merges],
        },
    }


def words_tokenizer():
    """BERT's kind, of whole words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return BertWordPieceTokenizer(vocab={token: i for i, token in enumerate(special + WORDS + list("0123456789"))})


def rows(count, seed):
    rng = torch.Generator().manual_seed(seed)
    draw = lambda most: int(torch.randint(1, most, (1,), generator=rng))
    text = lambda most: " ".join(WORDS[draw(len(WORDS))] for _ in range(draw(most)))
    return [{"prompt": f"{i} {text(6)}", "completion": f" {text(7)}"} for i in range(count)]


class World:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.held = rows(12, 2)
        for name, lines in (("train", rows(40, 1)), ("held", self.held)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))

    def run(self, verb, **keys):
        """The program's result, read from its line of JSON."""
        text = lambda value: str(value).lower() if isinstance(value, bool) else str(value)
        flags = [word for key, value in keys.items() for word in (f"--{key}", text(value))]
        ran = subprocess.run([self.program, verb, "--json", *flags], capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{verb} {' '.join(flags)}: {ran.stderr}")
        return json.loads(ran.stdout)

    def directory(self, name):
        """A Hugging Face directory of a reference model, with a tokenizer."""
        target = self.folder / name
        target.mkdir()
        for file in (MODELS / name / "config.json", MODELS / name / "model.safetensors", TOKENIZER,
                     TOKENIZER.with_name("tokenizer_config.json")):
            shutil.copy(file, target)
        return target

    def made(self, name):
        """The reference model of that name with this vocabulary and room for rows, as transformers saves it."""
        target = self.folder / name
        config = models_build.MODELS[name][0]()
        text = config.get_text_config()
        text.vocab_size, text.bos_token_id, text.eos_token_id = 288, 286, 287
        model = models_build.auto_class(name, config).from_config(config)
        models_build.random_weights(model, models_build.generator("interchange", name))
        model.save_pretrained(target)
        for file in (TOKENIZER, TOKENIZER.with_name("tokenizer_config.json")):
            shutil.copy(file, target)
        return target

    def blank(self):
        """A configuration alone: Qwen3, untied head."""
        target = self.folder / "qwen3-blank"
        target.mkdir()
        config = Qwen3Config(vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=12, max_position_embeddings=128, tie_word_embeddings=False,
                             initializer_range=0.2, eos_token_id=287, bos_token_id=286)
        config.save_pretrained(target)
        for file in (TOKENIZER, TOKENIZER.with_name("tokenizer_config.json")):
            shutil.copy(file, target)
        return target

    def labelled(self):
        """Rows for a classifier of three labels."""
        target = self.folder / "labelled.jsonl"
        target.write_text("".join(json.dumps(dict(text=row["prompt"], label=i % 3)) + "\n" for i, row in enumerate(self.held)))
        return target

    def images(self):
        """A folder of four classes' folders."""
        target = self.folder / "images"
        for label in range(4):
            (target / str(label)).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (6, 6), (40 * label, 90 * i, 7)).save(target / str(label) / f"{i}.png")
        return target

    def train(self, name, **keys):
        usual = dict(train_file=self.folder / "train.jsonl", output_dir=self.folder / name, max_length=64, eos_token=END, logging_steps=5,
                     per_device_train_batch_size=4, save_strategy="no", seed=7, learning_rate=5e-3, num_train_epochs=3)
        self.run("train", **{key: value for key, value in (usual | keys).items() if value is not None})
        return self.folder / name

    def ours(self, **keys):
        return (self.run("eval", validation_file=self.folder / "held.jsonl", max_length=64, eos_token=END, dtype="float32", **keys),
                self.run("generate", prompt=PROMPT, max_new_tokens=64, dtype="float32", **keys)["ids"])

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=True).ids

    def loss(self, model):
        """Of the completions and what ends them, by trained token; and how many tokens there are."""
        total, trained, tokens = 0.0, 0, 0
        for row in self.held:
            ids = self.ids(row["prompt"] + row["completion"] + END)
            first = len(self.ids(row["prompt"]))
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].double()
            losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")[first - 1:]
            total, trained, tokens = total + losses.sum().item(), trained + len(losses), tokens + len(ids)
        return total / trained, trained, tokens

    def greedy(self, model):
        """By whole forwards, to the end of sequence or of a row; and the least lead of the best logit."""
        ids, made, gap, ends = self.ids(PROMPT), [], float("inf"), {287, *self.ids(END)}
        while len(made) < 64 and (not made or made[-1] not in ends):
            with torch.no_grad():
                best = model(torch.tensor([ids + made])).logits[0, -1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            made.append(best.indices[0].item())
        return made, gap

    def compare(self, name, model, **keys):
        model.eval()
        (result, ids), (loss, trained, tokens), (wanted, gap) = self.ours(**keys), self.loss(model), self.greedy(model)
        assert (result["trained_tokens"], result["eval_tokens"]) == (trained, tokens), (name, result, trained, tokens)
        error = abs(result["eval_loss"] / loss - 1)
        same = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), min(len(ids), len(wanted)))
        good = error <= TOLERANCE and ids == wanted
        print(f"{name}: loss {result['eval_loss']:.6f}, theirs {loss:.6f} ({error:.1e}); {same} of {len(wanted)} greedy tokens equal"
              f" (least lead {gap:.1e}){'' if good else '  DIFFERENT'}")
        return good


def load(folder, name=""):
    """By the class that transformers has for a reference model of this name."""
    kind = models_build.auto_class(name, AutoConfig.from_pretrained(folder))
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


def with_adapter(world, base, adapter):
    """The adapter on its base; all of it must have landed, and it must matter."""
    plain = load(base)
    before = world.loss(plain)[0]
    model = PeftModel.from_pretrained(plain, adapter)
    stored = load_file(adapter / "adapter_model.safetensors")
    landed = {key.replace(".modules_to_save.default", "").replace(".default", "").replace("_vector.weight", "_vector"): value
              for key, value in model.named_parameters()
              if "lora_" in key or "modules_to_save" in key}
    if model.peft_config["default"].ensure_weight_tying:  # one table, by both its names
        assert torch.equal(stored.pop("base_model.model.lm_head.weight"), model.get_output_embeddings().weight)
    assert landed.keys() == stored.keys() and all(torch.equal(landed[key], stored[key]) for key in stored)
    assert abs(world.loss(model)[0] / before - 1) > 1e-2
    return model


def unchanged(world, name, base):
    own = {"vit": world.images, "bert-cls": world.labelled, "bert-mlm": world.labelled}.get(name)
    own = dict(train_file=own()) if own else {}
    if name.startswith("bert"):
        own["eos_token"] = None
        words_tokenizer().save(str(base / "tokenizer.json"))
        (base / "tokenizer_config.json").write_text("{}")
    if name == "vit":
        (base / "preprocessor_config.json").write_text(json.dumps(dict(image_processor_type="ViTImageProcessor", size=dict(height=6, width=6))))
    output = world.train(f"unchanged-{name}", model_name_or_path=base, use_peft=False, learning_rate=0, max_steps=1, weight_decay=0, **own)
    before, after = (load(folder, name).state_dict() for folder in (base, output))
    other = [key for key in before if not torch.equal(before[key], after[key])] + sorted(before.keys() ^ after.keys())
    print(f"unchanged, {name}: {len(before)} tensors, {len(other)} differ {other[:3] if other else ''}")
    return not other


def check(program, only):
    with tempfile.TemporaryDirectory() as folder:
        world = World(program, folder)
        llama, qwen2 = world.directory("gguf-llama"), world.directory("gguf-qwen2")
        gemma, mistral = world.made("gemma3-vision"), world.made("mistral3")
        experts, oss = world.made("qwen3-moe"), world.made("gpt-oss")
        quantised = {name: MODELS / name / "model.gguf" for name in ("gguf-llama", "gguf-qwen2")}
        good = True
        loras = [
            ("LoRA on a GGUF, llama", quantised["gguf-llama"], llama, dict(lora_r=4, lora_target_modules="all-linear")),
            ("LoRA on a GGUF, qwen2, rsLoRA", quantised["gguf-qwen2"], qwen2, dict(lora_r=4, use_rslora=True)),
            ("LoRA on a GGUF in bf16", quantised["gguf-llama"], llama, dict(lora_r=8, lora_target_modules="all-linear", bf16=True)),
            ("LoRA on a directory", llama, llama, dict(lora_r=4, lora_target_modules="[q_proj,k_proj,o_proj,down_proj]")),
            ("LoRA by a pattern in bf16", qwen2, qwen2, dict(lora_r=4, lora_target_modules=r".*layers\.1\..*(up|v)_proj", bf16=True)),
            ("LoRA on a text model inside a larger one, gemma3", gemma, gemma, dict(lora_r=4)),
            ("LoRA on a text model inside a larger one, mistral3", mistral, mistral, dict(lora_r=4, lora_target_modules="all-linear")),
            ("DoRA on a directory", llama, llama, dict(lora_r=4, lora_target_modules="all-linear", use_dora=True)),
            ("DoRA beside biases in bf16", qwen2, qwen2, dict(lora_r=4, lora_target_modules="[q_proj,down_proj]", use_dora=True, bf16=True)),
            ("LoRA on experts and routers, qwen3-moe", experts, experts, dict(lora_r=4, lora_target_modules="all-linear")),
            ("LoRA on experts' down_proj, qwen3-moe", experts, experts, dict(lora_r=4, lora_target_modules="[q_proj,down_proj]")),
            ("LoRA beside a whole embedding and head", llama, llama, dict(lora_r=4, lora_modules_to_save="[embed_tokens,lm_head]")),
            ("LoRA beside a whole head in bf16", experts, experts, dict(lora_r=4, lora_modules_to_save="lm_head", bf16=True)),
            ("LoRA beside a whole tied table", qwen2, qwen2, dict(lora_r=4, lora_modules_to_save="embed_tokens")),
            ("LoRA beside a whole embedding in a larger model, gemma3", gemma, gemma, dict(lora_r=4, lora_modules_to_save="embed_tokens")),
            ("LoRA on experts, gpt-oss", oss, oss, dict(lora_r=4, lora_target_parameters="[mlp.experts.gate_up_proj,mlp.experts.down_proj]")),
        ]
        for i, (name, model, base, keys) in enumerate(case for case in loras if only in case[0]):
            adapter = world.train(f"lora-{i}", model_name_or_path=model, **keys)
            good &= world.compare(name, with_adapter(world, base, adapter), model_name_or_path=model, adapter_name_or_path=adapter)
        fulls = [
            ("full, llama", dict(model_name_or_path=llama)),
            ("full from a GGUF, qwen2", dict(model_name_or_path=quantised["gguf-qwen2"])),
            ("full, qwen2 with a tied head", dict(model_name_or_path=qwen2)),
            ("full in bf16", dict(model_name_or_path=qwen2, bf16=True)),
            ("full, a text model inside a larger one, gemma3", dict(model_name_or_path=gemma)),
            ("full, a text model inside a larger one, mistral3", dict(model_name_or_path=mistral)),
            ("from random initialisation, qwen3", dict(config_name=world.blank())),
        ]
        for i, (name, keys) in enumerate(case for case in fulls if only in case[0]):
            output = world.train(f"full-{i}", **keys)
            model = load(output)
            assert world.ids(END)[0] in model.generation_config.eos_token_id  # their generate ends there, too
            good &= world.compare(name, model, model_name_or_path=output)
            if AutoTokenizer.from_pretrained(output)(PROMPT)["input_ids"] != world.ids(PROMPT):
                print(f"{name}: the tokenizer beside the model is another")
                good = False
        made = {"gemma3-vision": gemma, "mistral3": mistral, "qwen3-moe": experts, "gpt-oss": oss}
        for name in (name for name in models_build.MODELS if only in f"unchanged, {name}"):
            good &= unchanged(world, name, made.get(name) or world.made(name))
        return good


if __name__ == "__main__":
    made = json.dumps(tokenizer_json(), separators=(",", ":")) + "\n"
    if "--check" not in sys.argv[1:]:
        TOKENIZER.write_text(made)
    elif TOKENIZER.read_text() != made:
        sys.exit(f"{TOKENIZER} differs from the vocabulary of the GGUF files")
    else:
        only = next((a[7:] for a in sys.argv[1:] if a.startswith("--only=")), "")
        paths = [a for a in sys.argv[1:] if not a.startswith("--")]
        program = paths[0] if paths else "build/release/roundhouse"
        if not pathlib.Path(program).exists():
            sys.exit(f"{program} is not built; run make first")
        sys.exit(0 if check(program, only) else 1)
