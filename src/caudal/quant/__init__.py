"""Weight formats: one class each, which knows its bytes and nothing of files or devices."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from caudal.quant.blocks_of_32 import IQ4_NL, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from caudal.quant.blocks_of_256 import IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from caudal.quant.format import Format
from caudal.quant.plain import BF16, F16, F32

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMATS", "Format"]

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            *(F32(), F16(), BF16()),
            *(Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0()),
            *(Q2_K(), Q3_K(), Q4_K(), Q5_K(), Q6_K()),
            *(IQ4_NL(), IQ4_XS(), MXFP4()),
        )
    }
)
