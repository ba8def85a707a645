#!/usr/bin/env python3
"""What transformers renders from the models' own chat templates, for tests/data/test_chat.c.

    data_chat.py [FILE...]           remakes tests/reference/data/chat-*.json for the template texts that are found
    data_chat.py --check [FILE...]   compares instead; exit 1 on a difference

Texts are not kept in the repository, only what they render. They are found in the PyPI package trl (Llama 3 to 3.3, Qwen2.5, Qwen3), in the
demo's GGUF (SmolLM2; Qwen2's and plain ChatML's are the same text with another system turn or none), and in each FILE: a .jinja, a
tokenizer_config.json, a .gguf, or a folder of the first. The rest (llama2 without its FILE) is named as not checked. KNOWN says which
built-in a text belongs to, by its hash; of a FILE that is not there, the line it would need is printed. The built-ins are
src/data/templates/*.jinja; each must render the same.
"""

import argparse
import ctypes
import ctypes.util
import datetime
import json
import pathlib
import re
import subprocess
import sys
import zipfile

import jinja2
import transformers.utils.chat_template_utils as chat_utils
from transformers.utils.chat_template_utils import render_jinja_template


class Clock(datetime.datetime):
    """The day that strftime_now is given."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_utils.datetime = Clock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests/reference/data"
TEMPLATES = ROOT / "src/data/templates"
WITH_TOOLS = ("qwen2.5", "qwen3", "llama3.1")  # families that trl has the texts of, and whose built-ins render tools
TRL = "trl-1.16.0-py3-none-any.whl"
GGUF = ROOT / "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = {"llama2": ("<s>", "</s>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>")}

# XXH3-128 of texts that models bring (less one line break at the end), and the built-in that renders the same
KNOWN = {
    (0xf0a6a8278439fdb0, 0x56191e205a440263): "chatml",  # line breaks as they are
    (0x577a7fce73f72e1e, 0xe2be9fd6966bb5eb): "chatml",  # line breaks written \n
    (0xa344e8c84fb0282d, 0xda206a9e46a4ac01): "chatml",  # each of the two after a default for the prompt
    (0x7a128e0473e4be90, 0x846f9032c2079ea2): "chatml",
    (0xcc9ddd5a40bc1c0c, 0x8fb5d937b1e8f5d0): "chatml",  # Qwen3-Instruct-2507
    (0x98f63cc3d421d28f, 0x99ab995e9629dacd): "smollm2",  # SmolLM2-Instruct
    (0xf0323af61a5d6e23, 0x83059ddcb62b07a0): "smollm2",  # the same, line breaks written \n
    (0xe580c2da83415028, 0xd5d943bd0bd9082f): "qwen2",  # Qwen2-Instruct
    (0x7c4c17cbc95b1d56, 0xc79034a9d5f0ae58): "qwen2",  # the same, line breaks written \n
    (0x0fe61c920a9d3925, 0xc31e98db8c19d1d3): "qwen2",  # Qwen2.5, not instruction-tuned
    (0xe392aa06018503fd, 0x2469c9508f79506e): "qwen2.5",  # Qwen2.5-Instruct
    (0x4457e3d12b367a86, 0x0283f874ff58d644): "qwen3",  # Qwen3, first text
    (0x0fab82ce8f4d5175, 0xc9e0155c80737cf2): "qwen3",  # Qwen3, with checks of content's type
    (0x4adb1f81f5c508ea, 0x24f6d97f87d647f5): "llama2",  # Llama-2-chat
    (0x5cc730147bc3d550, 0x018fc13eb46e7703): "llama2",  # the same, one space fewer
    (0x09facc0e4aa94318, 0x9799ad6e2dea0594): "llama3",  # Meta-Llama-3-Instruct
    (0x9ddcd6cd71f96dd7, 0x6ca7779b7730196a): "llama3.1",  # Llama-3.1-Instruct, Llama-3.3-Instruct
    (0x573e1bcc8c56f178, 0xc3d57e38f5ff0756): "llama3.2",  # Llama-3.2-Instruct
    (0x8b30bb763d138e69, 0x2c2e86beabccd2a4): "gemma",  # Gemma 1 and 2
    (0x6c84c2da794fd4c1, 0xd9c620dcaf86f38d): "gemma3",  # Gemma 3
    (0x0850c77e9e7c37ed, 0x82fc89c04c54ba66): "phi3",  # Phi-3
    (0x263b899cbc2e65c8, 0xb619f5c43a935065): "harmony",  # gpt-oss
}


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3_128(data):
    function = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits
    function.restype = Hash
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = function(data, len(data))
    return value.high, value.low


def texts_of(path):
    if path.is_dir():
        for child in sorted(path.glob("*.jinja")):
            yield from texts_of(child)
    elif path.suffix == ".gguf":
        from gguf import GGUFReader

        yield GGUFReader(path).fields["tokenizer.chat_template"].contents(), path
    elif path.suffix == ".json":
        yield json.loads(path.read_text())["chat_template"], path
    else:
        yield path.read_bytes().decode(), path


def package_texts():
    """The templates that TRL carries, exactly as the models ship them."""
    folder = ROOT / "build/reference"
    if not (folder / TRL).exists():
        version = TRL.split("-")[1]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"trl=={version}"], check=True)
    with zipfile.ZipFile(folder / TRL) as archive:
        for name in ("llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507", "gemma", "gemma3", "phi3", "gptoss"):
            yield archive.read(f"trl/chat_templates/{name}.jinja").decode(), f"{TRL}: {name}"


def demo_texts():
    """SmolLM2's, and the texts that differ from it in the default system turn only; line breaks as they are and written \\n."""
    if not GGUF.exists():
        subprocess.run([sys.executable, ROOT / "examples/fetch-demo.py", "--out", GGUF.parent], check=True)
    own, _ = next(texts_of(GGUF))
    plain = re.sub(r"{% if loop.first.*?{% endif %}", "", own, flags=re.S)
    other = own.replace("You are a helpful AI assistant named SmolLM, trained by Hugging Face", "You are a helpful assistant.")
    default = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    for text, name in ((own, "SmolLM2"), (other, "Qwen2"), (plain, "ChatML"), (default + plain, "ChatML with a default")):
        yield text, name
        # only line breaks inside strings are there in these texts
        yield text.replace("\n", "\\n"), name + ", escaped"


