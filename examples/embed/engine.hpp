#pragma once
// The engine as it was before ebb: its model, its memory, its streams, its kernels. It keeps the rows of both layers of
// a block of tokens together, [block][layer][row], and its attention takes row indices into that one allocation.
//
// Its kernels are bodies, so that the same file runs on a CPU and a GPU; an engine's own kernels stay what they are.

#include <ebb/space.hpp>

#include <cstdint>
#include <vector>

namespace toy {

constexpr int layers = 2, row_words = 16, row_bytes = 4 * row_words, block_tokens = 16, top_k = 32;
constexpr std::int64_t block_bytes = std::int64_t{layers} * block_tokens * row_bytes;

EBB_FN constexpr std::uint32_t mixed(std::uint32_t a, std::uint32_t b) {
  std::uint32_t x = (a ^ (b * 0x85ebca77u)) * 0x9e3779b1u;
  return x ^ (x >> 15);
}
/// What the model computes for a token: word i of its row.
EBB_FN constexpr std::uint32_t row_word(std::uint32_t prompt, int layer, int token, int i) {
  return mixed(mixed(prompt, static_cast<std::uint32_t>(token)), static_cast<std::uint32_t>(layer * row_words + i));
}
/// What the indexer selects for the query of token bound − 1: its own token, and others all over the history.
EBB_FN constexpr std::int32_t selected(std::uint32_t prompt, int bound, int k) {
  std::uint32_t const any = mixed(mixed(prompt, static_cast<std::uint32_t>(bound)), static_cast<std::uint32_t>(k));
  return k == 0 ? bound - 1 : static_cast<std::int32_t>(any % static_cast<std::uint32_t>(bound));
}
/// What attention answers: rows weighed by their rank.
constexpr std::uint64_t expected(std::uint32_t prompt, int layer, int bound) {
  std::uint64_t sum = 0;
  for (int k = 0; k < top_k; ++k) {
    for (int i = 0; i < row_words; ++i)
      sum += std::uint64_t{row_word(prompt, layer, selected(prompt, bound, k), i)} * static_cast<unsigned>(k + 1);
  }
  return sum;
}

/// A row slot, block · block_tokens + row, as an index into the allocation.
EBB_FN constexpr std::int64_t index_of(std::int32_t slot, int layer) {
  return (std::int64_t{slot / block_tokens} * layers + layer) * block_tokens + slot % block_tokens;
}

struct prefill_kernel {  // item: block of the prompt
  std::uint32_t* rows;
  std::int32_t const* blocks;
  std::uint32_t prompt;
  int tokens;
  EBB_BODY template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int i = t.rank(); i < layers * block_tokens * row_words; i += T::width) {
      int const layer = i / (block_tokens * row_words), row = i / row_words % block_tokens, word = i % row_words;
      if (int const token = item * block_tokens + row; token < tokens)
        rows[index_of(blocks[item] * block_tokens + row, layer) * row_words + word] =
            row_word(prompt, layer, token, word);
    }
  }
};
struct append_kernel {  // item: request of the batch
  std::uint32_t* rows;
  std::int32_t const* slots;
  std::uint32_t const* prompts;
  std::int32_t const* bounds;
  int layer;
  EBB_BODY template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int i = t.rank(); i < row_words; i += T::width)
      rows[index_of(slots[item], layer) * row_words + i] = row_word(prompts[item], layer, bounds[item] - 1, i);
  }
};
struct indexer_kernel {
  std::uint32_t const* prompts;
  std::int32_t const* bounds;
  std::int32_t* selection;
  EBB_BODY template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int k = t.rank(); k < top_k; k += T::width)
      selection[item * top_k + k] = selected(prompts[item], bounds[item], k);
  }
};
struct attention_kernel {
  std::uint32_t const* rows;
  std::int32_t const* indices;
  std::uint64_t* out;
  EBB_BODY template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (t.rank() == 0) out[item] = 0;
    t.sync();
    for (int k = t.rank(); k < top_k; k += T::width) {
      std::uint64_t sum = 0;
      for (int i = 0; i < row_words; ++i)
        sum +=
            std::uint64_t{rows[std::int64_t{indices[item * top_k + k]} * row_words + i]} * static_cast<unsigned>(k + 1);
      t.add(out + item, sum);
    }
  }
};

/// Arrays of T for kernels; `mapped` ones are the host's, too.
template <class T, ebb::space S>
std::shared_ptr<T> array(S const& space, std::int64_t n, bool mapped) {
  std::size_t const bytes = static_cast<std::size_t>(n) * sizeof(T);
  auto const memory = mapped ? space.shared_memory(bytes) : space.device_memory(bytes);
  return {memory, reinterpret_cast<T*>(memory.get())};
}

}  // namespace toy
