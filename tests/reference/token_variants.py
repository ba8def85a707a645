"""Small tokenizers that between them use every part of tokenizer.json that Roundhouse reads. Imported by token_reference.py.

A variant is a tokenizer.json without its model, and the name of one of a few shared models, so that all of them fit one small file.
"""
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPACE = "\u2581"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Expressions of published tokenizers, and some that use what those do not.
EXPRESSIONS = {
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cjk": r"[一-龥぀-ゟ゠-ヿ]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "classes": r"\w+|\d+|\h+|[^\w\s]+",
    "brackets": r"[[:alpha:]]+|[[:digit:]]+|[[:punct:]]+|[[:^space:]]",
    "not": r"\W+|\D+|\S+",
    "words": r"\b\w+\b|\B.\B",
    "lines": r"^.*$|\R",
    "ends": r"\A\s+|\s+\z|\s\Z",
    "behind": r"(?<=\p{L})\p{N}|(?<![aeiou])[bcdfg]|(?<=^|a)b",
    "ahead": r"\p{L}(?=\p{N})|\p{L}(?!\p{L})",
    "lazy": r"<.+?>|a{2,3}?|b{1,}|c{,2}|.{3}",
    "atomic": r"(?>a+)b|[ab]++c?+|(x)(?:y)*+",
    "cased": r"(?i)[a-z]+|σ|é|\p{Lu}",
    "cased_not": r"(?i)[^a-zß]+|(?-i:ABC)|(?i:К)",
    "flags": "(?m:a.b)|(?x: c  d # comment\n )|(?#note)e(?i)f|g",
    "scripts": r"\p{Greek}+|\p{Cyrillic}+|\p{Hiragana}+|\p{Katakana}+|\p{Hangul}+|\p{Arabic}+|\p{Thai}+|\p{^Latin}",
    "marks": r"\p{L}\p{M}*|\P{L}+",
    "categories": r"\p{Lu}|\p{Ll}+|\p{Lt}|\p{Lm}|\p{Nl}|\p{No}|\p{Pd}|\p{Ps}|\p{Sm}|\p{Sc}|\p{So}|\p{Zs}|\p{Cf}|\p{Co}|\p{Cn}",
    "properties": r"\p{Alphabetic}+|\p{Uppercase}|\p{White_Space}+|\p{Emoji}+|\p{Extended_Pictographic}",
    "empty": r"x*",
    "escapes": r"\x41|\x{e9}|\u4f60|\t|\n|\e|\0|[\x{1F600}-\x{1F64F}]|[\]\-\\a]|[^]-a]",
}


def added(contents):
    """[(text, flags)] as tokenizer.json has them; ids follow the shared models, which all have 1,200 tokens or fewer."""
    out = []
    for i, (text, flags) in enumerate(contents):
        entry = {"id": 100000 + i, "content": text, "single_word": "w" in flags, "lstrip": "l" in flags, "rstrip": "r" in flags,
                 "normalized": "n" in flags, "special": "s" in flags}
        out.append(entry)
    return out


