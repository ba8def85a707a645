"""Parquet files by pyarrow and by datasets, and the rows that our reader is to make of them: parquet/NAME.parquet and NAME.jsonl. Without
arguments it remakes the committed files; with --check it draws 300 others, of all types, encodings, compressions and page layouts, and has
tests/parquet/test_parquet compare them (make build/release/tests/parquet/test_parquet first).

What a row becomes: src/parquet/parquet.h. The expected rows are made here from what pyarrow reads back, not from what was written."""

import datetime
import decimal
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "parquet")
MADE = 300
WORDS = ["a", "", "Grüße", "日本語", "the quick brown fox", "\n", "\\", "x" * 300, "🦊", "tab\t", '"quoted"', "0", "the quick brown dog"]


# ---- what is expected ----


def of_parts(parts, unit, is_time):
    """A time of day, or one since 1970, in parts of a second."""
    each = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds, part = divmod(parts, each)
    text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
    text = text[11:] if is_time else text
    return text + (f".{part:0{len(str(each)) - 1}d}" if part else "")


def stored_unit(unit):
    return "ms" if unit == "s" else unit  # Parquet has no seconds


def scaled(value, unit):
    return value * 1000 if unit == "s" else value


def expect(value, kind):
    """The JSON of one value of an Arrow type; times come as integers (see readable)."""
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_dictionary(kind):
        return expect(value, kind.value_type)
    if pa.types.is_struct(kind):
        made = {kind.field(i).name: expect(value[kind.field(i).name], kind.field(i).type) for i in range(kind.num_fields)}
        return {name: part for name, part in made.items() if part is not None}
    if pa.types.is_map(kind):
        return {name: expect(part, kind.item_type) for name, part in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [expect(part, kind.value_type) for part in value]
    if pa.types.is_floating(kind):
        return float(value) if math.isfinite(value) else None
    if pa.types.is_decimal(kind):
        return float(value)
    if pa.types.is_date(kind):
        return value.isoformat()
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return value  # replaced in rows_of
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind):
        return None
    if pa.types.is_uint64(kind) and value >= 2**63:
        return float(value)
    return value


def rows_of(path):
    table = pq.read_table(path, arrow_extensions_enabled=True)
    columns = {}
    for name in table.column_names:
        column, kind = table[name], table.schema.field(name).type
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
            whole = column.cast(pa.int32() if kind in (pa.time32("s"), pa.time32("ms")) else pa.int64()).to_pylist()
            columns[name] = [
                None if v is None else of_parts(scaled(v, kind.unit), stored_unit(kind.unit), pa.types.is_time(kind)) for v in whole
            ]
        else:
            columns[name] = [expect(v, kind) for v in column.to_pylist()]
    return [{name: columns[name][i] for name in columns} for i in range(table.num_rows)]


def write_expected(path, rows):
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


# ---- files of all kinds ----


def draw_value(draw, kind, nulls):
    if draw.random() < nulls or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {kind.field(i).name: draw_value(draw, kind.field(i).type, nulls) for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return [(name, draw_value(draw, kind.item_type, nulls)) for name in draw.sample(["a", "b", "ü", "long name"], draw.randrange(4))]
    if pa.types.is_fixed_size_list(kind):
        return [draw_value(draw, kind.value_type, nulls) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [draw_value(draw, kind.value_type, nulls) for _ in range(draw.choice([0, 1, 2, 3, 20]))]
    if isinstance(kind, pa.JsonType):
        return json.dumps(draw.choice([{"a": [1, None, {"b": "ü"}]}, [], "text", 5, None, {"role": "user", "content": "q"}]))
    if pa.types.is_dictionary(kind):
        return draw_value(draw, kind.value_type, 0)
    if pa.types.is_boolean(kind):
        return draw.random() < draw.choice([0.02, 0.5])
    if pa.types.is_unsigned_integer(kind):
        return draw.choice([draw.randrange(2**kind.bit_width), draw.randrange(9)])
    if pa.types.is_integer(kind):
        return draw.choice([draw.randrange(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1)), draw.randrange(-9, 9)])
    if pa.types.is_float16(kind):
        return struct.unpack("e", struct.pack("e", draw.uniform(-9, 9)))[0]
    if pa.types.is_floating(kind):
        return draw.choice([draw.uniform(-1e9, 1e9), 0.0, math.nan, math.inf, 1e-30])
    if pa.types.is_decimal(kind):
        return decimal.Decimal(draw.randrange(-(10**9), 10**9)).scaleb(-kind.scale)
    if pa.types.is_date(kind):
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=draw.randrange(-200000, 200000))
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        each = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return draw.randrange(86400 * each) if pa.types.is_time(kind) else draw.randrange(-(10**9) * each, 9 * 10**9 * each)
    if pa.types.is_fixed_size_binary(kind):
        return bytes(draw.randrange(256) for _ in range(kind.byte_width))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return draw.choice([b"plain", b"\xff\xfe", b"", "ü".encode()])
    return draw.choice(WORDS) * draw.choice([1, 1, 1, 7]) + draw.choice(["", str(draw.randrange(1000))])


