"""What transformers renders from the models' own chat templates, for tests/data/test_chat.c.

usage: build/venv/bin/python tests/reference/data_chat.py FILE...

Each FILE holds a template text: a .jinja, a tokenizer_config.json or a .gguf (all of a folder's when it is a folder). The text's hash must be in
src/data/chat_known.c, which says the built-in it belongs to; a text that is not there is reported with the line it would need. Texts are
not kept in the repository, only what they render: tests/reference/data/chat-NAME.json, beside the conversations themselves.
"""

import ctypes
import ctypes.util
import json
import pathlib
import re
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
OUT = HERE / "data"
KNOWN = HERE.parent.parent / "src/data/chat_known.c"
SPECIAL = {"llama2": ("<s>", "</s>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>")}


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3_128(data):
    function = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits
    function.restype = Hash
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = function(data, len(data))
    return value.high, value.low


def known_texts():
    pattern = r'UINT64_C\((0x\w+)\), UINT64_C\((0x\w+)\), "([^"]+)"'
    return {(int(h, 16), int(l, 16)): name for h, l, name in re.findall(pattern, KNOWN.read_text())}


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


def render(text, messages, prompt, bos, eos):
    special = {"bos_token": bos, "eos_token": eos}
    try:
        rendered, _ = render_jinja_template([messages], chat_template=text, add_generation_prompt=prompt, date_string="26 Jul 2024", **special)
    except Exception as fault:  # the template's own raise_exception
        if "must alternate" in str(fault):
            return None
        raise
    return rendered[0]


def main(files):
    if not files:
        sys.exit(__doc__)
    OUT.mkdir(exist_ok=True)
    known, talks = known_texts(), conversations()
    (OUT / "chat-conversations.json").write_text(json.dumps(talks) + "\n")
    done = {}
    for text, path in (pair for file in files for pair in texts_of(pathlib.Path(file))):
        key = xxh3_128(text.removesuffix("\n").encode())
        if key not in known:
            print(f"not known: {path}: {{UINT64_C({key[0]:#018x}), UINT64_C({key[1]:#018x}), \"NAME\"}},")
            continue
        name = known[key]
        bos, eos = SPECIAL.get(name, SPECIAL["llama3"])
        rendered = [{"whole": render(text, m, False, bos, eos), "prompt": render(text, m, True, bos, eos)} for m in talks]
        if done.setdefault(name, rendered) != rendered:
            sys.exit(f"{path}: renders otherwise than the text before that has the same name, {name}")
        (OUT / f"chat-{name}.json").write_text(json.dumps(rendered) + "\n")
        print(f"{name}: {len(talks)} conversations, from {path}")


main(sys.argv[1:])
