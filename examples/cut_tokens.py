"""Cuts text to a number of tokens of the model in a GGUF file, with the standard library only.

Byte-level BPE as the file's vocabulary of kind gpt2/smollm says: each digit by itself, then GPT-2's pattern, then merges by rank. Special
tokens are text like any other here: reviews hold none. Checked against Hugging Face's tokenizers by tests/reference/data_demo.py.
"""

import functools
import itertools
import re
import struct
import unicodedata

# \p{L} is [^\W_] once the digits are gone; \s is Python's without the four separators U+001C to U+001F.
SPACE = r"[^\S\x1c-\x1f]"
PIECE = re.compile(
    rf"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\s\w]|_|[\x1c-\x1f])+|{SPACE}+(?!\S|[\x1c-\x1f])|{SPACE}+"
)


def metadata(path, wanted):
    """{key: value} of the keys in `wanted` among a GGUF file's metadata."""
    scalars = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
    with open(path, "rb") as file:

        def scalar(form):
            return struct.unpack(form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(scalar("<Q"))
            if kind == 9:
                inner, count = scalar("<I"), scalar("<Q")
                return [value(inner) for _ in range(count)]
            return scalar(scalars[kind])

        if file.read(4) != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file")
        scalar("<I"), scalar("<Q")  # version, number of tensors
        found = {}
        for _ in range(scalar("<Q")):
            key = file.read(scalar("<Q")).decode()
            item = value(scalar("<I"))
            if key in wanted:
                found[key] = item
    return found


def byte_letters():
    """GPT-2's letter for each byte: itself where it prints, else the next from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printing)
    return {b: chr(b) for b in printing} | {b: chr(0x100 + i) for i, b in enumerate(others)}


class Cutter:
    def __init__(self, gguf):
        found = metadata(gguf, {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.merges"})
        if (found.get("tokenizer.ggml.model"), found.get("tokenizer.ggml.pre")) != (b"gpt2", b"smollm"):
            raise ValueError(f"{gguf}: only vocabularies of kind gpt2 with pre 'smollm' are known here")
        merges = (tuple(merge.decode().split(" ")) for merge in found["tokenizer.ggml.merges"])
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.letters = byte_letters()

    @functools.lru_cache(None)
    def token_bytes(self, piece):
        """The lengths in bytes of the tokens that a piece makes."""
        parts = [self.letters[b] for b in piece.encode()]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda i: self.rank.get((parts[i], parts[i + 1]), len(self.rank)))
            if (parts[best], parts[best + 1]) not in self.rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [len(part) for part in parts]

    def lengths(self, text):
        """The lengths in bytes of the text's tokens, in order."""
        is_digit = lambda letter: unicodedata.category(letter)[0] == "N"
        for digit, run in itertools.groupby(text, is_digit):
            for piece in run if digit else PIECE.findall("".join(run)):
                yield from self.token_bytes(piece)

    def cut(self, text, tokens):
        """The start of `text` that its first `tokens` tokens spell, less a character cut in two."""
        count = sum(itertools.islice(self.lengths(text), tokens))
        return text.encode()[:count].decode(errors="ignore")
