// Outliers of activations (matmul_activations.h), multiplied one by one: part of matmul_impl.h.
//
// They are listed once per operand and thread, and their products added when a panel's tiles are done, because the
// panel's weights are in a near cache then.
#pragma once

namespace caudal {
namespace {
namespace mm {

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
