"""The numbers that GGUF gives to value types and to tensor formats.

Source: the GGUF file format, metadata value types and tensor types (ids 4, 5, 31-33 and 36-38 were withdrawn).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Scalar value types: id -> letter of the struct module.
SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
UINT32 = 4
STRING = 8
ARRAY = 9

# Every format with a number, whether or not caudal.quant has it: an error can then say which one a file holds.
TENSOR_FORMATS: Mapping[int, str] = MappingProxyType(
    {
        **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
        **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
        **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"},
        **{23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16"},
        **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0"},
    }
)
TENSOR_FORMAT_IDS: Mapping[str, int] = MappingProxyType({name: id_ for id_, name in TENSOR_FORMATS.items()})
