// What this processor can do, asked once per call, without executing anything that it may lack.
#pragma once

namespace caudal {

bool cpu_has_avx2();         // AVX2, FMA and F16C, and an operating system that saves their registers
bool cpu_has_avx_vnni();     // those, and VPDPBUSD with 256 bits in its VEX form
bool cpu_has_avx512_vnni();  // AVX-512 F, BW, VL, DQ and VNNI
bool cpu_has_dotprod();      // AArch64 SDOT and UDOT
bool cpu_has_i8mm();         // AArch64 SMMLA

}  // namespace caudal
