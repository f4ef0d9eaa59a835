#pragma once
// The engine's loop with ebb in it. Lines marked `ebb` were added; before, blocks came from a free list of the engine,
// and a request that did not fit whole had to wait. Tokens are accepted as they come, so that a step can be issued
// while the last one still runs: two are in flight, and answers are read when their step is done.
#include <ebb/ebb.hpp>

#include <deque>

#include "engine.hpp"

namespace toy {

struct kv_policy : ebb::policy_defaults {  // ebb: the engine's formats
  static constexpr ebb::row_segments row{row_bytes};
  static constexpr int page_tokens = block_tokens;
  static constexpr int top_k = toy::top_k;
  static constexpr std::array<ebb::layer_binding, toy::layers> layers{{{0, 0}, {0, 1}}};  // one selection for both
  static constexpr auto ratios = ebb::equal_ratios<toy::layers>();
  using metadata = ebb::interleaved;
};

struct session {
  std::uint32_t prompt;  // stands for its text
  int tokens, wanted;    // tokens now, tokens in the end
  ebb::request_id id{};
  ebb::take_id blocks{};
};

template <ebb::space S>
class serving {
 public:
  serving(S const& of, ebb::sizes const& sizes)
      : space_{of},
        batch_{static_cast<std::size_t>(sizes.max_batch)},
        pool_{array<std::uint32_t>(of, static_cast<std::size_t>(blocks_in_all(sizes) * block_bytes / 4), false)},
        cpu_pool_{array<std::byte>(of, static_cast<std::size_t>(sizes.host_pages * block_bytes), true)},
        selection_{array<std::int32_t>(of, batch_ * top_k, false)},
        indices_{array<std::int32_t>(of, batch_ * top_k * layers, false)},
        prompts_{array<std::uint32_t>(of, 2 * batch_, true)},
        out_{array<std::uint64_t>(of, 2 * batch_ * layers, true)},
        table_{array<std::int32_t>(of, longest_prompt / block_tokens, true)},
        kv_{of, borrowing(sizes)} {}

  static constexpr int longest_prompt = 512;
  void submit(session s) { waiting_.push_back(s); }
  bool busy() const { return !waiting_.empty() || !prefilling_.empty() || !running_.empty(); }
  long long answers = 0, wrong = 0;
  std::size_t most_running = 0;
  ebb::residency<kv_policy, S> const& kv() const { return kv_; }

  void step() {
    start_prompts();
    std::vector<ebb::request_id> ids;
    for (session const& s : running_) ids.push_back(s.id);
    most_running = std::max(most_running, ids.size());
    int const n = static_cast<int>(ids.size());
    ebb::step const s = kv_.begin_step(main_, {ids});  // ebb: returns once the step before the last is done
    half_ ^= 1;
    read_answers();
    for (int i = 0; i < n; ++i) prompts()[i] = running_[static_cast<std::size_t>(i)].prompt;
    kv_.addresses(main_, s);                           // ebb: everything from here to end_step could be captured
    space_.run(main_, n, indexer_kernel{prompts(), kv_.bounds(), selection_.get()});
    for (int layer = 0; layer < layers; ++layer) {
      ebb::source_id const source{layer};
      auto* const indices = indices_.get() + layer * static_cast<int>(batch_) * top_k;
      space_.run(main_, n, append_kernel{pool_.get(), kv_.write_addresses(source), prompts(), kv_.bounds(), layer});
      if (layer == 0) kv_.resolve(main_, s, ebb::group_id{0}, selection_.get(), {indices});           // ebb
      if (layer > 0) kv_.replay(main_, s, ebb::group_id{0}, source, {indices_.get()}, {indices});     // ebb
      space_.run(main_, n, attention_kernel{pool_.get(), indices, out(layer)});
    }
    kv_.end_step(main_, s, std::vector<int>(ids.size(), 1));  // ebb
  }
};
}  // namespace toy