def conversations():
    texts = [
        "Hello", "", " ", "\n", "  leading and trailing  ", "\n\nlines\n\n", "\t\u00a0\u3000wide blanks\u2003\u205f", "\x1c\x1f\x85odd\x85\x1c",
        "\u200bzero width\u200b", "\ufeffmark", "na\u00efve caf\u00e9 \u0645\u0631\u062d\u0628\u0627 \u4f60\u597d \U0001f600", "a\x00b",
        "{{ 7 * 7 }}", "<|im_end|>", "[INST] x [/INST]", "'quoted' \"twice\" \\n", "one\r\ntwo",
    ]
    answers = texts + [
        "<think>\nwhy\n</think>\n\nbecause", "<think></think>x", "why</think>because", "<think>a</think>b</think>c", "a<think>b\n\n</think>\n\n\nc\n",
        "<think>never closed", "\n</think>\n", "<think>\n\n</think>\n\n",
    ]
    say = lambda role, content: {"role": role, "content": content}
    result = []
    for i, text in enumerate(texts):
        result.append([say("user", text), say("assistant", texts[(i * 7 + 3) % len(texts)])])
        if i % 2:
            result.append([say("system", text), say("user", texts[(i * 5 + 2) % len(texts)]), say("assistant", texts[(i * 3 + 1) % len(texts)])])
    for i, answer in enumerate(answers):
        turns = [say("user", "q1"), say("assistant", answer), say("user", " q2 "), say("assistant", answers[(i * 11 + 5) % len(answers)])]
        result.append(turns if i % 3 else [say("system", "Be brief. ")] + turns)
    result += [
        [say("user", "only a question")],
        [say("system", "only a system turn")],
        [say("assistant", "only an answer")],
        [say("assistant", "a"), say("assistant", "<think>r</think>b")],
        [say("user", "a"), say("user", "b")],
        [say("user", "a"), say("system", "late"), say("assistant", "b")],
        [say("user", "q"), say("assistant", "<think>\nx\n</think>\ny"), say("assistant", "z")],
        [say("user", "q"), say("assistant", "p"), say("user", "<tool_response>\n5\n</tool_response>"), say("assistant", "five")],
        [say("user", "q"), say("assistant", "<think>t</think>p"), say("user", "<tool_response>5</tool_response>"), say("assistant", "")],
        [say("user", "q"), say("assistant", "p") | {"reasoning_content": "\nbecause\n"}],
        [say("user", "q"), say("assistant", "<think>in</think>p") | {"reasoning_content": "out"}],
        [say("user", "q"), say("assistant", "p") | {"reasoning_content": ""}, say("user", "q"), say("assistant", "p") | {"reasoning_content": None}],
    ]
    return result