def byte_level(prefix=False, expression=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": expression}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def metaspace(scheme="always", cut=True, replacement=SPACE):
    return {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": cut}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def strip(left, right):
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def variant(name, model, normalizer=None, pre=None, decoder=None, post=None, tokens=()):
    return {"name": name, "model": model, "tokenizer": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(tokens),
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post, "decoder": decoder}}


def template(before, after, tokens):
    piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [piece(t) for t in before] + [text] + [piece(t) for t in after],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": ids, "tokens": [t] * len(ids)} for t, ids in tokens.items()}}


FLAGGED = [("<x>", "wlrns"), ("<y>", "l"), ("<z>", "r"), ("WORD", "w"), ("word_", "wn"), ("Fancy", "n"), ("hello", ""), ("<s>", "s"), ("</s>", "sl"),
           ("<|im_start|>", "s"), ("<|im_end|>", "sr"), ("<|im_end|>>", ""), (" of", "lr"), ("é", "n"), ("e\u0301", ""), ("字", "w"), ("\n\n", ""), ("İ", "n")]


# The library panics where a Strip decoder with `stop` meets an empty text, so none of these can.
def variants():
    byte_decoder = byte_level()
    llama_decoder = sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                             {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    blanks = replace(" ", SPACE)
    out = []
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        out.append(variant("normalizer " + form, "chars", normalizer={"type": form}))
    for left, right in ((True, False), (False, True), (True, True)):
        out.append(variant(f"normalizer Strip {left} {right}", "sp", normalizer=strip(left, right), pre=metaspace("first")))
    out += [
        variant("normalizer Replace string", "sp", normalizer=replace("the", "THE"), pre=metaspace()),
        variant("normalizer Replace expression", "sp", normalizer=replace(r"\s+", " ", "Regex"), pre=metaspace()),
        variant("normalizer Replace nothing", "sp", normalizer=replace(r"\p{N}*", "#", "Regex"), decoder={"type": "ByteFallback"}),
        variant("normalizer Prepend", "sp", normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "ab"}, blanks), tokens=FLAGGED),
        variant("normalizer Sequence", "byte", normalizer=sequence("normalizers", {"type": "NFKC"}, sequence("normalizers", {"type": "Lowercase"}, strip(True, True)),
                replace("''", "\"")), pre=byte_level(), decoder=byte_decoder, tokens=FLAGGED),
        variant("normalizer NFC, added tokens", "byte", normalizer={"type": "NFC"}, pre=byte_level(), decoder=byte_decoder, tokens=FLAGGED),
        variant("normalizer Lowercase, added tokens", "sp", normalizer={"type": "Lowercase"}, decoder=llama_decoder, tokens=FLAGGED),
    ]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            tag = behavior + (" inverted" if invert else "")
            out.append(variant("split expression " + tag, "byte", pre=sequence("pretokenizers", split(r"\s|[aeiou]|\p{N}", behavior, invert), byte_level(expression=False)), decoder=byte_decoder))
            out.append(variant("split string " + tag, "sp", pre=split(" ", behavior, invert, "String"), decoder=llama_decoder))
            out.append(variant("split empty " + tag, "sp", pre=split("a*", behavior, invert), decoder=llama_decoder))
    for name, expression in EXPRESSIONS.items():
        out.append(variant("expression " + name, "byte", pre=sequence("pretokenizers", split(expression), byte_level(expression=False)), decoder=byte_decoder))
        out.append(variant("expression alone " + name, "sp", pre=split(expression, "Removed", True)))
    for prefix in (False, True):
        for expression in (False, True):
            out.append(variant(f"ByteLevel {prefix} {expression}", "byte", pre=byte_level(prefix, expression), decoder=byte_decoder, tokens=FLAGGED))
    for individual in (False, True):
        digits = {"type": "Digits", "individual_digits": individual}
        out.append(variant(f"Digits {individual}", "byte", pre=sequence("pretokenizers", digits, byte_level()), decoder=byte_decoder))
        out.append(variant(f"Digits alone {individual}", "chars", pre=digits))
    for scheme in ("first", "never", "always"):
        for cut in (False, True):
            out.append(variant(f"Metaspace {scheme} {cut}", "sp", pre=metaspace(scheme, cut), decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace(scheme, cut)), tokens=FLAGGED))
        out.append(variant(f"Metaspace {scheme} after Split", "sp", pre=sequence("pretokenizers", split(r"\d"), metaspace(scheme, True, "_")), decoder=metaspace(scheme, True, "_")))
        out.append(variant(f"Metaspace {scheme} after NFC, Prepend", "sp", normalizer=sequence("normalizers", {"type": "NFC"}, {"type": "Prepend", "prepend": "e"}),
                           pre=sequence("pretokenizers", split("[a-e]"), metaspace(scheme))))
        out.append(variant(f"Metaspace {scheme} after Replace", "sp", normalizer=sequence("normalizers", replace("<", ""), replace("a", "xyz")),
                           pre=sequence("pretokenizers", split("[xt]"), metaspace(scheme)), tokens=FLAGGED))
    out += [
        variant("decoder none", "sp"),
        variant("decoder Fuse", "sp", decoder={"type": "Fuse"}),
        variant("decoder ByteFallback", "sp", decoder={"type": "ByteFallback"}, tokens=FLAGGED),
        variant("decoder Strip", "sp", decoder={"type": "Strip", "content": "e", "start": 2, "stop": 0}),
        variant("decoder Replace expression", "sp", decoder=sequence("decoders", replace(r"[aeiou]|\p{Han}", "*", "Regex"), replace("", "-"), {"type": "Fuse"})),
        variant("decoder Sequence", "sp", pre=metaspace(), decoder=sequence("decoders", sequence("decoders", {"type": "ByteFallback"}, {"type": "Fuse"}), replace(SPACE, " "), {"type": "Strip", "content": " ", "start": 1, "stop": 0})),
        variant("decoder Strip right", "fused", decoder={"type": "Strip", "content": "e", "start": 0, "stop": 1}),
        variant("decoder ByteLevel on text", "sp", decoder=byte_decoder, tokens=FLAGGED),
        variant("template", "byte", pre=byte_level(), decoder=byte_decoder, tokens=[("<s>", "s"), ("</s>", "s")],
                post=template(["<s>"], ["</s>", "two"], {"<s>": [5], "</s>": [6], "two": [7, 8]})),
        variant("template in Sequence", "byte", pre=byte_level(), decoder=byte_decoder, post=sequence("processors", byte_level(), template(["<s>"], [], {"<s>": [5]}))),
        variant("post ByteLevel", "byte", pre=byte_level(), decoder=byte_decoder, post=byte_level(True)),
        variant("unknown fused", "fused", pre=metaspace()),
        variant("unknown apart", "apart", pre=metaspace()),
        variant("unknown vanishes", "vanish", pre=metaspace()),
        variant("bytes in part", "some_bytes", pre=metaspace(), decoder=llama_decoder),
        variant("bytes in part, fused", "some_bytes_fused", pre=metaspace(), decoder=llama_decoder),
        variant("ignore merges", "ignore", pre=sequence("pretokenizers", split(LLAMA3), byte_level(expression=False)), decoder=byte_decoder,
                tokens=[("<|begin_of_text|>", "s"), ("<|eot_id|>", "s")]),
        variant("merges as strings", "strings", pre=byte_level(), decoder=byte_decoder),
        variant("no merges", "chars"),
    ]
    specials = [("[CLS]", "s"), ("[SEP]", "s"), ("[MASK]", "sl"), ("[UNK]", "s")]
    for clean in (False, True):
        for chinese in (False, True):
            for accents in (None, False, True):
                for lower in (False, True):
                    out.append(variant(f"BERT {clean} {chinese} {accents} {lower}", "words", normalizer={"type": "BertNormalizer", "clean_text": clean,
                               "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lower}, pre={"type": "BertPreTokenizer"},
                               decoder={"type": "WordPiece", "prefix": "##", "cleanup": lower}, tokens=specials,
                               post={"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}))
    out.append(variant("WordPiece alone", "few_words", decoder={"type": "WordPiece", "prefix": "@", "cleanup": True}))
    return out


def trained(texts, size, pre, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[], limit_alphabet=300,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if isinstance(pre, pre_tokenizers.ByteLevel) else []))
    import json
    model = json.loads(tokenizer.to_str())["model"]
    return [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])], model["merges"]


def model(tokens, merges, **options):
    base = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False}
    return dict(base, vocab={t: i for i, t in enumerate(tokens)}, merges=merges, **{}) | options


