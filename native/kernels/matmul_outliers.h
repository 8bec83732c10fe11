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
  uint32_t* places;        // [cols]: where an element of k is in the list, if the list says so; otherwise anything
  uint8_t* groups;
};

constexpr size_t kCarryBytes = static_cast<size_t>(kGroupRows) * 64;
constexpr size_t kUnpackedBytes = static_cast<size_t>(kChunk) * 16 * (kSplitQ8 ? 2 : 1);
constexpr size_t kExactBytes = static_cast<size_t>(kExactChunk) * 64;
constexpr size_t kPreparedBytes = kUnpackedBytes > kExactBytes ? kUnpackedBytes : kExactBytes;

CAUDAL_INLINE size_t outlier_weights_bytes(int cols) { return (static_cast<size_t>(cols) + 1) * 64; }
CAUDAL_INLINE size_t places_bytes(int cols) { return (static_cast<size_t>(cols) + 15) / 16 * 16 * sizeof(uint32_t); }

CAUDAL_INLINE Scratch scratch_at(void* memory, int cols) {
  auto* p = static_cast<uint8_t*>(memory);
  Scratch scratch{};
  scratch.carry = reinterpret_cast<float*>(p);
  scratch.prepared = p + kCarryBytes;
  p = scratch.prepared + kPreparedBytes;
  scratch.outlier_weights = reinterpret_cast<float*>(p);
  scratch.places = reinterpret_cast<uint32_t*>(p + outlier_weights_bytes(cols));
  scratch.groups = p + outlier_weights_bytes(cols) + places_bytes(cols);
  return scratch;
}

size_t scratch_bytes(int max_cols, int max_rows) {
  return kCarryBytes + kPreparedBytes + outlier_weights_bytes(max_cols) + places_bytes(max_cols) +
         static_cast<size_t>(count_groups(max_rows)) * group_outlier_bytes(max_cols);
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

// Lists the outliers of rows [first_row, end_row), which are a group.
void list_group(const ActivationView& x, int first_row, int end_row, int group, const Scratch& scratch) {
  const GroupOutliers lists = group_at(scratch, x.cols, group);
  int num_columns = 0;
  int num_more = 0;
  int most = 0;
  const auto fill = [&](OutlierTerms& terms, const OutlierList& list, int begin) CAUDAL_LAMBDA {
    for (int i = 0; i < kTermsAtOnce; ++i) {
      terms.places[i] = 0;
      terms.rests[i] = 0.0F;
      if (begin + i < *list.count) {
        const Outlier& outlier = list.items[begin + i];
        uint32_t place = scratch.places[outlier.k];
        if (place >= static_cast<uint32_t>(num_columns) || lists.ks[place] != outlier.k) {
          place = scratch.places[outlier.k] = static_cast<uint32_t>(num_columns);
          lists.ks[num_columns++] = outlier.k;
        }
        terms.places[i] = (place + 1) * 16;
        terms.rests[i] = outlier.rest;
      }
    }
  };
  for (int row = first_row; row < end_row; ++row) {
    const OutlierList list = outliers_of(x, row);
    fill(lists.first[row - first_row], list, 0);
    most = most > *list.count ? most : *list.count;
  }
  // Row by row within a rank, so that terms which follow each other are added to different rows.
  for (int begin = kTermsAtOnce; begin < most; begin += kTermsAtOnce) {
    for (int row = first_row; row < end_row; ++row) {
      const OutlierList list = outliers_of(x, row);
      if (begin < *list.count) {
        lists.more_rows[num_more] = row - first_row;
        fill(lists.more[num_more++], list, begin);
      }
    }
  }
  lists.counts[0] = num_columns;
  lists.counts[1] = num_more;
}

void begin_operand(const ActivationView& x, void* memory) {
  if (x.kind == ActivationKind::f32) {
    return;
  }
  const Scratch scratch = scratch_at(memory, x.cols);
  store_floats(scratch.outlier_weights, zeros());
  for (int group = 0; group < count_groups(x.num_rows); ++group) {
    const RowRange rows = rows_of_group(x.num_rows, group);
    list_group(x, rows.first, rows.end, group, scratch);
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
