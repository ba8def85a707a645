#!/usr/bin/env python3
"""Ids and masks of conversations, by transformers on marked copies of published templates, for tests/data/test_masks.c.

    data_masks.py --check [FILE...]   the templates of trl's wheel, and the .jinja files named; exit 1 on a difference

No published text is committed. A template that does not mark what the assistant writes is copied with marks: what its loop over the
messages writes for an assistant's message is caught in a variable and written in three parts, the middle one in {% generation %}. That
begins behind the generation prompt: the longest beginning of it, cut between tokens, that the message's text begins with. It ends with the
last byte that is no blank: the end-of-turn token where the template writes one. A copy must render each conversation as the original does. Then
ids and masks of apply_chat_template(copy, tokenize=True, return_dict=True, return_assistant_tokens_mask=True) are those that src/data must
give for the original. A template with marks of its own is taken as it is.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import data_jinja as reference
from data_jinja_cases import say
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "build/reference/masks"
LEAST = 25  # templates
TOKEN = r"<\|[^\s<>|'\"]+\|>|<\uff5c[^\s<>'\"]+\uff5c>|\[/?[A-Z_]{3,}\]"
AFTER_TOOLS = ("<\uff5ctool\u2581outputs\u2581end\uff5c>",)  # in place of the generation prompt
WORDS = ("<start_of_turn>", "<end_of_turn>", "<end_of_utterance>", "<think>", "</think>", "<tool_call>", "</tool_call>",
         "<tool_response>", "</tool_response>", "<image>",
         "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
         "<tool_response|>", "<|tool>", "<tool|>", "<sop>")
PLAIN = {"documents": None, "tools": None, "bos_token": "<s>", "eos_token": "</s>"}
TAG = re.compile(r"{#.*?#}|{%([-+]?)\s*(\w+)(.*?)([-+]?)%}", re.S)
# What the loop over the messages wrote, in three parts. The first message of some templates holds the first token of all.
WRITE = """\
{%- if M['role'] == 'assistant' or M['role'] == 'model' %}
{%- set rh = namespace(first=-1, end=rh_turn.rstrip() | length) %}
{%- if rh_openings[0] in rh_turn %}{% set rh.first = rh_turn.find(rh_openings[0]) + rh_openings[0] | length %}{% endif %}
{%- for opening in rh_openings %}
{%- for before in ['', bos_token] %}
{%- if rh.first < 0 and rh_turn.startswith(before + opening) %}{% set rh.first = (before + opening) | length %}{% endif %}
{%- endfor %}
{%- endfor %}
{%- if rh.first < 0 %}{{- raise_exception('rh: no opening') }}{% endif %}
{%- if rh.first < rh.end %}
{{- rh_turn[:rh.first] }}{% generation %}{{ rh_turn[rh.first:rh.end] }}{% endgeneration %}{{ rh_turn[rh.end:] }}
{%- else %}{{- rh_turn }}{% endif %}
{%- else %}{{- rh_turn }}{% endif %}"""


def marked(text):
    """A copy that marks what the last loop over the messages writes for the assistant; None: there is none."""
    open_loops, loop = [], None
    for tag in TAG.finditer(text):
        if tag[2] == "for":
            open_loops.append(tag)
        elif tag[2] == "endfor":
            first = open_loops.pop()
            if not open_loops and re.search(r"\bin\s+\w*messages\b", first[3]):
                loop = (first, tag)
    if not loop:
        return None
    first, end = loop
    name = first[3].split()[0]
    write = "".join(line.lstrip() for line in WRITE.splitlines()).replace("M[", name + "[")
    left = "-" if end[1] == "-" else ""
    body = text[first.end() : end.start()]
    return f"{text[: first.end()]}{{% set rh_turn {first[4]}%}}{body}{{%{left} endset %}}{write}{text[end.start() :]}"


def openings(text, talk):
    """The beginnings of the generation prompt, cut between tokens, the longest first."""
    ask = PLAIN | talk | {"messages": [say("user", "q")]}
    ask["messages"] = as_taken(text, ask["messages"])
    whole, prompt = (reference.render(text, ask | {"add_generation_prompt": on}).get("text", "") for on in (False, True))
    same = len(os.path.commonprefix([whole, prompt]).rstrip("<"))
    prompt = prompt[same:]
    cuts = [n for n in range(1, len(prompt)) if prompt[n] in "<[" or prompt[n - 1] in "\n>]"]
    return [prompt] + [prompt[:n] for n in reversed(cuts)] + [more for more in AFTER_TOOLS if more in text]


def takes(text, content):
    asked = PLAIN | {"messages": [say("user", content)], "add_generation_prompt": False}
    probe = reference.render(text, asked).get("text", "")
    return "rhprobe" in probe and "'type'" not in probe and '"type"' not in probe


def as_taken(text, messages):
    """Text content as the template takes it: as a string, or as a list of parts."""
    strings, parts = takes(text, "rhprobe"), takes(text, [{"type": "text", "text": "rhprobe"}])
    result = []
    for message in messages:
        content = message.get("content")
        if strings and not parts and isinstance(content, list) and all(part["type"] == "text" for part in content):
            message = message | {"content": "".join(part["text"] for part in content)}
        elif parts and not strings and isinstance(content, str):
            message = message | {"content": [{"type": "text", "text": content}]}
        result.append(message)
    return result


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def tokenizer_for(base, text, folder):
    tokenizer = Tokenizer.from_str(base)
    names = sorted({"<s>", "</s>"} | set(re.findall(TOKEN, text)) | {word for word in WORDS if word in text})
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.save_pretrained(folder)
    return made


def mend_last_character(tokenizer, text, both):
    """A span that ends inside a character of several tokens loses all but the first of them in transformers."""
    mask, spans = both["assistant_masks"], tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for k in range(1, len(mask)):
        if mask[k - 1] and not mask[k] and spans[k] == spans[k - 1]:
            mask[k] = 1


def cases_of(text, copy, tokenizer, tally):
    for i, talk in enumerate(reference.conversations()):
        more = {key: value for key, value in talk.items() if key not in ("messages", "tools", "documents")}
        given = {"tools": talk.get("tools"), "documents": talk.get("documents")} | more
        # apply_chat_template drops what is null; here a template sees it, as none (data_marks.py compares that)
        said = [{key: value for key, value in message.items() if value is not None} for message in talk["messages"]]
        messages = as_taken(text, said)
        try:
            original = tokenizer.apply_chat_template(messages, chat_template=text, tokenize=False, **given)
        except Exception:
            tally["refused"] += 1
            continue
        try:
            given["rh_openings"] = openings(text, more)
            rendered = tokenizer.apply_chat_template(messages, chat_template=copy, tokenize=False, **given)
        except Exception as fault:
            tally["unmarked"].append(f"{i}: {fault}")
            continue
        if "<|tool_response>" in text and any(message["role"] == "tool" for message in messages):
            tally["unmarked"].append(f"{i}: the assistant's message is written with the tool's answer in it")
            continue
        if rendered != original:
            tally["unmarked"].append(f"{i}: the copy renders otherwise")
            continue
        both = tokenizer.apply_chat_template(messages, chat_template=copy, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True, **given)
        mend_last_character(tokenizer, original, both)
        row = {key: talk[key] for key in ("tools", "documents") if key in talk} | {"messages": said}
        if more:
            row["chat_template_kwargs"] = more
        yield {"number": i, "row": row, "ids": both["input_ids"], "mask": both["assistant_masks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", nargs="*", type=pathlib.Path)
    templates = [(name, text) for name, text in reference.published(parser.parse_args().file) if not name.endswith("_training")]
    base, result, unlike = make_tokenizer(text for _, text in templates), [], []
    for name, text in templates:
        copy = text if re.search(r"{%-?\s*generation", text) else marked(text)
        if not copy:
            print(f"{name}: no loop over the messages to mark")
            continue
        folder = OUT / re.sub(r"\W+", "-", name)
        tally = {"refused": 0, "unmarked": []}
        cases = list(cases_of(text, copy, tokenizer_for(base, text, folder), tally))
        unlike += [f"{name}, conversation {line}" for line in tally["unmarked"]]
        if cases:
            result.append({"name": name, "text": text, "tokenizer": str(folder), "cases": cases})
    for line in unlike:
        print("not marked:", line)
    print(f"{len(result)} templates, {sum(len(one['cases']) for one in result)} conversations marked, {len(unlike)} not")
    cases = OUT / "cases.json"
    cases.write_text(json.dumps(result))
    subprocess.run(["make", "-s", "build/release/tests/data/test_masks"], cwd=ROOT, check=True)
    done = subprocess.run([ROOT / "build/release/tests/data/test_masks"], cwd=ROOT, env=os.environ | {"RH_MASK_CASES": str(cases)})
    sys.exit(0 if len(result) >= LEAST and not done.returncode else 1)


if __name__ == "__main__":
    main()
