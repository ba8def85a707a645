#!/usr/bin/env python3
"""Writes src/token/bert_table.inc: what BertNormalizer removes, blanks and strips, and what BertPreTokenizer takes for punctuation, as the
installed `tokenizers` has it. Run by hand after an update of `tokenizers`, and look at what changes."""

from pathlib import Path

from tokenizers import normalizers, pre_tokenizers

OUT = Path(__file__).resolve().parents[2] / "src" / "token" / "bert_table.inc"


def bert(**on):
    return normalizers.BertNormalizer(**{"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False, **on})


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    clean, chinese, accents, cut = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True), pre_tokenizers.BertPreTokenizer()
    tables = {name: [] for name in ("removed", "blanks", "chinese", "marks", "punctuation", "white")}
    for c in [*range(0xD800), *range(0xE000, 0x110000)]:
        ch = chr(c)
        parts = [text for text, _ in cut.pre_tokenize_str(f"a{ch}b")]
        tables["removed"] += [c] * (clean.normalize_str(ch) == "")
        tables["blanks"] += [c] * (clean.normalize_str(ch) == " ")
        tables["chinese"] += [c] * (chinese.normalize_str(ch) == f" {ch} ")
        tables["marks"] += [c] * (accents.normalize_str(ch) == "")
        tables["punctuation"] += [c] * (parts == ["a", ch, "b"])
        tables["white"] += [c] * (parts == ["a", "b"])
    lines = ["/* Made by tests/reference/token_bert.py. Ranges of code points, ascending. */"]
    for name, points in tables.items():
        lines.append(f"static const struct unicode_range {name}[] = {{")
        line = "       "
        for first, last in ranges(points):
            part = f" {{0x{first:X}, 0x{last:X}}},"
            if len(line) + len(part) > 130:
                lines.append(line)
                line = "       "
            line += part
        lines += [line, "};"]
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
