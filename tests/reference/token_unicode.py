#!/usr/bin/env python3
"""Writes src/token/unicode_table.inc: what the installed `tokenizers` library takes each code point for.

Run as:  build/venv/bin/python tests/reference/token_unicode.py src/token/unicode_table.inc     (about a minute)

The library holds four Unicode versions at once (its regular expressions, its normal forms, Rust's own characters, Rust's `regex`), so
nothing here is taken from a Unicode file: every code point is put through the library and the answer is written down. Where two of its
parts agree, one table serves both, and an assertion below says so; a later library that breaks one must be looked at by a person.
"""
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
import tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, ALL))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi Braille
Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan
Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Garay Georgian Glagolitic Gothic Grantha
Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited
Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki
Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen
Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean
Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian Old_Italic Old_North_Arabian
Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa
Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo
Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan
Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square""".split()


def regex_set(expression):
    """The code points that one character of this expression matches."""
    split = pre_tokenizers.Split(Regex(expression + "+"), "removed", invert=True)
    found = set()
    for piece, _ in split.pre_tokenize_str(TEXT):
        found.update(map(ord, piece))
    return found


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def runs(mapping):
    """(c, d) pairs as (first, last, stride, delta)."""
    out, by_delta = [], {}
    for c, d in mapping:
        by_delta.setdefault(d - c, []).append(c)
    for delta, points in by_delta.items():
        points.sort()
        i = 0
        while i < len(points):
            stride = points[i + 1] - points[i] if i + 1 < len(points) else 1
            if stride > 2:
                stride = 1
            j = i
            while j + 1 < len(points) and points[j + 1] - points[j] == stride:
                j += 1
            out.append((points[i], points[j], stride, delta))
            i = j + 1
    return sorted(out)


def write_rows(out, items):
    line = "\t"
    for item in items:
        if len(line) + len(item) > 132:
            out.write(line.rstrip() + "\n")
            line = "\t"
        line += item + ", "
    out.write(line.rstrip() + "\n};\n\n")


def write_ranges(out, name, comment, points):
    out.write(f"/* {comment} */\nstatic const struct unicode_range {name}[] = {{\n")
    write_rows(out, [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(points)])


def write_runs(out, name, comment, pairs):
    out.write(f"/* {comment} */\nstatic const struct unicode_run {name}[] = {{\n")
    write_rows(out, [f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}" for a, b, s, d in runs(pairs)])


def write_steps(out, name, comment, value_of):
    out.write(f"/* {comment} */\nstatic const uint32_t {name}[] = {{\n")
    items, before = [], None
    for c in range(0x110000):
        value = value_of.get(c, 0)
        if value != before:
            items.append(f"0x{c << 8 | value:x}")
            before = value
    write_rows(out, items)


def single_word_neighbours():
    """Code points that keep a single_word token from matching."""
    tokenizer = Tokenizer(models.BPE({"U": 0}, [], unk_token="U"))
    tokenizer.add_tokens([AddedToken("<X>", single_word=True, normalized=False)])
    return {c for c in ALL if 1 not in tokenizer.encode("<X>" + chr(c)).ids}


def rstrip_neighbours():
    tokenizer = Tokenizer(models.BPE({"U": 0}, [], unk_token="U"))
    tokenizer.add_tokens([AddedToken("<X>", lstrip=True, rstrip=True, normalized=False)])
    return {c for c in ALL if len(tokenizer.encode("<X>" + chr(c)).ids) == 1}


def case_pairs(category):
    """(c, d), d matched by (?i:c). Only letters that have case in some version of Unicode can have one."""
    lower = normalizers.Lowercase()
    cased = [c for c in ALL if c > 0x7F and category[c][0] in "LMNS" and (category[c] in ("Lu", "Ll", "Lt") or
             lower.normalize_str(chr(c)) != chr(c) or chr(c).upper() != chr(c) or chr(c).lower() != chr(c))]
    cased += list(range(ord("A"), ord("Z") + 1)) + list(range(ord("a"), ord("z") + 1))
    text = "".join(chr(c) + "\n" for c in sorted(cased))
    pairs = []
    for c in cased:
        split = pre_tokenizers.Split(Regex("(?i:%s)" % chr(c)), "removed", invert=True)
        for piece, _ in split.pre_tokenize_str(text):
            if len(piece) == 1 and ord(piece) != c:
                pairs.append((c, ord(piece)))
    return pairs


def inert_in_normal_forms():
    """Code points that this library's normal forms take for plain starters, while a newer (or Python's) Unicode may not."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    inert = set()
    for c in ALL:
        ch = chr(c)
        marked = "a\u0345" + ch  # U+0345 has the highest combining class: any other mark moves before it
        if unicodedata.category(ch) == "Cn" or nfd.normalize_str(marked) != unicodedata.normalize("NFD", marked) \
                or nfkd.normalize_str(ch) != unicodedata.normalize("NFKD", ch):
            assert nfd.normalize_str(ch) == ch and nfkd.normalize_str(ch) == ch and nfd.normalize_str(marked) == marked, hex(c)
            inert.add(c)
    return inert