def shared_models(texts):
    tokens, merges = trained(texts, 1200, pre_tokenizers.ByteLevel(add_prefix_space=False))
    # no NUL: the test reads these models with a JSON library that has no NUL in keys
    plain, plain_merges = trained([t for t in texts if t.isascii() and "\0" not in t], 700, pre_tokenizers.Metaspace(prepend_scheme="always"))
    all_bytes = [f"<0x{b:02X}>" for b in range(256)]
    some_bytes = [t for i, t in enumerate(all_bytes) if i % 16 < 13]
    letters = [chr(c) for c in range(0x20, 0x17F)] + ["é", "e\u0301", "\u0301", "\u0323", "你", "好", "i\u0307", "ß"]
    letters = list(dict.fromkeys(t for t in letters if len(t) == 1))
    # WordPiece: letters, their continuations, and runs of letters that the byte-pair model found
    runs = [t.replace(SPACE, "") for t in plain if len(t.replace(SPACE, "")) > 1]
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + t for t in letters] + [p + t for t in runs for p in ("", "##")]
    pieces = list(dict.fromkeys(pieces))
    words = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
             "vocab": {t: i for i, t in enumerate(pieces)}}
    few = ["[UNK]", "a", "@b", "ab", "@c", "the", "@re", "@e", "t", "h", "@h", " ", "@ "]
    few_words = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "@", "max_input_chars_per_word": 9,
                 "vocab": {t: i for i, t in enumerate(few)}}
    return {
        "words": words,
        "few_words": few_words,
        "byte": model(tokens, merges),
        "strings": model(tokens, [a + " " + b for a, b in merges]),
        "ignore": model(tokens, merges[::2][:200] and [m for m in merges if len(m[0]) + len(m[1]) < 4], ignore_merges=True),
        "sp": model(["<unk>"] + all_bytes + plain, plain_merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True),
        "chars": model(["<unk>"] + letters, [], unk_token="<unk>"),
        "fused": model(["<unk>"] + plain, plain_merges, unk_token="<unk>", fuse_unk=True),
        "apart": model(["<unk>"] + plain, plain_merges, unk_token="<unk>"),
        "vanish": model(plain, plain_merges),
        "some_bytes": model(["<unk>"] + some_bytes + plain, plain_merges, unk_token="<unk>", byte_fallback=True),
        "some_bytes_fused": model(["<unk>"] + some_bytes + plain, plain_merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True),
    }
