#include "kv_cache.h"

#include <stdexcept>
#include <string>

namespace caudal {

namespace {

void check_layer(const KVLayerShape& layer, size_t num_groups) {
  if (layer.group < 0 || static_cast<size_t>(layer.group) >= num_groups) {
    throw std::invalid_argument("KV layer names group " + std::to_string(layer.group) + " of " +
                                std::to_string(num_groups));
  }
  if (layer.head_size < 16 || layer.head_size % 16 != 0 || layer.num_kv_heads < 1) {
    throw std::invalid_argument("KV layer has " + std::to_string(layer.num_kv_heads) + " heads of size " +
                                std::to_string(layer.head_size) + "; the CPU kernels need a multiple of 16");
  }
}

// Of a key and a value of one head, with their scales.
size_t token_bytes(KVType type, int head_size) {
  const auto elements = 2 * static_cast<size_t>(head_size);
  switch (type) {
    case KVType::f16:
      return 2 * elements;
    case KVType::f32:
      return 4 * elements;
    case KVType::int8:
      return elements + 2 * static_cast<size_t>(head_size / kKeyScaleDims + 1);
  }
  throw std::invalid_argument("unknown KV type");
}

}  // namespace

KVCache::KVCache(std::vector<KVLayerShape> layers, std::vector<int> num_blocks, int block_size, KVType type)
    : layers_(std::move(layers)), num_blocks_(std::move(num_blocks)), block_size_(block_size) {
  if (block_size != 16 && block_size != 32) throw std::invalid_argument("block_size must be 16 or 32");
  for (const KVLayerShape& layer : layers_) {
    check_layer(layer, num_blocks_.size());
    KVPages pages{};
    pages.head_bytes = static_cast<size_t>(block_size) * token_bytes(type, layer.head_size);
    pages.block_bytes = pages.head_bytes * static_cast<size_t>(layer.num_kv_heads);
    pages.num_kv_heads = layer.num_kv_heads;
    pages.head_size = layer.head_size;
    pages.block_size = block_size;
    pages.type = type;
    // Small pages: a huge page would make one short sequence touch 2 MiB in every layer.
    memory_.emplace_back(pages.block_bytes * static_cast<size_t>(num_blocks_[static_cast<size_t>(layer.group)]), false);
    pages.base = memory_.back().data();
    pages_.push_back(pages);
  }
}

size_t KVCache::block_bytes(int group) const {
  size_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].group == group) bytes += pages_[i].block_bytes;
  }
  return bytes;
}

}  // namespace caudal
