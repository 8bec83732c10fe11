// What a thread has in scratch for products, and how large it is: part of matmul_impl.h.
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

}  // namespace mm
}  // namespace
}  // namespace caudal