def tool_conversations():
    """Calls of tools and their results, {"messages", "tools"}: for the families whose built-ins render them."""
    say = lambda role, content, **more: {"role": role, "content": content, **more}
    call = lambda name, arguments, number="abcdefghi": {"type": "function", "id": number, "function": {"name": name, "arguments": arguments}}
    result = lambda content, number="abcdefghi", name="weather": say("tool", content, tool_call_id=number, name=name)
    fields = {
        "place": {"type": "string", "description": " a city "},
        "days": {"type": "integer", "description": "how many"},
        "units": {"type": "object", "additionalProperties": {"type": "string"}, "description": "names"},
    }
    weather = {"type": "function", "function": {"name": "weather", "description": 'The "weather" of a place.',
               "parameters": {"type": "object", "properties": fields, "required": ["place"]}}}
    now = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
    one = say("assistant", "", tool_calls=[call("weather", {"place": "Ulm \u00e9", "days": 2})])
    two = say("assistant", "I look", tool_calls=[call("weather", {"place": "A"}), call("now", {}, "ihgfedcba")])
    talks = [
        [say("user", " hi ")],
        [say("user", "hi"), say("assistant", " yo "), say("user", "weather?"), one, result('{"t": 22.5}'), say("assistant", "22.5 degrees")],
        [say("user", "weather?"), two, result("1"), result("2", "ihgfedcba", "now"), say("assistant", "done"), say("user", "thanks")],
        [say("user", "weather?"), one, result("1"), say("assistant", "<think>\nso\n</think>\n\nboth")],
        [say("user", "weather?"), one | {"reasoning_content": "I must"}, result("1")],
    ]
    return [{"messages": ([say("system", " Be brief. ")] if i % 2 == with_tools else []) + talk, "tools": [weather, now] if with_tools else None}
            for with_tools in (0, 1) for i, talk in enumerate(talks)]


def render(text, talk, prompt, bos, eos):
    special = {"bos_token": bos, "eos_token": eos}
    messages, tools = (talk["messages"], talk["tools"]) if isinstance(talk, dict) else (talk, None)
    try:
        rendered, _ = render_jinja_template([messages], tools=tools, chat_template=text, add_generation_prompt=prompt, date_string="26 Jul 2024", **special)
    except jinja2.TemplateError:  # the template's own raise_exception
        return None
    return rendered[0]


def settle(path, text, check):
    """Writes the file, or says whether it is as it should be."""
    if not check:
        path.write_text(text)
    elif path.read_text() != text:
        print(f"{path}: differs from what is rendered now")
        return False
    return True


def check_own(talks, tool_talks):
    """The built-in texts, each against what the models' own rendered."""
    good = True
    for name, own in [(path.stem, path.read_text()) for path in sorted(TEMPLATES.glob("*.jinja"))]:
        for other in ("llama3.1", "llama3.2") if name == "llama3.1" else (name,):
            if not (OUT / f"chat-{other}.json").exists():
                print(f"{other}: no reference")
                continue
            expected = json.loads((OUT / f"chat-{other}.json").read_text())
            bos, eos = SPECIAL.get(name, SPECIAL["llama3"])
            for i, (messages, both) in enumerate(zip(talks, expected, strict=True)):
                if {"whole": render(own, messages, False, bos, eos), "prompt": render(own, messages, True, bos, eos)} != both:
                    print(f"{name}.jinja: conversation {i} is not rendered as {other}'s own text does")
                    good = False
            print(f"{other}: our own text, {len(talks)} conversations")
    for name in WITH_TOOLS:
        own, bos, eos = (TEMPLATES / f"{name}.jinja").read_text(), *SPECIAL["llama3"]
        for i, (talk, both) in enumerate(zip(tool_talks, json.loads((OUT / f"chat-tools-{name}.json").read_text()), strict=True)):
            if {"whole": render(own, talk, False, bos, eos), "prompt": render(own, talk, True, bos, eos)} != both:
                print(f"{name}.jinja: conversation {i} with tools is not rendered as the model's own text does")
                good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    known, talks, tool_talks, done = KNOWN, conversations(), tool_conversations(), {}
    good = settle(OUT / "chat-conversations.json", json.dumps(talks) + "\n", options.check)
    good = settle(OUT / "chat-tools-conversations.json", json.dumps(tool_talks) + "\n", options.check) and good
    for text, source in (*package_texts(), *demo_texts(), *(pair for file in options.file for pair in texts_of(file))):
        key = xxh3_128(text.removesuffix("\n").encode())
        if key not in known:
            print(f'not known: {source}: ({key[0]:#018x}, {key[1]:#018x}): "NAME",')
            good = good and source in options.file
            continue
        name = known[key]
        bos, eos = SPECIAL.get(name, SPECIAL["llama3"])
        rendered = [{"whole": render(text, m, False, bos, eos), "prompt": render(text, m, True, bos, eos)} for m in talks]
        if done.setdefault(name, rendered) != rendered:
            sys.exit(f"{source}: renders otherwise than an earlier text of the same name, {name}")
        good = settle(OUT / f"chat-{name}.json", json.dumps(rendered) + "\n", options.check) and good
        if name in WITH_TOOLS:
            both = [{"whole": render(text, t, False, bos, eos), "prompt": render(text, t, True, bos, eos)} for t in tool_talks]
            good = settle(OUT / f"chat-tools-{name}.json", json.dumps(both) + "\n", options.check) and good
        print(f"{name}: {len(talks)} conversations, {source}")
    good = check_own(talks, tool_talks) and good
    for name in sorted(set(known.values()) - set(done)):
        print(f"{name}: not checked, no file with its text was given")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
