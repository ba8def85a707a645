#!/usr/bin/env python3
"""Writes what the installed `tokenizers` library makes of tests/corpus/token_strings.bin, for tests/token/test_reference.c.

Run from the repository's root, after token_corpus.py:
    build/venv/bin/python tests/reference/token_reference.py [path of SmolLM2's GGUF file]
It writes tests/corpus/token_variants.json, token_llama3.json and token_sentencepiece*.json (the tokenizers that are made here), and
tests/reference/token/NAME.crc. GPT-2, Qwen3 and GPT-OSS are read from ../shared/tokenizers and skipped, their files left alone, where
that folder is absent; SmolLM2 likewise without the path.

NAME.crc holds two little-endian uint32 for each string: CRC-32 of the ids (as little-endian uint32), and CRC-32 of the decoded text with
special tokens, a byte 0xFF, and the decoded text without. variants.crc holds, for each variant and each eighth string, their exclusive or.
samples.json has the ids of the first strings in full, to look at when something differs.
"""
import json
import lzma
import os
import struct
import sys
import zlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers, AddedToken

import token_corpus
import token_variants

SHARED = "../shared/tokenizers"
SAMPLES = {}


def checks(tokenizer, text):
    ids = tokenizer.encode(text).ids
    kept, skipped = (tokenizer.decode(ids, skip_special_tokens=skip).encode() for skip in (False, True))
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids)), zlib.crc32(kept + b"\xff" + skipped)


def write_reference(name, tokenizer, texts):
    with open(f"tests/reference/token/{name}.crc", "wb") as out:
        for text in texts:
            out.write(struct.pack("<2I", *checks(tokenizer, text)))
    SAMPLES[name] = [tokenizer.encode(text).ids for text in texts[:60]]


def smollm2(path):
    """transformers' GGUF reader does not know pre-tokenizer `smollm`, so this is built by hand."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens, kinds, merges = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges"))
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    return tokenizer


def llama3(texts):
    """Llama-3's rules: its expression, ignore_merges, BOS by a template; and whole words in the vocabulary that no merge makes."""
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(token_variants.LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=2500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    file = json.loads(tokenizer.to_str())
    vocab = file["model"]["vocab"]
    for word in "Ġhello printf straÃŁe ĠworldĠ naÃ¯ve ä½łå¥½ Ġ2026 123 ðŁĺĢ".split():
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                    processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B:1", special_tokens=[("<|begin_of_text|>", bos)])])
    return tokenizer


def sentencepiece(texts):
    """A SentencePiece-style vocabulary: (text, score, GGUF token type) each, and the same as tokenizer.json, where each way to make a
    token of two others is a merge, best score first, and among equal ones the longer left part."""
    tokens, merges = token_variants.trained(texts, 1800, pre_tokenizers.Metaspace(prepend_scheme="always"))
    made = [a + b for a, b in merges]
    single = [t for t in tokens if t not in set(made)]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)] + [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
    taken = {t for t, _, _ in pieces} | {"<x>"}
    made, single = ([t for t in dict.fromkeys(some) if t not in taken] for some in (made, single))
    pieces += [(t, -float(i), 1) for i, t in enumerate(made)] + [(t, -float(len(made) + i), 1) for i, t in enumerate(single)] + [("<x>", 0.0, 4)]
    vocab = {t: i for i, (t, _, _) in enumerate(pieces)}
    plain = {t for t, _, k in pieces if k == 1}
    all_merges = []
    for text, score, kind in pieces:
        if kind == 1:
            ways = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in plain and text[i:] in plain]
            all_merges += [(score, a, b) for a, b in ways]
    all_merges.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)  # as transformers' generate_merges
    tokenizer = Tokenizer(models.BPE(vocab, [(a, b) for _, a, b in all_merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, _, k in pieces if k in (2, 3)])
    tokenizer.add_tokens([AddedToken("<x>", normalized=False)])
    return tokenizer, pieces


def main():
    texts = token_corpus.strings()
    os.makedirs("tests/reference/token", exist_ok=True)
    for name, folder in (("gpt2", "gpt2"), ("qwen3", "qwen3"), ("gptoss", "gptoss")):
        path = f"{SHARED}/{folder}/tokenizer.json.xz"
        if os.path.exists(path):
            write_reference(name, Tokenizer.from_str(lzma.open(path).read().decode()), texts)
    if len(sys.argv) > 1:
        write_reference("smollm2", smollm2(sys.argv[1]), texts)
    tokenizer = llama3(texts)
    tokenizer.save("tests/corpus/token_llama3.json", pretty=False)
    write_reference("llama3", tokenizer, texts)
    tokenizer, pieces = sentencepiece(texts)
    tokenizer.save("tests/corpus/token_sentencepiece.json", pretty=False)
    json.dump(pieces, open("tests/corpus/token_sentencepiece_pieces.json", "w"), ensure_ascii=False, separators=(",", ":"))
    write_reference("sentencepiece", tokenizer, texts)
    shared, variants = token_variants.shared_models(texts), token_variants.variants()
    json.dump({"models": shared, "variants": variants}, open("tests/corpus/token_variants.json", "w"), ensure_ascii=False, separators=(",", ":"))
    with open("tests/reference/token/variants.crc", "wb") as out:
        for v in variants:
            tokenizer = Tokenizer.from_str(json.dumps(v["tokenizer"] | {"model": shared[v["model"]]}))
            for text in texts[::8]:
                ids, decoded = checks(tokenizer, text)
                out.write(struct.pack("<I", ids ^ decoded))
    json.dump(SAMPLES, open("tests/reference/token/samples.json", "w"), separators=(",", ":"))


if __name__ == "__main__":
    main()
