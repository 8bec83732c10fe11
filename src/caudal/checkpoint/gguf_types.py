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
TENSOR_NAMES = """
F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S
IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4 NVFP4 Q1_0 Q2_0
"""
TENSOR_FORMATS: Mapping[int, str] = MappingProxyType(
    {id_: name for id_, name in enumerate(TENSOR_NAMES.split()) if name != "-"}
)
TENSOR_FORMAT_IDS: Mapping[str, int] = MappingProxyType({name: id_ for id_, name in TENSOR_FORMATS.items()})
