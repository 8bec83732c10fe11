"""GGUF bytes by hand, right or wrong; it shares no code with the reader and the writer."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def payload(kind, value):
    return text(value) if kind == STRING else struct.pack("<" + SCALARS[kind], value)


def pair(key, kind, value):
    return text(key) + struct.pack("<I", kind) + payload(kind, value)


def array(key, kind, values):
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(payload(kind, v) for v in values)


def tensor(name, dims, type_id=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}q", len(dims), *dims) + struct.pack("<IQ", type_id, offset)


def gguf(pairs=(), tensors=(), data=b"", *, magic=b"GGUF", version=3, num_tensors=None, num_pairs=None, align=32):
    head = magic + struct.pack("<I", version)
    head += struct.pack("<q", len(tensors) if num_tensors is None else num_tensors)
    head += struct.pack("<q", len(pairs) if num_pairs is None else num_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head.ljust(-(-len(head) // align) * align, b"\0") + data if tensors else head
