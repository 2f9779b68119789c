#!/usr/bin/python3
"""A second reader of Keel's snapshots, written from one page, ckpt/README.md, alone.

Owns nothing of the format. It is a check on that page: what the page says is enough to read a
snapshot, whoever wrote it, and what the page calls damage is refused here too. So it shares no
line with the C reader and takes no knowledge from it; where the two differ, the page decides, and
where the page does not say it, the page is mended before this file is.

Promises: every byte of what it opens is checked before it is believed, and an error ends all.
Leaves to others: speed, memory (files are read whole), writing, and going on with replicas.

    stranger.py verify  [--key FILE] [--plain] STEP_DIRECTORY
    stranger.py digests [--key FILE] [--plain] STEP_DIRECTORY          name dtype shape xxh3-128
    stranger.py read    [--key FILE] [--plain] STEP_DIRECTORY TENSOR [OFFSETS EXTENTS]   (1,0 2,3)
    stranger.py rebuild STEP_DIRECTORY RANK                       the shard, from its parity set
    stranger.py safetensors FILE                                       digests of an exported file

Exit codes: 0 done, 1 another error, 3 another key or none, 4 what is stored is not what was saved.
"""

import ctypes
import hashlib
import json
import math
import os
import re
import struct
import sys
import zlib

import xxhash

BLOCK = 4096
FLAG_DELTA, FLAG_SEALED = 1, 2
RAW, PLANES, DELTA, SAME = range(4)
RANKS_MAX, CHAIN_MAX, MANIFEST_MAX = 4096, 16, 8 << 20
NO_RANK = 0xFFFFFFFF

# number: name, bytes of an element, and for floats the bits of exponent and mantissa
DTYPES = {1: ("float32", 4, (8, 23)), 2: ("float64", 8, (11, 52)), 3: ("bfloat16", 2, (8, 7)),
          4: ("float16", 2, (5, 10)), 5: ("int32", 4, None), 6: ("int64", 8, None),
          7: ("uint8", 1, None),
          # of version 2
          8: ("bool", 1, None), 9: ("int8", 1, None), 10: ("int16", 2, None),
          11: ("uint16", 2, None), 12: ("uint32", 4, None), 13: ("uint64", 8, None),
          14: ("f8_e5m2", 1, None), 15: ("f8_e4m3", 1, None), 16: ("f8_e8m0", 1, None),
          17: ("f8_e4m3fnuz", 1, None), 18: ("f8_e5m2fnuz", 1, None), 19: ("complex64", 8, None)}
DTYPES_1 = 7  # the highest of version 1
ROUNDINGS = {(3, 1), (3, 2), (4, 1), (4, 2), (1, 2)}  # a copy's dtype, its master's


class Refused(Exception):
    """What is stored is not read, and why; `code` is the exit code."""
    code = 1


class Damaged(Refused):
    code = 4


class Forged(Damaged):
    pass


class Newer(Damaged):
    pass


class Mismatch(Damaged):
    pass


class OtherKey(Refused):
    code = 3


class NotCommitted(Refused):
    pass


def sure(condition, text, error=Damaged):
    if not condition:
        raise error(text)


def xxh64(data):
    return xxhash.xxh3_64_intdigest(data)


def xxh128(data):
    return xxhash.xxh3_128_digest(data)


