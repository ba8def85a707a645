#!/usr/bin/env python3
"""What transformers' AutoTokenizer makes of a text where tokenizer.json, tokenizer_config.json and special_tokens_map.json disagree, for
tests/token/test_tokenizer.c.

    build/venv/bin/python tests/reference/token_config.py [--check]

It writes tests/reference/token/config.json: files, a text and its ids for each case.
"""

import json
import pathlib
import sys
import tempfile

from transformers import AutoTokenizer

OUT = pathlib.Path(__file__).resolve().parent / "token/config.json"
VOCABULARY = {"a": 0, "b": 1, "<": 2, "/": 3, "s": 4, ">": 5, "<s>": 6, "</s>": 7, "<x>": 8}
TEXT = "ab<s>a</s><x>"


def template(*pieces):
    single = [{"Sequence": {"id": "A", "type_id": 0}} if piece == "A" else {"SpecialToken": {"id": piece, "type_id": 0}} for piece in pieces]
    tokens = {piece: {"id": piece, "ids": [VOCABULARY[piece]], "tokens": [piece]} for piece in pieces if piece != "A"}
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens}


POSTS = {
    "nothing": None,
    "ByteLevel": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "BOS": template("<s>", "A"),
    "BOS and EOS": template("<s>", "A", "</s>"),
}
FLAGS = ({}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}, {"add_bos_token": False, "add_eos_token": False},
         {"add_bos_token": None})


def added(*names):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": VOCABULARY[name], "content": name} | flags for name in names]


def case(name, post, tokens, config, special=None, text=TEXT):
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": []}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None, "pre_tokenizer": None,
                 "post_processor": post, "decoder": None, "model": model}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    with tempfile.TemporaryDirectory() as folder:
        for file, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config), ("special_tokens_map.json", special)):
            if content is not None:
                (pathlib.Path(folder) / file).write_text(json.dumps(content))
        made = AutoTokenizer.from_pretrained(folder)
    result = {"name": name, "tokenizer": tokenizer, "config": config, "text": text, "ids": made(text)["input_ids"]}
    return result | {"map": special, "bos": made.bos_token_id, "eos": made.eos_token_id} if special else result


def cases():
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    for name, post in POSTS.items():
        for flags in FLAGS:
            yield case(f"{name}, {json.dumps(flags)}", post, added("<s>", "</s>"), named | flags)
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        yield case(f"{key} is no added token", None, [], {key: "</s>"})
        yield case(f"{key} is no added token, an object", None, added("<s>"), {key: added("<x>")[0] | {"__type": "AddedToken"}})
    decoder = {"added_tokens_decoder": {"6": {key: value for key, value in added("<s>")[0].items() if key != "id"}}}
    for name, config in (("no name", {}), ("another name", {"eos_token": "</s>", "bos_token": "<s>"})):
        for listed, more in (("no added tokens", {}), ("added tokens", decoder)):
            special = {"eos_token": {key: value for key, value in added("<x>")[0].items() if key not in ("id", "special")}}
            yield case(f"a map, {name} in the configuration, {listed}", None, added("<s>"), config | more, special)
    yield from cases_of_more_tokens()


def cases_of_more_tokens():
    """Tokens of which only the configuration says that they are added or special, or that they take blanks along."""
    plain = {key: value for key, value in added("<s>")[0].items() if key not in ("id", "content")}

    def listed(**tokens):
        return {"added_tokens_decoder": {id[1:]: plain | flags for id, flags in tokens.items()}}

    new, other = {"content": "<new>"}, {"content": "<y>"}
    text = "ab<s> a</s><x> a<new>b <y>"
    for name, config in (("a token that the vocabulary has", listed(_8={"content": "<x>"})),
                         ("one that is not special", listed(_8={"content": "<x>", "special": False, "normalized": True})),
                         ("a new one", listed(_9=new)),
                         ("new ones with other ids", listed(_20=new, _6={"content": "<s>"}, _11=other)),
                         ("other flags", listed(_6={"content": "<s>", "rstrip": True})),
                         ("no flags", {"added_tokens_decoder": {"8": {"content": "<x>", "special": True}}}),
                         ("a new one that is the end", listed(_9=new | {"special": False}) | {"eos_token": "<new>"})):
        yield case(f"added_tokens_decoder has {name}", None, added("<s>", "</s>"), config, text=text)
    for name, config in (("additional_special_tokens", {"additional_special_tokens": ["<x>", "</s>"]}),
                         ("extra_special_tokens", {"extra_special_tokens": ["<x>"]}),
                         ("extra_special_tokens by name", {"extra_special_tokens": {"image_token": "<x>"}}),
                         ("a role of the model's own", {"image_token": "<x>"}),
                         ("a role that text needs not", {"cls_token": "<x>"}),
                         ("a role with flags", {"eos_token": added("<x>")[0] | {"__type": "AddedToken", "rstrip": True}})):
        yield case(f"special by {name}", None, added("<s>", "</s>"), config, text=text)
    yield case("special by a map's list", None, added("<s>"), {}, {"additional_special_tokens": ["<x>"]}, text=text)


def main():
    made = "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases()) + "\n]\n"
    if "--check" not in sys.argv:
        OUT.write_text(made)
    elif OUT.read_text() != made:
        sys.exit(f"{OUT} is not what transformers makes now")


if __name__ == "__main__":
    main()