FLAT = [
    pa.string(), pa.string(), pa.string(), pa.large_string(), pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint64(), pa.uint32(),
    pa.uint8(), pa.float32(), pa.float64(), pa.float16(), pa.bool_(), pa.binary(), pa.binary(5), pa.date32(), pa.timestamp("s"),
    pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    pa.decimal128(12, 3), pa.decimal128(38, 4), pa.dictionary(pa.int32(), pa.string()), pa.json_(), pa.null(),
]  # fmt: skip


def is_nested(kind):
    """pa.array makes lists and structs of it."""
    of = pa.types
    return not (of.is_timestamp(kind) or of.is_time(kind) or of.is_dictionary(kind) or of.is_null(kind) or isinstance(kind, pa.JsonType))


NESTED = [kind for kind in FLAT if is_nested(kind)]


def draw_type(draw, depth):
    choice = draw.random()
    if depth == 0 and choice < 0.4:
        return draw.choice(FLAT)
    if depth > 3 or choice < 0.4:
        return draw.choice(NESTED)
    if choice < 0.65:
        return draw.choice([pa.list_, pa.list_, pa.large_list])(draw_type(draw, depth + 1))
    if choice < 0.7:
        return pa.list_(draw.choice([pa.int32(), pa.string()]), 3)
    if choice < 0.77:
        return pa.map_(pa.string(), draw_type(draw, depth + 1))
    names = ["role", "content", "name", "tool_calls", "x"][: draw.randrange(1, 6)]
    return pa.struct([pa.field(name, draw_type(draw, depth + 1), nullable=draw.random() < 0.8) for name in names])


def is_required(kind):
    """Such a field's values may not be null; neither may what is below it, so that draws stay simple."""
    return pa.types.is_struct(kind) and any(
        not kind.field(i).nullable or is_required(kind.field(i).type) for i in range(kind.num_fields)
    ) or (hasattr(kind, "value_type") and not pa.types.is_dictionary(kind) and is_required(kind.value_type)) or (
        pa.types.is_map(kind) and is_required(kind.item_type)
    )


ENCODINGS = {
    "string": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "large_string": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "int64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "int32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "bool": ["PLAIN", "RLE"],
    "float": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "double": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "fixed_size_binary[5]": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
}