def main(path):
    category = {}
    for name in CATEGORIES:
        if name != "Cs":
            for c in regex_set("\\p{%s}" % name):
                category[c] = name
    of = lambda *names: {c for c, v in category.items() if v in names or v[0] in names}
    script = {}
    for i, name in enumerate(SCRIPTS):
        for c in regex_set("\\p{%s}" % name):
            assert c not in script
            script[c] = i + 1
    space = regex_set("\\s")
    alphabetic, upper, lower = (regex_set("\\p{%s}" % n) for n in ("Alphabetic", "Uppercase", "Lowercase"))
    word = regex_set("\\w")
    assert set(ALL) - word == regex_set("\\W")
    assert regex_set("\\d") == regex_set("[\\d]") == of("Nd")
    assert space == regex_set("[\\s]") == regex_set("[[:space:]]")
    assert space == {c for c in ALL if normalizers.Strip().normalize_str(chr(c)) == ""} == rstrip_neighbours()
    assert regex_set("[[:punct:]]") == of("P", "S") and regex_set("[[:cntrl:]]") == of("Cc") and regex_set("[[:blank:]]") == of("Zs") | {9}
    assert regex_set("[[:alpha:]]") == alphabetic and regex_set("[[:alnum:]]") == alphabetic | of("Nd")
    assert regex_set("[[:upper:]]") == upper and regex_set("[[:lower:]]") == lower
    base_word = alphabetic | of("M", "Nd", "Pc")
    assert base_word == regex_set("[\\w]") == regex_set("[[:word:]]")
    assert single_word_neighbours() == base_word | {0x200C, 0x200D}
    numeric = {ord(p) for p, _ in pre_tokenizers.Digits(False).pre_tokenize_str("x".join(map(chr, ALL))) if len(p) == 1 and p != "x"}
    assert numeric >= of("N")
    lowered = {c: normalizers.Lowercase().normalize_str(chr(c)) for c in ALL}
    assert [c for c in ALL if len(lowered[c]) != 1] == [0x130]
    with open(path, "w") as out:
        out.write(f"""/* What `tokenizers` {tokenizers.__version__} takes each code point for. Written by tests/reference/token_unicode.py: do not edit.
 * Included by unicode.c only. */
/* clang-format off */

""")
        write_steps(out, "category_steps", "first << 8 | general category (enum unicode_category), up to the next entry's first",
                    {c: CATEGORIES.index(v) for c, v in category.items()} | {c: CATEGORIES.index("Cs") for c in range(0xD800, 0xE000)})
        write_steps(out, "script_steps", "first << 8 | index into script_names, up to the next entry's first", script)
        out.write("static const char *const script_names[] = {\n")
        write_rows(out, ['""'] + [f'"{s}"' for s in SCRIPTS])
        write_ranges(out, "white_space", "\\s, and what lstrip, rstrip and Strip take", space)
        write_ranges(out, "other_alphabetic", "Alphabetic and neither L nor Nl", alphabetic - of("L", "Nl"))
        assert alphabetic >= of("L", "Nl") and upper >= of("Lu") and lower >= of("Ll")
        write_ranges(out, "other_uppercase", "Uppercase and not Lu", upper - of("Lu"))
        write_ranges(out, "other_lowercase", "Lowercase and not Ll", lower - of("Ll"))
        assert word >= base_word
        write_ranges(out, "other_word", "\\w outside brackets, and neither Alphabetic, M, Nd nor Pc", word - base_word)
        write_ranges(out, "other_numeric", "numeric for Digits, and not N", numeric - of("N"))
        write_ranges(out, "emoji", "\\p{Emoji}", regex_set("\\p{Emoji}"))
        write_ranges(out, "pictographic", "\\p{Extended_Pictographic}", regex_set("\\p{Extended_Pictographic}"))
        write_ranges(out, "normal_inert", "starters that no normal form changes, whatever another Unicode version says", inert_in_normal_forms())
        write_runs(out, "lower_runs", "Lowercase; U+0130 alone becomes two (i, U+0307)", [(c, ord(v)) for c, v in lowered.items() if len(v) == 1 and ord(v) != c])
        write_runs(out, "case_runs", "c and each other code point that (?i:c) matches", case_pairs(category))
        out.write("/* clang-format on */\n")


if __name__ == "__main__":
    main(sys.argv[1])
