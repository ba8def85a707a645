"""Data frames out of an R package's lazy-load database (Rdata.rdx, Rdata.rdb), with the standard library only.

The index (.rdx) is a gzipped R object: name -> (offset, length) into the .rdb, and how blocks there are compressed. A block is the plain
length in four bytes, for kinds 2 and 3 a letter (0 stored, 2 bzip2, Z raw LZMA2), then the compressed bytes of one serialized R object
(XDR, versions 2 and 3, as "R Internals" describes it). Only what data sets are made of is read: vectors, lists, factors, attributes.
"""

import bz2
import gzip
import lzma
import pathlib
import struct
import zlib


class Value(list):
    """A vector or list with its attributes."""

    def __init__(self, items=(), attributes=None):
        super().__init__(items)
        self.attributes = attributes or {}


class Reader:
    def __init__(self, data):
        self.data, self.at, self.references = data, 0, []

    def bytes(self, count):
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("a serialized R object ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def int(self):
        return struct.unpack(">i", self.bytes(4))[0]

    def length(self):
        count = self.int()
        return count if count != -1 else (self.int() << 32) + (self.int() & 0xFFFFFFFF)

    def object(self):
        if self.bytes(2) != b"X\n":
            raise ValueError("not an R object in XDR format")
        version = self.int()
        self.bytes(8)  # the versions of R that wrote it and that can read it
        if version == 3:
            self.bytes(self.int())  # the native encoding
        elif version != 2:
            raise ValueError(f"serialization version {version} is not known")
        return self.item()

    def pairs(self, flags):
        """A pairlist: tag -> value. Its own attributes are read and left out."""
        result = {}
        while flags & 255 == 2:
            if flags & 0x200:
                self.item()
            tag = self.item() if flags & 0x400 else len(result)
            result[tag] = self.item()
            flags = self.int()
        if flags & 255 != 254:
            raise ValueError("a pairlist does not end in NULL")
        return result

    def vector(self, kind):
        count = self.length()
        if kind in (10, 13):  # logical, integer; NA is the least integer
            return [None if x == -(2**31) else x for x in struct.unpack(f">{count}i", self.bytes(4 * count))]
        if kind == 14:
            return list(struct.unpack(f">{count}d", self.bytes(8 * count)))
        if kind == 24:
            return list(self.bytes(count))
        return [self.item() for _ in range(count)]  # strings, lists, expressions

    def alternative(self):
        """ALTREP: a vector stored by how it is made."""
        info, state, attributes = self.pairs(self.int()), self.item(), self.pairs(self.int())
        name = next(iter(info.values()))
        if name == "compact_intseq":
            count, first, step = (int(x) for x in state)
            state = range(first, first + count * step, step)
        elif name.startswith("wrap_"):
            state = state[0]
        else:
            raise ValueError(f"ALTREP class {name} is not known")
        return Value(state, attributes or getattr(state, "attributes", None))

    def item(self):
        flags = self.int()
        kind = flags & 255
        if kind in (254, 253, 252, 251, 242, 241):  # NULL, the global environment and other constants
            return None
        if kind == 255:  # something seen before
            return self.references[(flags >> 8 or self.int()) - 1]
        if kind == 1:  # symbol
            self.references.append(self.item())
            return self.references[-1]
        if kind in (247, 249, 250):  # environments known by name
            self.int()
            self.references.append([self.item() for _ in range(self.int())])
            return self.references[-1]
        if kind == 2:
            return self.pairs(flags)
        if kind == 9:
            count = self.int()
            return None if count == -1 else self.bytes(count).decode("latin-1" if flags >> 12 & 4 else "utf-8")
        if kind == 238:
            return self.alternative()
        if kind not in (10, 13, 14, 16, 19, 20, 24):
            raise ValueError(f"R type {kind} is not known")
        items = self.vector(kind)
        return Value(items, self.pairs(self.int()) if flags & 0x200 else None)


def decompress(block, kind):
    plain_length, = struct.unpack(">I", block[:4])
    if kind == 1:
        data = zlib.decompress(block[4:])
    elif block[4:5] == b"0":
        data = block[5:]
    elif block[4:5] == b"2":
        data = bz2.decompress(block[5:])
    elif block[4:5] == b"Z":
        data = lzma.decompress(block[5:], lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME}])
    else:
        raise ValueError(f"block compression {block[4:5]!r} is not known")
    if len(data) != plain_length:
        raise ValueError("a block does not have the length that it names")
    return data


def named(value):
    return dict(zip(value.attributes["names"], value))


def read_frames(folder, names):
    """{name: {column: list}} of the data frames `names` in the package's data folder. Factors come as their labels."""
    folder = pathlib.Path(folder)
    index = named(Reader(gzip.decompress((folder / "Rdata.rdx").read_bytes())).object())
    places, kind = named(index["variables"]), int(index["compressed"][0])
    blocks = (folder / "Rdata.rdb").read_bytes()
    frames = {}
    for name in names:
        offset, length = (int(x) for x in places[name])
        columns = named(Reader(decompress(blocks[offset : offset + length], kind)).object())
        for column, values in columns.items():
            levels = values.attributes.get("levels")
            if levels:
                columns[column] = [levels[i - 1] if i else None for i in values]
        frames[name] = columns
    return frames
