#!/usr/bin/env python3
"""Writes tests/corpus/token_strings.bin: 10,000 strings to tokenize, each a little-endian uint32 length and that many bytes of UTF-8.

Run as:  build/venv/bin/python tests/reference/token_corpus.py tests/corpus/token_strings.bin
The strings are drawn by a fixed seed; token_reference.py says what `tokenizers` makes of them.
"""
import random
import struct
import sys
import unicodedata

SPECIALS = """<|endoftext|> <|im_start|> <|im_end|> <think> </think> <tool_call> <|object_ref_start|> <|fim_prefix|> <|start|> <|channel|> <|return|>
<|message|> <|begin_of_text|> <|end_of_text|> <|eot_id|> <|start_header_id|> <s> </s> <unk> <pad> [INST] <repo_name> <0x0A> <0xE4> <|endofprompt|>
<|im_start <|im_end|>> <<|im_end|> <x> <y> <z> WORD word_ Fancy""".split()
WORDS = """the of and hello Hello HELLO world don't I'll we've they're it's I'd I'm 'S 'LL O'Neil naïve café ÀÉÎ ﬁne ﬀ straße STRASSE İstanbul ıI
ſhort 'ſ K 3.14159 2026 1000000 ١٢٣ ५६ ½ ² ⅷ 12½ x² http://example.org/a?b=c&d=e foo_bar fooBar FooBAR __init__ snake_case camelCase def return
int main(void) { printf("%d\\n", 42); } a+b==c && !d || e->f <div class="x"> </div> {"key": [1, 2.5e-3, null]} #include <stdio.h> // /* */
SELECT * FROM t WHERE x='y'; git@github.com C:\\Users\\x ～ … — – “quoted” «guillemets» 你好，世界。 日本語テキスト ひらがな カタカナ ﾊﾝｶｸ 한국어 한글
조선말 Привет мир Ελληνικά ς Σ עברית العربيّة हिन्दी বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทย ລາວ မြန်မာ ខ្មែរ ქართული ᲥᲐᲠᲗᲣᲚᲘ Հայերեն አማርኛ
ᏣᎳᎩ ꭰꭱ ᠮᠣᠩᠭᠣᠯ བོད་ Việt ở ế Ệ ǅ ǆ Ǆ ﷺ ㍿ ㋿ ① ℃ Ⅻ ﬃ ẞ ŉ ǰ""".split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇩", "1️⃣", "❤️", "☺", "🫠", "🫨", "\U0001FAE9", "\U0001FAC6", "🧑🏿‍🚀", "🀄", "©", "™️"]
# blocks: old scripts, new ones (Unicode 15 to 17), planes with nothing in them
BLOCKS = [(0x20, 0x7E)] * 4 + [(0xA0, 0xFF)] * 2 + [(0x100, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4),
          (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x800, 0x8FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x10FF),
          (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x16FF), (0x1700, 0x18AF), (0x1900, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
          (0x2070, 0x20FF), (0x2100, 0x23FF), (0x2400, 0x2BFF), (0x2C00, 0x2E7F), (0x2E80, 0x303F), (0x3040, 0x31FF), (0x3200, 0x33FF),
          (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xA4D0, 0xA7FF), (0xA800, 0xABFF), (0xAC00, 0xD7A3), (0xD7B0, 0xD7FF), (0xE000, 0xE0FF), (0xF900, 0xFAFF),
          (0xFB00, 0xFDFF), (0xFE00, 0xFFFD), (0x10000, 0x1034F), (0x10380, 0x10FFF), (0x11000, 0x11FFF), (0x11380, 0x113FF), (0x11DE0, 0x11DE9),
          (0x12000, 0x123FF), (0x13000, 0x1345F), (0x13460, 0x143FF), (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x16FE0, 0x16FFF), (0x18800, 0x18DFF),
          (0x1B000, 0x1B16F), (0x1CC00, 0x1CEFF), (0x1D000, 0x1D7FF), (0x1D400, 0x1D7FF), (0x1E000, 0x1E94F), (0x1E5D0, 0x1E6FF), (0x1EC70, 0x1EEFF), (0x1F000, 0x1FAFF),
          (0x1FB00, 0x1FBFF), (0x20000, 0x2A6DF), (0x2A6E0, 0x323AF), (0x323B0, 0x33479), (0xE0000, 0xE01EF), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF)]