def make_drawn(path, seed):
    draw = random.Random(seed)
    rows, nulls = draw.choice([0, 1, 7, 100, 100, 1000]), draw.choice([0, 0.1, 0.1, 0.7, 1])
    fields, columns, encodings = [], [], {}
    for i in range(draw.randrange(1, 7)):
        name = draw.choice(["text", "messages", "column ü", "a.b"]) + str(i)
        kind = draw_type(draw, 0)
        share = 0 if is_required(kind) else nulls
        values = [draw_value(draw, kind, share) for _ in range(rows)]
        if draw.random() < 0.3:  # runs of equal values
            values = [values[j // 50] for j in range(rows)]
        fields.append(pa.field(name, kind, nullable=share > 0 or draw.random() < 0.7 or pa.types.is_null(kind)))
        storage = kind.storage_type if isinstance(kind, pa.JsonType) else kind
        column = pa.array(values, storage)
        columns.append(pa.ExtensionArray.from_storage(kind, column) if isinstance(kind, pa.JsonType) else column)
        if str(kind) in ENCODINGS:
            encodings[name] = draw.choice(ENCODINGS[str(kind)])
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    options = {
        "compression": draw.choice(["none", "snappy", "gzip", "zstd"]),
        "data_page_version": draw.choice(["1.0", "2.0"]),
        "version": draw.choice(["1.0", "2.4", "2.6"]),
        "data_page_size": draw.choice([64, 1000, 1 << 20]),
        "write_batch_size": draw.choice([1, 10, 1024]),
        "row_group_size": draw.choice([1, 30, 1 << 20]) if rows <= 100 else draw.choice([700, 1 << 20]),
        "use_compliant_nested_type": draw.random() < 0.7,
        "write_page_checksum": draw.random() < 0.3,
        "write_page_index": draw.random() < 0.3,
        "use_content_defined_chunking": draw.choice([False, {"min_chunk_size": 200, "max_chunk_size": 900, "norm_level": 0}]),
        "dictionary_pagesize_limit": draw.choice([100, 1 << 20]),
    }
    if draw.random() < 0.5:
        options |= {"use_dictionary": False, "column_encoding": encodings}
    if options["version"] != "2.6":
        options["coerce_timestamps"] = "us"
        options["allow_truncated_timestamps"] = True
    pq.write_table(table, path, **options)


# ---- files whose layout pyarrow does not write ----


class Compact:
    """Thrift's compact protocol: structs as {id: (type, value)}."""

    BOOL, I32, I64, BINARY, LIST, STRUCT = 1, 5, 6, 8, 9, 12

    @staticmethod
    def varint(number):
        out = b""
        while number > 0x7F:
            out += bytes([number & 0x7F | 0x80])
            number >>= 7
        return out + bytes([number])

    @classmethod
    def value(cls, kind, value):
        if kind in (cls.I32, cls.I64):
            return cls.varint((value << 1) ^ (value >> 63))
        if kind == cls.BINARY:
            return cls.varint(len(value)) + value
        if kind == cls.LIST:
            item, items = value
            head = bytes([len(items) << 4 | item]) if len(items) < 15 else bytes([0xF0 | item]) + cls.varint(len(items))
            return head + b"".join(cls.value(item, each) for each in items)
        return cls.struct(value)

    @classmethod
    def struct(cls, fields):
        out, last = b"", 0
        for number, (kind, value) in sorted(fields.items()):
            out += bytes([(number - last) << 4 | kind]) + cls.value(kind, value)
            last = number
        return out + b"\0"


def element(name, repetition=None, kind=None, children=None, converted=None):
    fields = {4: (Compact.BINARY, name.encode())}
    for number, value in ((1, kind), (3, repetition), (5, children), (6, converted)):
        if value is not None:
            fields[number] = (Compact.I32, value)
    return fields


def levels(values):
    """RLE with length: values of one bit, packed, or of two."""
    width = max(max(values).bit_length(), 1)
    groups = (len(values) + 7) // 8
    bits = sum(value << width * i for i, value in enumerate(values))
    packed = Compact.varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
    return struct.pack("<I", len(packed)) + packed


def make_by_hand(path, schema, leaves, rows):
    """leaves: (type, path, repetition levels or None, definition levels or None, values as PLAIN bytes), one page each."""
    out, columns = b"PAR1", []
    for kind, names, repetitions, definitions, values in leaves:
        page = (levels(repetitions) if repetitions else b"") + (levels(definitions) if definitions else b"") + values
        count = len(definitions or repetitions)
        head = Compact.struct({
            1: (Compact.I32, 0), 2: (Compact.I32, len(page)), 3: (Compact.I32, len(page)),
            5: (Compact.STRUCT, {1: (Compact.I32, count), 2: (Compact.I32, 0), 3: (Compact.I32, 3), 4: (Compact.I32, 3)}),
        })  # fmt: skip
        meta = {
            1: (Compact.I32, kind), 2: (Compact.LIST, (Compact.I32, [0])), 3: (Compact.LIST, (Compact.BINARY, [n.encode() for n in names])),
            4: (Compact.I32, 0), 5: (Compact.I64, count), 6: (Compact.I64, len(head + page)), 7: (Compact.I64, len(head + page)),
            9: (Compact.I64, len(out)),
        }  # fmt: skip
        columns.append({2: (Compact.I64, len(out)), 3: (Compact.STRUCT, meta)})
        out += head + page
    group = {1: (Compact.LIST, (Compact.STRUCT, columns)), 2: (Compact.I64, len(out)), 3: (Compact.I64, rows)}
    footer = Compact.struct({
        1: (Compact.I32, 1), 2: (Compact.LIST, (Compact.STRUCT, schema)), 3: (Compact.I64, rows),
        4: (Compact.LIST, (Compact.STRUCT, [group])),
    })  # fmt: skip
    with open(path, "wb") as file:
        file.write(out + footer + struct.pack("<I", len(footer)) + b"PAR1")


def texts(*values):
    return b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)


REQUIRED, OPTIONAL, REPEATED, BYTES, UTF8, MAP, LIST = 0, 1, 2, 6, 0, 1, 3


def make_old_lists(folder):
    """Lists as older writers had them: each of these rows is {"l": ["a", "b"]}, {"l": []}, {"l": ["c"]}, or of structs."""
    plain = [{"l": ["a", "b"]}, {"l": []}, {"l": ["c"]}]
    structs = [{"l": [{"s": "a"}, {"s": "b"}]}, {"l": []}, {"l": [{"s": "c"}]}]
    repetitions, values = [0, 1, 0, 0], texts("a", "b", "c")
    root, leaf = element("schema", children=1), element("s", REQUIRED, BYTES, converted=UTF8)
    group = element("l", REQUIRED, children=1, converted=LIST)
    cases = {
        "bare": ([root, element("l", REPEATED, BYTES, converted=UTF8)], ["l"], plain),
        "bare-struct": ([root, element("l", REPEATED, children=1), leaf], ["l", "s"], structs),
        "two-level": ([root, group, element("x", REPEATED, BYTES, converted=UTF8)], ["l", "x"], plain),
        "array": ([root, group, element("array", REPEATED, children=1), leaf], ["l", "array", "s"], structs),
        "tuple": ([root, group, element("l_tuple", REPEATED, children=1), leaf], ["l", "l_tuple", "s"], structs),
        "bag": ([root, group, element("bag", REPEATED, children=1), leaf], ["l", "bag", "s"], plain),
        "keys": ([root, element("l", REQUIRED, children=1, converted=MAP), element("key_value", REPEATED, children=1), leaf], ["l", "key_value", "s"], plain),
    }  # fmt: skip
    for name, (schema, path, rows) in cases.items():
        file = os.path.join(folder, f"list-{name}")
        make_by_hand(file + ".parquet", schema, [(BYTES, path, repetitions, [1, 1, 0, 1], values)], 3)
        write_expected(file + ".jsonl", rows)
    bare, path, _ = cases["bare"]
    make_by_hand(os.path.join(folder, "no-start.parquet"), bare, [(BYTES, path, [1, 1, 0, 0], [1, 1, 0, 1], values)], 3)  # refused
    make_by_hand(os.path.join(folder, "no-end.parquet"), bare, [(BYTES, path, repetitions, [1, 1, 0, 1], values)], 2)  # refused


# ---- the committed files ----

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
CHAT = [
    {"messages": [{"role": "system", "content": "s", "tool_calls": None}, {"role": "user", "content": "q", "tool_calls": None},
                  {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
                                                                  {"type": "function", "function": {"name": "weather", "arguments": {"zip": "50667"}}}]},
                  {"role": "assistant", "content": "r", "tool_calls": None}], "tools": [TOOL]},
    {"messages": [{"role": "user", "content": "q2", "tool_calls": None}, {"role": "assistant", "content": "r2", "tool_calls": None}], "tools": []},
]  # fmt: skip


