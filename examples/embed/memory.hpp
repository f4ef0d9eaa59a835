#pragma once
// The engine's memory, and how ebb borrows it: one pool of blocks on the GPU, one in host memory.
#include <ebb/ebb.hpp>

#include <array>

#include "engine.hpp"

namespace toy {

struct kv_policy : ebb::policy_defaults {  // the formats of the engine
  static constexpr ebb::row_segments row{row_bytes};
  static constexpr int page_tokens = block_tokens;
  static constexpr int top_k = toy::top_k;
  static constexpr std::array<ebb::layer_binding, toy::layers> layers{{{0, 0}, {0, 1}}};  // one selection for both
  static constexpr auto ratios = ebb::equal_ratios<toy::layers>();
  using metadata = ebb::interleaved;
};

constexpr int prompt_blocks = 32;  // of the longest prompt

/// Blocks that the pool must have: ebb's frames and, behind them, its staging rows.
inline std::int64_t blocks_in_all(ebb::sizes const& s) {
  ebb::sizing<kv_policy> const known{s, ebb::geometry<kv_policy>{}};
  return s.frames + std::int64_t{s.max_batch} * known.staging_ways / block_tokens;
}

template <ebb::space S>
struct memory {
  memory(S const& space, ebb::sizes const& s)
      : batch{s.max_batch},
        pool{array<std::uint32_t>(space, blocks_in_all(s) * block_bytes / 4, false)},
        cpu_pool{array<std::byte>(space, s.host_pages * block_bytes, true)},
        selection{array<std::int32_t>(space, batch * top_k, false)},
        indices{array<std::int32_t>(space, layers * batch * top_k, false)},
        table{array<std::int32_t>(space, prompt_blocks, true)},
        prompts{array<std::uint32_t>(space, 2 * batch, true)},
        out{array<std::uint64_t>(space, 2 * layers * batch, true)} {
    // Layer by layer, rows of a page apart; from block to block, the pages of all layers.
    for (int l = 0; l < layers; ++l)
      arenas[static_cast<std::size_t>(l)] = {reinterpret_cast<std::byte*>(pool.get()) + l * block_tokens * row_bytes,
                                             block_bytes,
                                             blocks_in_all(s) * block_bytes - l * block_tokens * row_bytes};
  }
  /// The sizes of an instance of ebb that allocates no memory for rows.
  ebb::sizes borrowed_by(ebb::sizes s) const {
    s.arenas = arenas;
    s.host_memory = {cpu_pool.get(), static_cast<std::size_t>(s.host_pages * block_bytes)};
    return s;
  }
  /// Buffers of a step: two steps are in flight, so what the host writes or reads is there twice.
  std::uint32_t* prompts_of(int half) const { return prompts.get() + half * batch; }
  std::int32_t* indices_of(int layer) const { return indices.get() + layer * batch * top_k; }
  std::uint64_t* out_of(int half, int layer) const { return out.get() + (half * layers + layer) * batch; }

  int batch;
  std::shared_ptr<std::uint32_t> pool;
  std::shared_ptr<std::byte> cpu_pool;
  std::shared_ptr<std::int32_t> selection, indices, table;
  std::shared_ptr<std::uint32_t> prompts;
  std::shared_ptr<std::uint64_t> out;
  std::array<ebb::arena_view, layers> arenas{};
};

}  // namespace toy
