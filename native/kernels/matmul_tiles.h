// A panel of 16 rows times a tile of columns: part of matmul_impl.h.
//
// Integers are exact; the floats of a result are summed block by block along k, always in the same operations
// and order. So every tile width, every path and every instruction set give the same bits.
#pragma once

#ifdef __ARM_FEATURE_MATMUL_INT8
#include "matmul_quad_pairs.h"
#endif

namespace caudal {
namespace {
namespace mm {

// What a tile of W columns multiplies with; every pointer is at the first block of the tile's range.
struct TileArgs {
  const uint8_t* panel;     // packed blocks
  const uint8_t* unpacked;  // the same as bytes, or null
  int num_blocks;
  size_t ahead;      // how far ahead of `panel` memory is prefetched
  const uint8_t* x;  // as matmul_records.h says, or float [k][W]
  float* carry;      // [W][16], the results so far
  bool is_first;     // there are none so far, whatever `carry` holds
};

using TileFn = void (*)(const TileArgs& args);

// One value per column, in registers or, where those are needed for the inner loop, in memory.
template <class T, int kWidth, bool kMemory>
struct Columns;

template <class T, int kWidth>
struct Columns<T, kWidth, false> {
  T values[kWidth];
  CAUDAL_INLINE T get(int j) const { return values[j]; }
  CAUDAL_INLINE void set(int j, T v) { values[j] = v; }
};

template <class T, int kWidth>
struct Columns<T, kWidth, true> {
  T values[kWidth];
  T* place;
  // The compiler must not know what `place` points to, or it keeps the values in registers and spills others.
  CAUDAL_INLINE Columns() : place(values) { asm volatile("" : "+r"(place) : : "memory"); }
  CAUDAL_INLINE T get(int j) const { return place[j]; }
  CAUDAL_INLINE void set(int j, T v) { place[j] = v; }
};

// Results carried along k: loaded once and stored at the end, or kept in the caller's memory.
template <int kWidth, bool kMemory>
struct Carry {
  Floats values[kWidth];
  float* memory;
  CAUDAL_INLINE Carry(float* p, bool is_first) : memory(p) {
    if (is_first) {
      unroll<kWidth>([&](auto j) CAUDAL_LAMBDA { set(j, zeros()); });
    } else if constexpr (!kMemory) {
      unroll<kWidth>([&](auto j) CAUDAL_LAMBDA { values[j] = load_floats(p + j * 16); });
    }
  }
  CAUDAL_INLINE Floats get(int j) const {
    if constexpr (kMemory) {
      return load_floats(memory + j * 16);
    } else {
      return values[j];
    }
  }
  CAUDAL_INLINE void set(int j, Floats v) {
    if constexpr (kMemory) {
      store_floats(memory + j * 16, v);
    } else {
      values[j] = v;
    }
  }
  CAUDAL_INLINE void finish() {
    if constexpr (!kMemory) {
      unroll<kWidth>([&](auto j) CAUDAL_LAMBDA { store_floats(memory + j * 16, values[j]); });
    }
  }
};

template <int kBytes>
CAUDAL_INLINE void prefetch_block(const uint8_t* p) {
  unroll<(kBytes + 63) / 64>([&](auto i) CAUDAL_LAMBDA { prefetch(p + i * 64); });
}

// Dot products of kQuads quads with W columns; `finish(group, parts)` after every kDepth quads.
template <int kQuads, int kDepth, int kWidth, class Source, class Finish>
CAUDAL_INLINE void dot_quads(const Source& source, const int8_t* x, const Finish& finish) {
#ifdef __ARM_FEATURE_MATMUL_INT8
  if constexpr (kWidth > 1) {
    return dot_quad_pairs<kQuads, kDepth, kWidth>(source, x, finish);
  }
#endif
  unroll<kQuads / kDepth>([&](auto group) CAUDAL_LAMBDA {
    Parts parts[kWidth];
    unroll<kDepth>([&](auto step) CAUDAL_LAMBDA {
      constexpr int kQuad = decltype(group)::value * kDepth + decltype(step)::value;
      const Bytes w = source.template quad<kQuad>();
      unroll<kWidth>([&](auto j) CAUDAL_LAMBDA {
        const int8_t* xj = quad_at<kQuad, kWidth>(x, j);
        if constexpr (decltype(step)::value == 0) {
          parts[j] = dot_first(w, xj);
        } else {
          parts[j] = dot(parts[j], w, xj);
        }
      });
    });
    finish(group, parts);
  });
}

template <class Traits, bool kUnpacked, int kPart, int kHalf>
CAUDAL_INLINE auto source_of(const uint8_t* panel, const uint8_t* unpacked, int pair) {
  const int sub = pair * 2 + kHalf;
  if constexpr (kUnpacked) {
    return UnpackedBytes{unpacked + (sub * Traits::kPlanes + kPart) * Traits::kQuads * 64};
  } else {
    return Traits::template plane<kPart, kHalf>(panel, sub);
  }
}

template <class Traits, int kWidth, bool kUnpacked>
[[gnu::noinline]] void tile_32(const TileArgs& args) {
  constexpr bool kMemory = keep_in_memory(kWidth);
  constexpr int kGroups = 8 / Traits::kDepth;
  const uint8_t* panel = args.panel;
  const uint8_t* unpacked = args.unpacked;
  const uint8_t* x = args.x;
  const size_t ahead = args.ahead;
  Carry<kWidth, kMemory> carry(args.carry, args.is_first);
  Columns<Ints, kWidth, kMemory && (kGroups * Traits::kPlanes > 1)> acc;
  for (int b = args.num_blocks; b > 0; --b) {
    prefetch_block<Traits::kBlockBytes>(panel + ahead);
    const auto* q = reinterpret_cast<const int8_t*>(x);
    const auto* sums = reinterpret_cast<const Sums32*>(x + 32 * kWidth);
    unroll<Traits::kPlanes>([&](auto part) CAUDAL_LAMBDA {
      constexpr int kPart = decltype(part)::value;
      constexpr int kTimes = Traits::kPlanes == 2 && kPart == 0 ? 16 : 1;
      const auto source = source_of<Traits, kUnpacked, kPart, 0>(panel, unpacked, 0);
      dot_quads<8, Traits::kDepth, kWidth>(source, q, [&](auto group, const auto& parts) CAUDAL_LAMBDA {
        constexpr bool kFirst = kPart == 0 && decltype(group)::value == 0;
        constexpr bool kLast = kPart == Traits::kPlanes - 1 && decltype(group)::value == kGroups - 1;
        if constexpr (kLast) {
          const Floats d = Traits::scale(panel);
          unroll<kWidth>([&](auto j) CAUDAL_LAMBDA {
            Ints sum = reduce<kTimes>(parts[j]);
            if constexpr (!kFirst) {
              sum = add(sum, acc.get(j));
            }
            if constexpr (Traits::kZeroShift > 0) {
              sum = subtract(sum, shift_ints<Traits::kZeroShift>(broadcast_int(&sums[j].sum)));
            }
            Floats f = fma(mul(d, broadcast(&sums[j].scale)), to_floats(sum), carry.get(j));
            if constexpr (Traits::kHasMin) {
              f = fma(load_halves(panel + Traits::kFloatsAt + kHalves), broadcast(&sums[j].sum_f), f);
            }
            carry.set(j, f);
          });
        } else {
          unroll<kWidth>([&](auto j) CAUDAL_LAMBDA {
            const Ints sum = reduce<kTimes>(parts[j]);
            acc.set(j, kFirst ? sum : add(sum, acc.get(j)));
          });
        }
      });
    });
    panel += Traits::kBlockBytes;
    if constexpr (kUnpacked) {
      unpacked += Traits::kPlanes * 512;
    }
    x += Cursor32::kBytes * kWidth;
  }
  carry.finish();
}

template <class Traits, int kWidth, bool kUnpacked>
[[gnu::noinline]] void tile_256(const TileArgs& args) {
  constexpr bool kMemory = keep_in_memory(kWidth);
  constexpr int kPairs = Traits::kSubBlocks / 2;
  const uint8_t* panel = args.panel;
  const uint8_t* unpacked = args.unpacked;
  const uint8_t* x = args.x;
  const size_t ahead = args.ahead;
  Carry<kWidth, kMemory> carry(args.carry, args.is_first);
  Columns<Ints, kWidth, kMemory> acc;
  for (int b = args.num_blocks; b > 0; --b) {
    unroll<kWidth>([&](auto j) CAUDAL_LAMBDA { acc.set(j, ints(0)); });
    for (int pair = 0; pair < kPairs; ++pair) {
      prefetch_block<Traits::kBlockBytes / kPairs>(panel + ahead + pair * (Traits::kBlockBytes / kPairs));
      unroll<2>([&](auto half) CAUDAL_LAMBDA {
        constexpr int kHalf = decltype(half)::value;
        unroll<Traits::kPlanes>([&](auto part) CAUDAL_LAMBDA {
          constexpr int kPart = decltype(part)::value;
          constexpr int kShift = Traits::kPlanes == 2 && kPart == 0 ? 4 : 0;
          const auto source = source_of<Traits, kUnpacked, kPart, kHalf>(panel, unpacked, pair);
          const int at = (pair * 2 + kHalf) * Traits::kQuads * 4;
          const auto* q = reinterpret_cast<const int8_t*>(x) + at * kWidth;
          dot_quads<Traits::kQuads, Traits::kDepth, kWidth>(source, q, [&](auto, const auto& parts) CAUDAL_LAMBDA {
            Scales s = scales_of<kHalf>(Traits::scale_pairs(panel, pair));
            if constexpr (kShift > 0) {
              s = shift_ints<kShift>(s);
            }
            unroll<kWidth>([&](auto j) CAUDAL_LAMBDA { acc.set(j, add(acc.get(j), reduce_scaled(parts[j], s))); });
          });
        });
      });
    }
    const auto* sums = reinterpret_cast<const Sums256*>(x + 256 * kWidth);
    const Floats d = Traits::scale(panel);
    unroll<kWidth>([&](auto j) CAUDAL_LAMBDA {
      Ints offset = ints(0);
      unroll<kPairs>([&](auto pair) CAUDAL_LAMBDA {
        const int16_t* pair_sums = (Traits::kSubBlocks == 8 ? sums[j].sums32 : sums[j].sums16) + pair * 2;
        if constexpr (Traits::kHasMin) {
          offset = dot_pairs(offset, Traits::min_pairs(panel, pair), pair_sums);
        } else if constexpr (Traits::kZeroShift > 0) {
          offset = dot_pairs(offset, Traits::scale_pairs(panel, pair), pair_sums);
        }
      });
      const Floats x_scale = broadcast(&sums[j].scale);
      Ints sum = acc.get(j);
      if constexpr (Traits::kHasMin) {
        const Floats f = fma(mul(d, x_scale), to_floats(sum), carry.get(j));
        const Floats dmin = load_halves(panel + Traits::kFloatsAt + kHalves);
        carry.set(j, fnma(mul(dmin, x_scale), to_floats(offset), f));
      } else {
        if constexpr (Traits::kZeroShift > 0) {
          sum = subtract(sum, shift_ints<Traits::kZeroShift>(offset));
        }
        carry.set(j, fma(mul(d, x_scale), to_floats(sum), carry.get(j)));
      }
    });
    panel += Traits::kBlockBytes;
    if constexpr (kUnpacked) {
      unpacked += Traits::kPlanes * 4096;
    }
    x += Cursor256::kBytes * kWidth;
  }
  carry.finish();
}

struct LoadF16 {
  static constexpr int kBytes = 32;
  CAUDAL_INLINE static Floats load(const uint8_t* p) { return load_halves(p); }
};
struct LoadBF16 {
  static constexpr int kBytes = 32;
  CAUDAL_INLINE static Floats load(const uint8_t* p) { return load_bfloats(p); }
};
struct LoadF32 {
  static constexpr int kBytes = 64;
  CAUDAL_INLINE static Floats load(const uint8_t* p) { return load_floats(reinterpret_cast<const float*>(p)); }
};

// num_blocks is the number of k here.
template <class Load, int kWidth>
[[gnu::noinline]] void tile_f32(const TileArgs& args) {
  const uint8_t* panel = args.panel;
  const float* x = reinterpret_cast<const float*>(args.x);
  const size_t ahead = args.ahead;
  Carry<kWidth, false> carry(args.carry, args.is_first);
  const auto step = [&](int k) CAUDAL_LAMBDA {
    const Floats w = Load::load(panel + k * Load::kBytes);
    unroll<kWidth>([&](auto j)
                       CAUDAL_LAMBDA { carry.values[j] = fma(w, broadcast(x + k * kWidth + j), carry.values[j]); });
  };
  int k = args.num_blocks;
  for (; k >= 4; k -= 4) {
    prefetch_block<4 * Load::kBytes>(panel + ahead);
    unroll<4>([&](auto i) CAUDAL_LAMBDA { step(i); });
    panel += 4 * Load::kBytes;
    x += 4 * kWidth;
  }
  for (; k > 0; --k) {
    step(0);
    panel += Load::kBytes;
    x += kWidth;
  }
  carry.finish();
}

}  // namespace mm
}  // namespace
}  // namespace caudal