def make_committed(folder):
    import datasets

    datasets.disable_progress_bars()
    json_kind = datasets.Json()
    features = datasets.Features({
        "messages": datasets.List({"role": datasets.Value("string"), "content": datasets.Value("string"), "tool_calls": datasets.List(json_kind)}),
        "tools": datasets.List(json_kind),
    })  # fmt: skip
    datasets.Dataset.from_list(CHAT, features=features).to_parquet(f"{folder}/chat-json.parquet")
    datasets.Dataset.from_list(CHAT).to_parquet(f"{folder}/chat-structs.parquet")
    alpaca = [{"instruction": f"i{i}", "input": "in" if i % 2 else None, "output": f"o{i}", "text": None} for i in range(40)]
    datasets.Dataset.from_list(alpaca).to_parquet(f"{folder}/alpaca.parquet", batch_size=7)
    draw = random.Random(1)
    small = pa.table({"text": [draw.choice(WORDS) for _ in range(60)], "n": list(range(60))})
    for name, options in {
        "delta": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"}},
        "delta-lengths": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY", "n": "BYTE_STREAM_SPLIT"}},
        "gzip-checksum": {"compression": "gzip", "write_page_checksum": True},
        "pages-2": {"data_page_version": "2.0", "compression": "zstd", "data_page_size": 100, "write_batch_size": 10},
    }.items():
        pq.write_table(small, f"{folder}/{name}.parquet", **options)
    all_kinds = pa.schema([pa.field(f"{i}", kind) for i, kind in enumerate(FLAT)])
    nested = pa.struct([("l", pa.list_(pa.list_(pa.string()))), ("m", pa.map_(pa.string(), pa.int32())), ("s", pa.struct([("x", pa.bool_())]))])
    columns = []
    for field in all_kinds:
        values = pa.array([draw_value(draw, field.type, 0.3) for _ in range(9)], getattr(field.type, "storage_type", field.type))
        columns.append(pa.ExtensionArray.from_storage(field.type, values) if isinstance(field.type, pa.JsonType) else values)
    pq.write_table(pa.Table.from_arrays(columns, schema=all_kinds), f"{folder}/kinds.parquet")
    pq.write_table(
        pa.table({"nested": pa.array([draw_value(draw, nested, 0.3) for _ in range(30)], nested)}),
        f"{folder}/nested-item.parquet", use_compliant_nested_type=False, data_page_size=50, write_batch_size=5,
    )  # fmt: skip
    for name in sorted(os.listdir(folder)):
        if name.endswith(".parquet"):
            write_expected(os.path.join(folder, name[: -len(".parquet")] + ".jsonl"), rows_of(os.path.join(folder, name)))
    make_old_lists(folder)
    groups = pa.table({"text": [f"{i} " + "word " * 100 for i in range(1000)]})
    layout = {"row_group_size": 50, "data_page_size": 2000, "write_batch_size": 2, "use_dictionary": False}
    pq.write_table(groups, f"{folder}/groups.parquet", compression="zstd", **layout)  # of which the pages are counted
    for codec in ("lz4", "brotli"):  # refused
        pq.write_table(small, f"{folder}/{codec}.parquet", compression=codec)


def main():
    if "--check" not in sys.argv:
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.makedirs(FOLDER)
        make_committed(FOLDER)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = seed = 0
        while made < MADE:
            path = os.path.join(folder, f"{seed}.parquet")
            make_drawn(path, seed)
            seed += 1
            try:
                rows = rows_of(path)
            except (OSError, pa.ArrowInvalid) as fault:  # pyarrow does not read all that it writes
                print(f"seed {seed - 1}: left out: {fault}")
                continue
            write_expected(path[: -len("parquet")] + "jsonl", rows)
            made += 1
        program = os.path.join(HERE, "../../build/release/tests/parquet/test_parquet")
        return subprocess.run([program], env=os.environ | {"RH_PARQUET_FOLDER": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())