MARKS = [c for c in range(0x110000) if unicodedata.category(chr(c)).startswith("M")] + [0x897, 0x1ACF, 0x1ADD, 0x1AEB, 0x10EFD, 0x113B8, 0x113CE, 0x113D0, 0x11F41, 0x16129, 0x1E4EC, 0x1E5EE, 0x10D69]
SPACES = [" "] * 12 + ["\n"] * 4 + ["\t", "\r", "\r\n", "\n\n", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2009", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\x0b", "\x0c", "\x1c", "\x1f", "\x85"]


def code_point(rng):
    first, last = rng.choice(BLOCKS)
    c = rng.randint(first, last)
    return chr(c)


def blanks(rng):
    if rng.random() < 0.3:
        return rng.choice(SPACES) * rng.choice([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 100])
    return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5)))


def marked(rng):
    """A base with marks in any order, ready for normal forms to sort."""
    base = rng.choice(["a", "e", "o", "s", "é", "각", "가", "ᄀ", "か", "は", "ক", "க", "Ω", "\u0915", code_point(rng), ""])
    return base + "".join(chr(rng.choice(MARKS)) if rng.random() < 0.5 else rng.choice("\u0301\u0300\u0323\u0327\u0338\u0345\u0315\u05b0\u064b\u0651\u093c\u09be\u3099\u309a\u1161\u11a8") for _ in range(rng.randint(1, 6)))


def digits(rng):
    return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))


def letters(rng):
    alphabet = rng.choice(["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "etaoinshrdlu", "abAB", "аеиноптрс", "אבגד", "あいうえお", "的一是不了人我在有他"])
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 14)))


def punctuation(rng):
    return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…—·•§¶¿¡€£¥₿∑≠→✓★") for _ in range(rng.randint(1, 8)))


def controls(rng):
    return "".join(chr(rng.choice([0, 1, 7, 8, 27, 31, 127, 128, 133, 159, 0xAD, 0x61C, 0x200E, 0x202E, 0xFFF9, 0xFFFD, 0xFFFE, 0xFFFF, 0x1FFFF, 0x10FFFF])) for _ in range(rng.randint(1, 3)))


def repeated(rng):
    return rng.choice(["a", "=", "-", "ha", "\u2581", "é", "e\u0301", "字", "😀", "\n ", " \n", "1", "_", ".", "\\", "ab"]) * rng.choice([2, 3, 5, 9, 33, 70])


def string(rng):
    kinds = [(lambda r: r.choice(WORDS), 10), (letters, 4), (blanks, 6), (code_point, 4), (lambda r: "".join(code_point(r) for _ in range(r.randint(2, 6))), 2),
             (marked, 2), (digits, 2), (punctuation, 2), (lambda r: r.choice(EMOJI), 2), (controls, 1), (lambda r: r.choice(SPECIALS), 2), (repeated, 1)]
    makers, weights = [k[0] for k in kinds], [k[1] for k in kinds]
    out = ""
    for _ in range(rng.choice([1, 1, 2, 3, 4, 5, 6, 8, 12, 20])):
        out += rng.choices(makers, weights)[0](rng)
        if rng.random() < 0.4:
            out += " "
    return out.encode("utf-8", "surrogatepass").decode("utf-8", "ignore")


def strings():
    rng = random.Random(20261121)
    fixed = ["", " ", "\u180e", " \u180e ", "\n", "a", "\u2581", " a", "a ", "<s>", "<s> <s>", "a<s>b", " <|im_end|> \n", "\u0301", "\u0301\u0323a", "e\u0323\u0301", "e\u0301\u0323",
             "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0344", "\u2126", "\u212b", "\U0002f800", "\u0958", "a\u0345\u0301", "\u1e9b\u0323", "\U00011938", "\U000113c5", "\U00016d68", "a\u0897\u0301"]
    return fixed + [string(rng) for _ in range(10000 - len(fixed))]


def main(path):
    with open(path, "wb") as out:
        for text in strings():
            data = text.encode()
            out.write(struct.pack("<I", len(data)) + data)


if __name__ == "__main__":
    main(sys.argv[1])
