"""Where the assistant's turns are, by marks, for tests/data/test_chat.c.

    build/venv/run tests/reference/data_marks.py --check

trl carries copies of chat templates with {% generation %} in them. Of those that mark what is trained here (from behind the generation prompt
through the token that ends the turn; a line break after it is taken off), each conversation that the copy renders as the original does is
compared with what is located in the original, which has no marks. Copies that mark headers, or leave
the ending token out, are not compared, nor GLM, whose turns end with no token of their own.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import data_jinja as reference

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CASES = ROOT / "build/reference/chat-cases.json"
NAMES = ("cohere", "cohere2", "gemma", "gemma3", "lfm2", "lfm2_v2", "llama3", "qwen2_5_vl", "qwen3",
         "qwen3_instruct_2507", "qwen3_vl")
TOKEN = r"<[|\uff5c]?[A-Za-z_/][^<>'\" ]*[|\uff5c]?>"


def spans_of(rendered):
    """The marks without the line breaks at their ends."""
    raw, marks, spans = rendered["text"].encode(), rendered["spans"], []
    for first, end in zip(marks[::2], marks[1::2]):
        while end > first and raw[end - 1 : end] == b"\n":
            end -= 1
        spans += [first, end] if end > first else []
    return spans


def reads(text, talk):
    """A template that has no place for tools is refused here, where transformers leaves them out."""
    calls = any(message.get("tool_calls") for message in talk["messages"])
    return (not talk.get("tools") or "tools" in text) and (not calls or "tool_calls" in text)


def cases_of(original, marked):
    for talk in reference.conversations():
        parts = any(isinstance(message.get("content"), list) for message in talk["messages"])  # joined here, where a template shows a list
        if parts or "enable_thinking" in talk or not reads(original, talk):
            continue
        variables = {"documents": None, "tools": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False} | talk
        variables["messages"] = reference.chat._alias_reasoning_fields(variables["messages"])
        plain, copy = reference.render(original, variables), reference.render(marked, variables)
        if "text" in plain and plain["text"] == copy.get("text") and copy.get("spans"):
            yield {"conversation": talk, "spans": spans_of(copy)}


def main():
    folder = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    result = []
    for name in NAMES:
        original, marked = (folder / f"{name}.jinja").read_text(), (folder / f"{name}_training.jinja").read_text()
        cases = list(cases_of(original, marked))
        tokens = sorted(set(re.findall(TOKEN, original)) - {"<s>", "</s>"})
        result.append({"name": name, "text": original, "tokens": tokens, "cases": cases})
        print(f"{name}: {len(cases)} conversations")
    CASES.parent.mkdir(parents=True, exist_ok=True)
    CASES.write_text(json.dumps(result))
    subprocess.run(["make", "-s", "build/release/tests/data/test_chat"], cwd=ROOT, check=True)
    done = subprocess.run([ROOT / "build/release/tests/data/test_chat"], cwd=ROOT, env=os.environ | {"RH_CHAT_CASES": str(CASES)})
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
