// Outliers of activations (matmul_activations.h), multiplied one by one: part of matmul_impl.h.
//
// They are listed once per operand and thread, and their products added when a panel's tiles are done, because the
// panel's weights are in a near cache then.
#pragma once

namespace caudal {
namespace {
namespace mm {

constexpr int kGroupTiles = 32;  // tiles whose results are carried at once
constexpr int kGroupRows = kGroupTiles * kTileWidth;
constexpr int kChunk = 1024;           // elements of k unpacked at once
constexpr int kExactChunk = 512;       // and dequantised
constexpr size_t kStreamAhead = 3072;  // bytes of weights prefetched ahead when memory is streamed

// Tiles are done by groups, whose results are carried at once. The rows of a group: [first, end).
struct RowRange {
  int first;
  int end;
};
CAUDAL_INLINE int count_groups(int num_rows) { return (count_tiles(num_rows) + kGroupTiles - 1) / kGroupTiles; }
CAUDAL_INLINE int last_tile(int num_rows, int group) {
  const int num_tiles = count_tiles(num_rows);
  return ((group + 1) * kGroupTiles < num_tiles ? (group + 1) * kGroupTiles : num_tiles) - 1;
}
CAUDAL_INLINE RowRange rows_of_group(int num_rows, int group) {
  const Tile last = tile_at(num_rows, last_tile(num_rows, group));
  return {tile_at(num_rows, group * kGroupTiles).first, last.first + last.width};
}

// What the bytes of outliers leave of a row, to be multiplied: results += weights[place] * rest, for a few at once.
constexpr int kTermsAtOnce = 4;
struct OutlierTerms {
  uint32_t places[kTermsAtOnce];
  float rests[kTermsAtOnce];
};

// The outliers of a group of rows. Their elements of k are listed once each, so that a panel's weights are dequantised
// once. Every row has the same number of terms, zeros if need be, and what is left is a list: loops over a few terms
// each would end at a surprise every time.
struct GroupOutliers {
  int32_t* counts;      // num_columns and num_more
  int32_t* ks;          // [num_columns]
  OutlierTerms* first;  // [rows]
  OutlierTerms* more;   // [num_more]
  int32_t* more_rows;   // [num_more], in the group
  int num_columns() const { return counts[0]; }
  int num_more() const { return counts[1]; }
};

CAUDAL_INLINE int max_more_terms(int cols) { return kGroupRows * (max_outliers(cols) / kTermsAtOnce); }

// Bytes of the lists of one group.
inline size_t group_outlier_bytes(int cols) {
  const size_t k = static_cast<size_t>(cols);
  const size_t terms = static_cast<size_t>(kGroupRows + max_more_terms(cols)) * sizeof(OutlierTerms);
  const size_t more_rows = static_cast<size_t>(max_more_terms(cols)) * sizeof(int32_t);
  return (64 + k * sizeof(int32_t) + terms + more_rows + 63) / 64 * 64;
}

// What a thread has in scratch: results, weights, those at the outliers' elements, and lists of outliers by group.
struct Scratch {
  float* carry;            // [kGroupRows][16]
  uint8_t* prepared;       // a chunk of weights
  float* outlier_weights;  // [1 + num_columns][16], the first of them zeros
  uint64_t* marks;         // a bit per element of k
  uint32_t* places;        // [cols]: where an element of k that has outliers is in the list
  uint8_t* groups;
};

constexpr size_t kCarryBytes = static_cast<size_t>(kGroupRows) * 64;
constexpr size_t kUnpackedBytes = static_cast<size_t>(kChunk) * 16 * (kSplitQ8 ? 2 : 1);
constexpr size_t kExactBytes = static_cast<size_t>(kExactChunk) * 64;
constexpr size_t kPreparedBytes = kUnpackedBytes > kExactBytes ? kUnpackedBytes : kExactBytes;

CAUDAL_INLINE size_t outlier_weights_bytes(int cols) { return (static_cast<size_t>(cols) + 1) * 64; }
CAUDAL_INLINE size_t marks_bytes(int cols) { return (static_cast<size_t>(cols) + 511) / 512 * 64; }
CAUDAL_INLINE size_t places_bytes(int cols) { return (static_cast<size_t>(cols) + 15) / 16 * 16 * sizeof(uint32_t); }

CAUDAL_INLINE Scratch scratch_at(void* memory, int cols) {
  auto* p = static_cast<uint8_t*>(memory);
  Scratch scratch{};
  scratch.carry = reinterpret_cast<float*>(p);
  scratch.prepared = p + kCarryBytes;
  p = scratch.prepared + kPreparedBytes;
  scratch.outlier_weights = reinterpret_cast<float*>(p);
  scratch.marks = reinterpret_cast<uint64_t*>(p + outlier_weights_bytes(cols));
  scratch.places = reinterpret_cast<uint32_t*>(p + outlier_weights_bytes(cols) + marks_bytes(cols));
  scratch.groups = p + outlier_weights_bytes(cols) + marks_bytes(cols) + places_bytes(cols);
  return scratch;
}

size_t scratch_bytes(int max_cols, int max_rows) {
  return kCarryBytes + kPreparedBytes + outlier_weights_bytes(max_cols) + marks_bytes(max_cols) +
         places_bytes(max_cols) + static_cast<size_t>(count_groups(max_rows)) * group_outlier_bytes(max_cols);
}

CAUDAL_INLINE GroupOutliers group_at(const Scratch& scratch, int cols, int group) {
  uint8_t* p = scratch.groups + static_cast<size_t>(group) * group_outlier_bytes(cols);
  GroupOutliers lists{};
  lists.counts = reinterpret_cast<int32_t*>(p);
  lists.ks = lists.counts + 16;
  lists.first = reinterpret_cast<OutlierTerms*>(lists.ks + cols);
  lists.more = lists.first + kGroupRows;
  lists.more_rows = reinterpret_cast<int32_t*>(lists.more + max_more_terms(cols));
  return lists;
}

// Lists the elements of k at which rows have outliers, in rising order: so a panel's weights there are read in order.
// Returns how many there are.
int32_t list_columns(const ActivationView& x, RowRange rows, const Scratch& scratch, int32_t* ks) {
  const size_t num_words = marks_bytes(x.cols) / sizeof(uint64_t);
  std::memset(scratch.marks, 0, num_words * sizeof(uint64_t));
  for (int row = rows.first; row < rows.end; ++row) {
    const OutlierList list = outliers_of(x, row);
    for (int i = 0; i < *list.count; ++i) {
      scratch.marks[list.items[i].k / 64] |= uint64_t{1} << list.items[i].k % 64;
    }
  }
  int32_t count = 0;
  for (size_t word = 0; word < num_words; ++word) {
    for (uint64_t bits = scratch.marks[word]; bits != 0; bits &= bits - 1) {
      const int32_t k = static_cast<int32_t>(word) * 64 + __builtin_ctzll(bits);
      scratch.places[k] = static_cast<uint32_t>(count);
      ks[count++] = k;
    }
  }
  return count;
}

// Up to kTermsAtOnce outliers of a row from number `begin` on.
CAUDAL_INLINE void fill_terms(const OutlierList& list, int begin, const uint32_t* places, OutlierTerms& terms) {
  for (int i = 0; i < kTermsAtOnce; ++i) {
    const bool is_there = begin + i < *list.count;
    terms.places[i] = is_there ? (places[list.items[begin + i].k] + 1) * 16 : 0;
    terms.rests[i] = is_there ? list.items[begin + i].rest : 0.0F;
  }
}

// Lists the outliers of a group's rows.
void list_group(const ActivationView& x, int group, const Scratch& scratch) {
  const RowRange rows = rows_of_group(x.num_rows, group);
  const GroupOutliers lists = group_at(scratch, x.cols, group);
  lists.counts[0] = list_columns(x, rows, scratch, lists.ks);
  int num_more = 0;
  int most = 0;
  for (int row = rows.first; row < rows.end; ++row) {
    const OutlierList list = outliers_of(x, row);
    fill_terms(list, 0, scratch.places, lists.first[row - rows.first]);
    most = most > *list.count ? most : *list.count;
  }
  // Row by row within a rank, so that terms which follow each other are added to different rows.
  for (int begin = kTermsAtOnce; begin < most; begin += kTermsAtOnce) {
    for (int row = rows.first; row < rows.end; ++row) {
      const OutlierList list = outliers_of(x, row);
      if (begin < *list.count) {
        lists.more_rows[num_more] = row - rows.first;
        fill_terms(list, begin, scratch.places, lists.more[num_more++]);
      }
    }
  }
  lists.counts[1] = num_more;
}

void begin_operand(const ActivationView& x, void* memory) {
  if (x.kind == ActivationKind::f32) {
    return;
  }
  const Scratch scratch = scratch_at(memory, x.cols);
  store_floats(scratch.outlier_weights, zeros());
  for (int group = 0; group < count_groups(x.num_rows); ++group) {
    list_group(x, group, scratch);
  }
}

CAUDAL_INLINE Floats add_terms(const OutlierTerms& terms, const float* weights, Floats f) {
  unroll<kTermsAtOnce>(
      [&](auto i) CAUDAL_LAMBDA { f = fma(load_floats(weights + terms.places[i]), broadcast(&terms.rests[i]), f); });
  return f;
}

}  // namespace mm
}  // namespace
}  // namespace caudal