def up(size, unit=BLOCK):
    return -(-size // unit) * unit


def zero(data):
    return not any(data)


def padded_text(field, pattern, what):
    text, _, rest = field.partition(b"\0")
    sure(len(text) < len(field) and zero(rest), f"{what}: not padded with NUL")
    sure(re.fullmatch(pattern, text), f"{what}: not a name")
    try:
        text = text.decode("utf-8")
    except UnicodeDecodeError:
        raise Damaged(f"{what}: not UTF-8") from None
    sure(not re.search("[\x80-\x9f]", text), f"{what}: a control character")
    return text


MEMBERS = {"format", "version", "run", "step", "attempt", "created_wall_ns", "identity", "metadata",
           "bases", "shards", "check"}
SEALED = {"key_check", "mac"}
SUMMARY = {"records", "file_bytes", "raw_bytes", "stored_bytes", "index_digest"}  # beside rank
RUN = rb"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}"
TENSOR_1 = rb'[!#-\[\]-~]{1,127}'
TENSOR = rb'[^\x00-\x1f\x7f]{1,127}'  # and UTF-8, without U+0080 to U+009F


# ---- keys and sealing -----------------------------------------------------------------------


def keyed(key, label, data, size=32):
    return hashlib.blake2b(label.ljust(16, b"\0") + bytes(data), key=key, digest_size=size).digest()


def read_key(path):
    with open(path, "rb") as file:
        text = file.read()
    if len(text) == 32:
        return text
    sure(re.fullmatch(rb"[0-9a-fA-F]{64}\n?", text), f"{path}: not a key", Refused)
    return bytes.fromhex(text.decode())


def open_sealed(key, nonce, extra, sealed):
    """XChaCha20-Poly1305 of libsodium; None if the tag does not fit."""
    sodium = ctypes.CDLL("libsodium.so.23")
    size = ctypes.c_ulonglong
    plain = ctypes.create_string_buffer(len(sealed))
    rc = sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(
        plain, None, None, bytes(sealed), size(len(sealed)), extra, size(len(extra)), nonce, key)
    return plain.raw[:len(sealed) - 16] if rc == 0 else None


# ---- codecs ---------------------------------------------------------------------------------


def integers(data, width):
    return struct.unpack(f"<{len(data) // width}{' BH I   Q'[width]}", data)


def from_integers(values, width):
    return struct.pack(f"<{len(values)}{' BH I   Q'[width]}", *values)


def decode_plane(kind, data, count):
    if kind == 0:
        sure(len(data) == count, "plain plane of another size")
        return data
    if kind == 1:
        inflate = zlib.decompressobj(wbits=-15)
        try:
            plane = inflate.decompress(data, count + 1)
        except zlib.error as error:
            raise Damaged(f"plane: {error}") from None
        sure(len(plane) == count and inflate.eof and not inflate.unused_data
             and not inflate.unconsumed_tail, "plane does not end where it should")
        return plane
    sure(kind == 2, f"a plane of kind {kind}", Newer)
    sure(len(data) == 1, "fill plane of another size")
    return bytes(data) * count


def join_planes(data, width, raw_bytes):
    """The elements before rotation: byte i of plane k is byte k of element i."""
    count, at = raw_bytes // width, 8 * width
    sure(raw_bytes % width == 0 and len(data) >= at, "planes of a wrong size")
    out = bytearray(raw_bytes)
    for k in range(width):
        kind, reserved, size = struct.unpack_from("<B3sI", data, 8 * k)
        sure(zero(reserved), "reserved bytes in a table of planes", Newer)
        sure(at + size <= len(data), "plane beyond its chunk")
        out[k::width] = decode_plane(kind, data[at:at + size], count)
        at += size
    sure(at == len(data), "bytes behind the last plane")
    return bytes(out)


def rotate_right(data, width):
    if width == 1:
        return data
    top, low = 8 * width - 1, (1 << (8 * width - 1)) - 1
    return from_integers([x >> 1 & low | (x & 1) << top for x in integers(data, width)], width)


def add_differences(data, base, width):
    mask = (1 << 8 * width) - 1
    pairs = zip(integers(data, width), integers(base, width))
    return from_integers([b + (z >> 1 ^ -(z & 1)) & mask for z, b in pairs], width)


def rounded(x, wide, narrow):
    """The bits of a float of format `narrow` that is nearest to the one with bits x, ties even."""
    (we, wm), (ne, nm) = wide, narrow
    sign = x >> we + wm << ne + nm
    exponent, mantissa = x >> wm & (1 << we) - 1, x & (1 << wm) - 1
    infinite = (1 << ne) - 1 << nm
    if exponent == (1 << we) - 1:
        return sign | infinite | ((mantissa >> wm - nm | 1 << nm - 1) if mantissa else 0)
    significand = mantissa | (1 << wm if exponent else 0)
    if not significand:
        return sign
    unit = max(exponent, 1) - ((1 << we - 1) - 1) - wm  # x is significand times 2 to the unit
    bias = (1 << ne - 1) - 1
    highest = max(unit + significand.bit_length() - 1, 1 - bias)
    shift = highest - nm - unit
    if shift > 0:
        rest, half = significand & (1 << shift) - 1, 1 << shift - 1
        significand >>= shift
        significand += rest > half or (rest == half and significand & 1)
    else:
        significand <<= -shift
    return sign | min((highest + bias - 1 << nm) + significand, infinite)


def nonfinite(data, dtype):
    _, width, form = DTYPES[dtype]
    if not form:
        return 0
    ones = (1 << form[0]) - 1 << form[1]
    return sum(x & ones == ones for x in integers(data, width))


# ---- shard ----------------------------------------------------------------------------------


class Record:
    def __init__(self, shard, number, block):
        name, self.dtype, ndim = struct.unpack_from("<128sII", block)
        self.shard, self.number = shard, number
        wide = shard.version == 2
        self.name = padded_text(name, TENSOR if wide else TENSOR_1, "tensor")
        sure(wide or self.dtype <= DTYPES_1, f"{self.name}: dtype of a later version")
        sure(self.dtype in DTYPES and ndim <= 8, f"{self.name}: dtype or dimensions")
        fields = [struct.unpack_from("<8Q", block, at) for at in (136, 200, 264)]
        sure(not any(any(f[ndim:]) for f in fields), f"{self.name}: more than its dimensions")
        self.shape, self.offset, self.extent = (f[:ndim] for f in fields)
        sure(all(o + e <= s for s, o, e in zip(self.shape, self.offset, self.extent)),
             f"{self.name}: box beyond its tensor")
        (self.raw_bytes, self.first, self.count, self.chunk_bytes, self.master, reserved,
         self.nonfinite) = struct.unpack_from("<QQIIIIQ", block, 328)
        sure(reserved == 0 and zero(block[368:]), f"{self.name}: reserved bytes", Newer)
        self.width = DTYPES[self.dtype][1]
        sure(self.raw_bytes == math.prod(self.extent) * self.width, f"{self.name}: size")
        sure(self.chunk_bytes % BLOCK == 0 and 1 << 18 <= self.chunk_bytes <= 1 << 20
             and self.count == -(-self.raw_bytes // self.chunk_bytes), f"{self.name}: chunks")

    def chunk_size(self, index):
        return min(self.chunk_bytes, self.raw_bytes - index * self.chunk_bytes)

    def read(self, begin, size):
        """Bytes of the box, dense and row-major."""
        out = bytearray()
        while size > 0:
            index, skip = divmod(begin, self.chunk_bytes)
            out += self.shard.chunk(self.first + index)[skip:skip + size]
            done = min(size, self.chunk_size(index) - skip)
            begin, size = begin + done, size - done
        return bytes(out)


class Chunk:
    def __init__(self, block):
        (self.place, self.raw_bytes, self.stored_bytes, self.codec, self.flags, self.raw_check,
         self.stored_check, self.base_check, self.base_rank, self.base_chunk, self.chain,
         reserved) = struct.unpack("<QIIIIQQQIIII", block)
        sure(self.codec <= SAME and self.flags <= 1 and reserved == 0,
             "a codec, flag or reserved byte that version 1 does not have", Newer)
        self.record = None


class Shard:
    """One shard file, all checks but those of what is in the chunks done."""

    def __init__(self, snapshot, data, rank, expected):
        self.snapshot, self.data, self.rank = snapshot, memoryview(data), rank
        self.decoded = {}
        sure(len(data) % BLOCK == 0 and len(data) >= 2 * BLOCK, "shard: size")
        self.header()
        self.footer(expected)
        self.check_places()
        if self.sealed and snapshot.key:
            self.open_key()

    def header(self):
        block = bytes(self.data[:BLOCK])
        (magic, version, size, step, attempt, rank, ranks, run, flags, reserved, base_step,
         base_attempt, self.salt, self.key_check) = struct.unpack_from("<8sIIQQII64sIIQQ32s16s",
                                                                       block)
        self.check = struct.unpack_from("<Q", block, 248)[0]
        sure(magic == b"KEELSHRD" and self.check == xxh64(block[:248] + bytes(8) + block[256:]),
             "shard: header")
        self.version = version
        sure(version in (1, 2) and size == BLOCK and flags <= 3 and reserved == 0
             and zero(block[176:248]) and zero(block[256:]), "shard: header", Newer)
        there = self.snapshot
        sure((padded_text(run, RUN, "run"), step, attempt, rank, ranks)
             == (there.run, there.step, there.attempt, self.rank, there.ranks),
             "shard: it belongs to something else", Mismatch)
        self.sealed = bool(flags & FLAG_SEALED)
        self.base = (base_step, base_attempt) if flags & FLAG_DELTA else None
        sure(self.base or (base_step, base_attempt) == (0, 0), "shard: base")
        sure(self.sealed or zero(block[128:176]), "shard: salt without a seal")
        sure(self.sealed == there.sealed, "shard: sealed, or the manifest is, but not both", Forged)

    def footer(self, expected):
        foot = bytes(self.data[-128:])
        (magic, version, size, index_at, index_bytes, records, chunks, raw, stored, file_bytes,
         digest, header_check, self.mac, check) = struct.unpack("<8sIIQQIIQQQ16sQ32sQ", foot)
        sure(magic == b"KEELFOOT" and check == xxh64(foot[:120]), "shard: footer")
        sure(version in (1, 2) and size == 128, "shard: footer", Newer)
        sure(version == self.version, "shard: header and footer of two versions")
        sure(header_check == self.check and file_bytes == len(self.data),
             "shard: the footer is of another file")
        sure(self.sealed or zero(self.mac), "shard: mac without a seal")
        sure({"records": records, "file_bytes": file_bytes, "raw_bytes": raw,
              "stored_bytes": stored, "index_digest": digest.hex()} == expected,
             "shard: not the one of the manifest")
        end = index_at + index_bytes
        sure(index_at % BLOCK == 0 and index_at >= BLOCK and end <= file_bytes - 128
             and index_bytes == records * 384 + chunks * 64, "shard: place of the index")
        self.index_at, self.index = index_at, bytes(self.data[index_at:end])
        sure(xxh128(self.index) == digest, "shard: index")
        sure(zero(self.data[end:-128]), "shard: bytes behind the index")
        self.parse_index(records, raw, stored)

    def parse_index(self, records, raw, stored):
        cut = records * 384
        self.records = [Record(self, i, self.index[i * 384:][:384]) for i in range(records)]
        self.chunks = [Chunk(self.index[at:at + 64]) for at in range(cut, len(self.index), 64)]
        sure(raw == sum(c.raw_bytes for c in self.chunks)
             and stored == sum(c.stored_bytes for c in self.chunks), "shard: sums of its chunks")
        count = 0
        for record in self.records:
            sure(record.first == count and count + record.count <= len(self.chunks),
                 f"{record.name}: chunks")
            for i in range(record.count):
                self.chunks[count + i].record = record
                self.check_chunk(self.chunks[count + i], record.chunk_size(i))
            count += record.count
            self.check_master(record)
        sure(count == len(self.chunks), "shard: chunks without a record")

    def check_chunk(self, chunk, raw_bytes):
        name, stores = chunk.record.name, chunk.codec != SAME
        sure(chunk.raw_bytes == raw_bytes, f"{name}: size of a chunk")
        sure(chunk.flags == (1 if self.sealed and stores else 0), f"{name}: seal of a chunk")
        size = chunk.stored_bytes - (32 if chunk.flags else 0)
        sure(size == raw_bytes if chunk.codec == RAW else 0 < size <= raw_bytes
             if stores else (size, chunk.place, chunk.stored_check) == (0, 0, xxh64(b""))
             and chunk.record.master > 0, f"{name}: what a chunk stores")
        if self.sealed:
            sure(chunk.raw_check == chunk.base_check == 0, f"{name}: checks of a sealed chunk")
        if chunk.codec == DELTA:
            sure(self.base and 1 <= chunk.chain <= CHAIN_MAX, f"{name}: a delta without base")
        else:
            sure((chunk.base_check, chunk.base_rank, chunk.base_chunk, chunk.chain)
                 == (0, 0, 0, 0), f"{name}: a base of what is no delta")

    def check_master(self, record):
        if record.master:
            sure(record.master <= len(self.records), f"{record.name}: master")
            master = self.records[record.master - 1]
            sure(not master.master and (record.dtype, master.dtype) in ROUNDINGS
                 and (record.offset, record.extent) == (master.offset, master.extent),
                 f"{record.name}: master")

    def check_places(self):
        """Chunks follow each other from the header to the index, with zeros up to each's block."""
        at = BLOCK
        for chunk in self.chunks:
            if chunk.codec == SAME:
                continue
            sure(chunk.place == at, f"{chunk.record.name}: place of a chunk")
            end, at = at + chunk.stored_bytes, at + up(chunk.stored_bytes)
            sure(zero(self.data[end:at]), "shard: bytes behind a chunk")
        sure(at == self.index_at, "shard: place of its index")

    def open_key(self):
        key, head = self.snapshot.key, bytes(self.data[:BLOCK])
        sure(keyed(key, b"keel key check", self.salt, 16) == self.key_check,
             "shard: sealed with another key", OtherKey)
        mac_key = keyed(key, b"keel shard", head[:160])
        signed = head + self.index + bytes(self.data[-128:-40])
        sure(hashlib.blake2b(signed, key=mac_key, digest_size=32).digest() == self.mac,
             "shard: mac", Forged)
        self.chunk_key = keyed(key, b"keel chunks", head[:160])

    def stored(self, number):
        """What a chunk stores, found whole; needs no key."""
        chunk = self.chunks[number]
        stored = bytes(self.data[chunk.place:chunk.place + chunk.stored_bytes])
        sure(xxh64(stored) == chunk.stored_check, f"{chunk.record.name}: chunk {number}, stored")
        return stored

    def unsealed(self, number):
        """What the codec stored, and the checks of raw and base bytes (of None: none is known)."""
        chunk, stored = self.chunks[number], self.stored(number)
        if not self.sealed:
            return stored, chunk.raw_check, chunk.base_check
        sure(self.snapshot.key, "sealed, and no key is given", OtherKey)
        if chunk.codec == SAME:
            return stored, None, 0
        extra = struct.pack("<QQIIIIII", self.check, number, chunk.raw_bytes, chunk.codec,
                            chunk.base_rank, chunk.base_chunk, chunk.chain, 0)
        plain = open_sealed(self.chunk_key, struct.pack("<Q16x", number), extra, stored)
        sure(plain is not None, f"{chunk.record.name}: chunk {number}, tag", Forged)
        return plain[16:], *struct.unpack_from("<QQ", plain)

    def chunk(self, number):
        """The raw bytes of a chunk."""
        if number not in self.decoded:
            chunk = self.chunks[number]
            data, raw_check, base_check = self.unsealed(number)
            raw = self.decode(number, data, base_check)
            sure(len(raw) == chunk.raw_bytes and raw_check in (None, xxh64(raw)),
                 f"{chunk.record.name}: chunk {number}, raw")
            self.decoded[number] = raw
        return self.decoded[number]

    def decode(self, number, data, base_check):
        chunk = self.chunks[number]
        record, width = chunk.record, chunk.record.width
        if chunk.codec == RAW:
            return data
        if chunk.codec == SAME:
            master = self.records[record.master - 1]
            first = (number - record.first) * record.chunk_bytes // width
            wide = master.read(first * master.width, chunk.raw_bytes // width * master.width)
            forms = DTYPES[master.dtype][2], DTYPES[record.dtype][2]
            return from_integers([rounded(x, *forms) for x in integers(wide, master.width)], width)
        joined = join_planes(data, width, chunk.raw_bytes)
        if chunk.codec == PLANES:
            return rotate_right(joined, width)
        shard = self.base_shard(chunk)
        base = shard.chunk(chunk.base_chunk)
        sure(xxh64(base) == base_check, f"{record.name}: chunk {number}, base")
        return add_differences(joined, base, width)

    def base_shard(self, chunk):
        """The shard in which the base of a delta is, which fits it."""
        shard = self.snapshot.base(self.base).shard(chunk.base_rank)
        sure(chunk.base_chunk < len(shard.chunks), f"{chunk.record.name}: number of its base")
        base = shard.chunks[chunk.base_chunk]
        sure(base.codec != SAME and base.chain == chunk.chain - 1
             and base.raw_bytes == chunk.raw_bytes
             and (shard.sealed or self.sealed or base.raw_check == chunk.base_check),
             f"{chunk.record.name}: its base is another")
        return shard

    def verify(self):
        for number, chunk in enumerate(self.chunks):
            self.stored(number)
            if chunk.codec == DELTA:
                self.base_shard(chunk).stored(chunk.base_chunk)
        if self.sealed and not self.snapshot.key:
            return
        for record in self.records:
            data = record.read(0, record.raw_bytes)
            sure(nonfinite(data, record.dtype) == record.nonfinite,
                 f"{record.name}: another number of elements that are not finite")


# ---- snapshot -------------------------------------------------------------------------------


def number(text):
    sure(isinstance(text, str) and re.fullmatch("0|[1-9][0-9]{0,19}", text)
         and int(text) < 1 << 64, "manifest: a number that is none")
    return int(text)


def members(pairs):
    sure(len(dict(pairs)) == len(pairs), "manifest: a member twice")
    return dict(pairs)


class Snapshot:
    """A committed snapshot, of which nothing is believed but what its checks vouch for."""

    def __init__(self, path, key=None, plain=False):
        self.path, self.key, self.plain = os.path.abspath(path), key, plain
        self.shards, self.bases = {}, {}
        parent, name = os.path.split(self.path)
        self.run = os.path.basename(parent)
        parts = re.fullmatch(r"step-(\d+)\.(\d+)", name)
        sure(parts and re.fullmatch(RUN, self.run.encode()), f"{path}: not a snapshot's", Refused)
        self.step, self.attempt = number(parts[1]), number(parts[2])
        sure(not os.path.islink(parent) and not os.path.islink(self.path), "a link", Refused)
        self.manifest()

    def bytes_of(self, name):
        path = os.path.join(self.path, name)
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def manifest(self):
        data = self.bytes_of("manifest.json")
        sure(data is not None, f"{self.path}: not committed", NotCommitted)
        sure(len(data) <= MANIFEST_MAX and re.search(rb'\n "check": "[0-9a-f]{32}"\n}\n\Z', data)
             and data[-36:-4] == xxh128(data[:-36]).hex().encode(), "manifest: check")
        try:
            told = json.loads(data.decode("ascii"), object_pairs_hook=members)
            sure((told["format"], told["version"]) == ("keel-manifest", 1), "manifest", Newer)
            sure((told["run"], number(told["step"]), number(told["attempt"]))
                 == (self.run, self.step, self.attempt), "manifest: of another snapshot", Mismatch)
            self.base_names = [(number(b["step"]), number(b["attempt"]))
                               for b in told.get("bases", [])]
            ranks = [shard.pop("rank") for shard in told["shards"]]
            sure(all(set(b) == {"step", "attempt"} for b in told.get("bases", []))
                 and all(set(s) == SUMMARY for s in told["shards"]), "manifest: members", Newer)
            number(told["created_wall_ns"])
            sure(re.fullmatch("[ -~]{0,64}", told["identity"])
                 and isinstance(told["metadata"], dict) and told.get("bases") != [], "manifest: members")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Damaged(f"manifest: {error!r}") from None
        self.sealed, self.ranks, self.expected = "mac" in told, len(ranks), told["shards"]
        sure(set(told) <= MEMBERS | (SEALED if self.sealed else set()), "manifest: members", Newer)
        sure(0 < self.ranks <= RANKS_MAX and ranks == list(range(self.ranks)), "manifest: ranks")
        sure(self.base_names == sorted(set(self.base_names)) and len(self.base_names) <= self.ranks
             and (self.step, self.attempt) not in self.base_names, "manifest: bases")
        self.check_mac(data)

    def check_mac(self, data):
        sure(self.sealed or self.plain or not self.key,
             "manifest: not sealed, and a key is given", Forged)
        if not self.sealed:
            return
        tail = re.search(rb'\n "key_check": "([0-9a-f]{32})",\n "mac": "([0-9a-f]{64})",\n'
                         rb' "check": "[0-9a-f]{32}"\n}\n$', data)
        sure(tail, "manifest: its end")
        if self.key:
            sure(keyed(self.key, b"keel key check", b"", 16).hex().encode() == tail[1],
                 "manifest: sealed with another key", OtherKey)
            sure(keyed(self.key, b"keel manifest", data[:tail.start(2)]).hex().encode() == tail[2],
                 "manifest: mac", Forged)

    def shard(self, rank):
        if rank not in self.shards:
            sure(rank < self.ranks, f"no rank {rank}")
            data = self.bytes_of(f"rank-{rank}.keel")
            sure(data is not None, f"rank-{rank}.keel: lost")
            self.shards[rank] = Shard(self, data, rank, self.expected[rank])
        return self.shards[rank]

    def base(self, name):
        if name not in self.bases:
            sure(name in self.base_names, "a base that the manifest does not name")
            path = os.path.join(os.path.dirname(self.path), "step-%d.%d" % name)
            try:
                self.bases[name] = Snapshot(path, self.key, self.plain)
            except NotCommitted as error:
                raise Damaged(f"base lost: {error}") from None
        return self.bases[name]

    def tensors(self):
        """name: its records, of all shards."""
        found = {}
        for rank in range(self.ranks):
            for record in self.shard(rank).records:
                found.setdefault(record.name, []).append(record)
        for name, records in found.items():
            sure(len({(r.dtype, r.shape) for r in records}) == 1, f"{name}: two dtypes or shapes")
        return found

    def read(self, records, offset, extent):
        """A box of a tensor, dense and row-major, from whatever records hold it."""
        width, out = records[0].width, bytearray(math.prod(extent) * records[0].width)
        filled = bytearray(math.prod(extent))
        for record in records:
            for source, target, count in runs(record.offset, record.extent, offset, extent):
                if not all(filled[target:target + count]):
                    out[target * width:(target + count) * width] = \
                        record.read(source * width, count * width)
                    filled[target:target + count] = b"\1" * count
        sure(all(filled), f"{records[0].name}: a hole")
        return bytes(out)

    def verify(self):
        for rank in range(self.ranks):
            self.shard(rank).verify()
        for records in self.tensors().values():
            covered(records)
        for number_ in sorted({n for n, _ in parity_names(self.path)}):
            Parity(self, number_).verify()


def strides(extent):
    return [math.prod(extent[i + 1:]) for i in range(len(extent))]


def runs(from_offset, from_extent, to_offset, to_extent):
    """What two boxes share, as (element in the one, element in the other, how many)."""
    low = [max(a, b) for a, b in zip(from_offset, to_offset)]
    high = [min(a + n, b + m)
            for a, n, b, m in zip(from_offset, from_extent, to_offset, to_extent)]
    size = [h - l for l, h in zip(low, high)]
    if any(n <= 0 for n in size):
        return
    cut = max(len(size) - 1, 0)  # dimensions from here on are one run
    while cut > 0 and size[cut] == from_extent[cut] == to_extent[cut]:
        cut -= 1
    length = math.prod(size[cut:])
    a, b = strides(from_extent), strides(to_extent)
    for flat in range(math.prod(size[:cut])):
        at_a = at_b = 0
        for i in reversed(range(len(size))):
            flat, at = divmod(flat, size[i]) if i < cut else (flat, 0)
            at_a += (low[i] + at - from_offset[i]) * a[i]
            at_b += (low[i] + at - to_offset[i]) * b[i]
        yield at_a, at_b, length


def covered(records):
    shape = records[0].shape
    filled = bytearray(math.prod(shape))
    for record in records:
        for _, at, count in runs(record.offset, record.extent, (0,) * len(shape), shape):
            filled[at:at + count] = b"\1" * count
    sure(all(filled), f"{records[0].name}: a hole")


# ---- parity files ---------------------------------------------------------------------------


def gf_tables():
    """tables[c] maps a byte to c times it, in GF(2^8) modulo 0x11d."""
    tables = [bytearray(256) for _ in range(256)]
    for a in range(256):
        power = a
        for bit in range(8):
            for b in range(1 << bit, 2 << bit):
                tables[a][b] = tables[a][b - (1 << bit)] ^ power
            power = power << 1 ^ (0x11d if power & 128 else 0)
    return [bytes(table) for table in tables]


GF = gf_tables()


def inverse(a):
    return GF[a].index(1)


def add(cell, coefficient, other):
    """cell + coefficient x other, of whole cells."""
    term = int.from_bytes(other.translate(GF[coefficient]), "little")
    return (int.from_bytes(cell, "little") ^ term).to_bytes(len(cell), "little")


def solve(rows):
    """rows: (coefficients, cell), as many as there are unknown cells; gives those."""
    rows = [(list(coefficients), cell) for coefficients, cell in rows]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][0][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = inverse(rows[i][0][i])
        rows[i] = [GF[scale][c] for c in rows[i][0]], rows[i][1].translate(GF[scale])
        for r in range(len(rows)):
            factor = rows[r][0][i] if r != i else 0
            if factor:
                rows[r] = ([c ^ GF[factor][b] for c, b in zip(rows[r][0], rows[i][0])],
                           add(rows[r][1], factor, rows[i][1]))
    return [cell for _, cell in rows]


def parity_names(path):
    """Set and member of each parity file of a snapshot."""
    found = (re.fullmatch(r"parity-(0|[1-9]\d*)\.(0|[1-9]\d*)\.keel", n) for n in os.listdir(path))
    return sorted((int(match[1]), int(match[2])) for match in found if match)


class ParityFile:
    """One member's parity file; its header is sound, records and footer are looked at on demand."""

    def __init__(self, snapshot, data, set_, member):
        self.data, self.member, block = data, member, data[:BLOCK]
        sure(len(block) == BLOCK and block[:8] == b"KEELPRTY"
             and struct.unpack_from("<Q", block, 248)[0]
             == xxh64(block[:248] + bytes(8) + block[256:]), "parity: header")
        (version, size, step, attempt, number_, member_, run, self.n, self.m, self.cell_bytes,
         reserved, self.stripes, file_bytes) = struct.unpack_from("<IIQQII64sIIIIQQ", block, 8)
        sure(version == 1 and size == BLOCK and reserved == 0 and zero(block[136:248])
             and zero(block[1280:]), "parity: header", Newer)
        sure((padded_text(run, RUN, "run"), step, attempt, number_, member_)
             == (snapshot.run, snapshot.step, snapshot.attempt, set_, member),
             "parity: it belongs to something else", Mismatch)
        n, m, cell = self.n, self.m, self.cell_bytes
        sure(2 <= n <= 64 and 1 <= m < n and member < n and set_ < 4096
             and 4096 <= cell <= 1 << 20 and cell & cell - 1 == 0, "parity: header")
        table = list(struct.iter_unpack("<QII", block[256:1280]))
        self.members = [(size, rank) for size, rank, _ in table[:n]]
        sure(all(reserved == 0 for _, _, reserved in table) and zero(block[256 + 16 * n:1280]),
             "parity: members", Newer)
        sure(all(rank < snapshot.ranks or (rank == NO_RANK and size == 0)
                 for size, rank in self.members), "parity: members")
        self.set_check = xxh64(block[:36] + bytes(4) + block[40:128] + bytes(8) + block[136:248]
                               + bytes(8) + block[256:])
        self.mine = [j for j in range(self.stripes) if (member - j) % n < m]
        sure(file_bytes == len(data) == 2 * BLOCK + len(self.mine) * (BLOCK + cell),
             "parity: size")

    def record(self, stripe):
        """Checks of all cells of a stripe, and the parity cell, which may be another."""
        at = BLOCK + self.mine.index(stripe) * (BLOCK + self.cell_bytes)
        block = self.data[at:at + BLOCK]
        magic, check, set_check, number_, member = struct.unpack_from("<8sQQQI", block)
        sure(magic == b"KEELSTRP" and check == xxh64(block[:8] + bytes(8) + block[16:]),
             f"parity: checks of stripe {stripe}")
        sure((set_check, number_, member) == (self.set_check, stripe, self.member),
             f"parity: stripe {stripe} is of another file")
        sure(zero(block[36:64]) and zero(block[64 + 8 * self.n:]), "parity: checks", Newer)
        cell = self.data[at + BLOCK:at + BLOCK + self.cell_bytes]
        return struct.unpack_from(f"<{self.n}Q", block, 64), cell

    def digests(self):
        foot = self.data[-BLOCK:]
        sure(foot[:8] == b"KEELPEND"
             and struct.unpack_from("<Q", foot, 4088)[0] == xxh64(foot[:4088]), "parity: footer")
        version, size, set_check, member = struct.unpack_from("<IIQI", foot, 8)
        sure(version == 1 and size == BLOCK and zero(foot[28:256]) and zero(foot[1280:4088])
             and zero(foot[256 + 16 * self.n:1280]), "parity: footer", Newer)
        sure((set_check, member) == (self.set_check, self.member), "parity: footer of another file")
        return [foot[256 + 16 * i:][:16] for i in range(self.n)]


class Parity:
    """An erasure set: what is left of the shards of its members, and their parity files."""

    def __init__(self, snapshot, set_):
        self.snapshot, self.set, self.files = snapshot, set_, {}
        self.errors, self.footers = [], 0
        for number_, member in parity_names(snapshot.path):
            if number_ == set_:
                self.open(member)
        sure(self.files, f"parity set {set_}: no sound file")
        self.any = next(iter(self.files.values()))
        sure(all(f.set_check == self.any.set_check for f in self.files.values()),
             f"parity set {set_}: files of two sets")
        self.shards = [snapshot.bytes_of(f"rank-{rank}.keel") if rank != NO_RANK else b""
                       for _, rank in self.any.members]
        most, slots = 0, [0] * self.any.n
        while any(c * self.any.cell_bytes < s for c, (s, _) in zip(slots, self.any.members)):
            for node in self.data_nodes(most):
                slots[node] += 1
            most += 1
        sure(most == self.any.stripes, f"parity set {set_}: number of stripes")

    def open(self, member):
        data = self.snapshot.bytes_of(f"parity-{self.set}.{member}.keel")
        try:
            self.files[member] = ParityFile(self.snapshot, data, self.set, member)
        except Damaged as error:
            self.errors.append(error)

    def data_nodes(self, stripe):
        return [node for node in range(self.any.n) if (node - stripe) % self.any.n >= self.any.m]

    def walk(self):
        """Each stripe: its number, its nodes in the order of the code, their cells."""
        slots = [0] * self.any.n
        for number_ in range(self.any.stripes):
            yield number_, *self.stripe(number_, slots)
            for node in self.data_nodes(number_):
                slots[node] += 1

    def stripe(self, number_, slots):
        """Its nodes and cells in the order of the code (data, then parity); None for what is lost."""
        any_, data_nodes = self.any, self.data_nodes(number_)
        nodes = data_nodes + [(number_ + i) % any_.n for i in range(any_.m)]
        cells, checks = [], None
        for node in nodes:
            at, cell = slots[node] * any_.cell_bytes, None
            if node in data_nodes and self.shards[node] is not None:
                part = self.shards[node][at:at + any_.cell_bytes]
                cell = part.ljust(any_.cell_bytes, b"\0")
            elif node not in data_nodes and node in self.files:
                try:
                    checks, cell = self.files[node].record(number_)
                except Damaged as error:
                    self.errors.append(error)
            cells.append(cell)
        for i, node in enumerate(nodes):
            if checks and cells[i] is not None and xxh64(cells[i]) != checks[node]:
                self.errors.append(Damaged(f"stripe {number_}: cell of member {node}"))
                cells[i] = None
        return nodes, cells

    def rebuilt(self):
        """All members' shards, as the set says that they were."""
        any_, k = self.any, self.any.n - self.any.m
        out = [bytearray() for _ in range(any_.n)]
        for number_, nodes, cells in self.walk():
            lost = [c for c in range(k) if cells[c] is None]
            rows = [([inverse(k + i ^ c) for c in lost],
                     self.without(cells, i)) for i in range(any_.m) if cells[k + i] is not None]
            sure(len(rows) >= len(lost), f"stripe {number_}: too much of it is lost")
            for c, cell in zip(lost, solve(rows[:len(lost)])):
                cells[c] = cell
            for node, cell in zip(nodes[:k], cells):
                out[node] += cell
        shards = [bytes(o[:size]) for o, (size, _) in zip(out, any_.members)]
        for file in self.files.values():
            self.check_digests(file, shards)
        sure(self.footers, f"parity set {self.set}: no sound footer")
        return shards

    def without(self, cells, i):
        """Parity cell i less what the data cells that are there put into it."""
        k, cell = self.any.n - self.any.m, cells[self.any.n - self.any.m + i]
        for c in range(k):
            if cells[c] is not None:
                cell = add(cell, inverse(k + i ^ c), cells[c])
        return cell

    def check_digests(self, file, shards):
        try:
            digests = file.digests()
        except Damaged as error:
            self.errors.append(error)
            return
        self.footers += 1
        for shard, digest, (_, rank) in zip(shards, digests, self.any.members):
            sure(digest == (xxh128(shard) if rank != NO_RANK else bytes(16)),
                 f"parity set {self.set}: digest of rank {rank}")

    def verify(self):
        """All that is there of the set is sound, and its parity is that of its shards."""
        shards = self.rebuilt()
        sure(not self.errors, str(self.errors[:1]))
        sure(all(now in (was, None) for now, was in zip(self.shards, shards)), "parity: shards")
        k = self.any.n - self.any.m
        for number_, _, cells in self.walk():
            for i in range(self.any.m):
                sure(None in cells[:k] + [cells[k + i]] or zero(self.without(cells, i)),
                     f"stripe {number_}: parity of other data")


def rebuild(snapshot, rank):
    for number_ in sorted({n for n, _ in parity_names(snapshot.path)}):
        parity = Parity(snapshot, number_)
        for member, (_, its_rank) in enumerate(parity.any.members):
            if its_rank == rank:
                data = parity.rebuilt()[member]
                Shard(snapshot, data, rank, snapshot.expected[rank])
                return data
    raise Refused(f"no erasure set has rank {rank}")


# ---- command line ---------------------------------------------------------------------------


def digests(snapshot):
    for name, records in sorted(snapshot.tensors().items()):
        shape = records[0].shape
        data = snapshot.read(records, (0,) * len(shape), shape)
        yield line(name, DTYPES[records[0].dtype][0], shape, data)


def line(name, dtype, shape, data):
    return f"{name} {dtype} {list(shape)} {xxh128(data).hex()}"


def safetensors(path):
    """The same lines of a file that `keel ckpt export` wrote."""
    names = {"F32": "float32", "F64": "float64", "BF16": "bfloat16", "F16": "float16",
             "I32": "int32", "I64": "int64", "U8": "uint8", "BOOL": "bool", "I8": "int8",
             "I16": "int16", "U16": "uint16", "U32": "uint32", "U64": "uint64", "C64": "complex64"}
    with open(path, "rb") as file:
        data = file.read()
    end = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    for name, told in sorted(header.items()):
        begin, stop = told["data_offsets"]
        yield line(name, names.get(told["dtype"], told["dtype"].lower()), told["shape"], data[end + begin:end + stop])


def box(snapshot, name, texts):
    records = snapshot.tensors().get(name)
    sure(records, f"no tensor {name}", Refused)
    shape = records[0].shape
    offset, extent = ([int(n) for n in t.split(",") if n] for t in texts or ("0," * len(shape),
                                                    ",".join(map(str, shape))))
    sure(len(offset) == len(extent) == len(shape) and min(offset + extent, default=0) >= 0
         and all(o + e <= s for o, e, s in zip(offset, extent, shape)), "no such box", Refused)
    return snapshot.read(records, offset, extent)


def main(words):
    key, plain = None, "--plain" in words
    words = [w for w in words if w != "--plain"]
    if "--key" in words:
        at = words.index("--key")
        key = read_key(words[at + 1])
        del words[at:at + 2]
    command, path, *rest = words
    if command == "safetensors":
        print("\n".join(safetensors(path)))
        return
    snapshot = Snapshot(path, key, plain)
    if command == "verify":
        snapshot.verify()
    elif command == "digests":
        print("\n".join(digests(snapshot)))
    elif command == "read":
        sys.stdout.buffer.write(box(snapshot, rest[0], rest[1:]))
    elif command == "rebuild":
        sys.stdout.buffer.write(rebuild(snapshot, int(rest[0])))
    else:
        raise Refused(f"no command {command}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"{type(error).__name__.lower()}: {error}", file=sys.stderr) or error.code)
