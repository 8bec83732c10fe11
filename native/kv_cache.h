// A paged KV cache: per layer, pages of keys and values for every block and KV head.
//
// The address space is reserved at once; memory is touched as blocks are first written.
#pragma once

#include <vector>

#include "kernels/attention.h"
#include "memory.h"

namespace caudal {

struct KVLayerShape {
  int group;
  int num_kv_heads;
  int head_size;
};

class KVCache {
 public:
  // num_blocks has one entry per group. Throws std::invalid_argument on shapes that kernels cannot take.
  KVCache(std::vector<KVLayerShape> layers, std::vector<int> num_blocks, int block_size, KVType type);

  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  const KVPages& pages(int layer) const { return pages_.at(static_cast<size_t>(layer)); }
  const KVLayerShape& shape(int layer) const { return layers_.at(static_cast<size_t>(layer)); }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_groups() const { return static_cast<int>(num_blocks_.size()); }
  int num_blocks(int group) const { return num_blocks_.at(static_cast<size_t>(group)); }
  int block_size() const { return block_size_; }

  // Bytes of one block of a group, over all its layers.
  size_t block_bytes(int group) const;

 private:
  std::vector<KVLayerShape> layers_;
  std::vector<int> num_blocks_;
  int block_size_;
  std::vector<Mapping> memory_;
  std::vector<KVPages> pages_;
};

}  // namespace caudal
