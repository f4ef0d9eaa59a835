#pragma once
// The engine's loop with ebb in it: calls of `kv_` were added. Before, blocks came from a free list, and requests that
// did not fit whole had to wait. Two steps are in flight: one is issued while the last still runs.
#include <deque>

#include "memory.hpp"

namespace toy {

struct session {
  std::uint32_t prompt;  // stands for its text
  int tokens, wanted;    // tokens now, tokens in the end
  ebb::request_id id{};
  ebb::take_id blocks{};
};

template <ebb::space S>
class serving {
 public:
  serving(S const& of, ebb::sizes const& sizes) : space_{of}, memory_{of, sizes}, kv_{of, memory_.borrowed_by(sizes)} {}

  void submit(session s) { waiting_.push_back(s); }
  bool busy() const { return !waiting_.empty() || !prefilling_.empty() || !running_.empty(); }
  ebb::counters counts() const { return kv_.counts(); }
  int answers = 0, wrong = 0, most_running = 0, finished = 0;

  void step() {
    start_prompts();
    int const n = static_cast<int>(running_.size());
    std::vector<ebb::request_id> ids;
    for (session const& s : running_) ids.push_back(s.id);
    ebb::step const step = kv_.begin_step(main_, {ids});  // waits for the step before the last: its buffers are free
    half_ ^= 1;
    read_answers(half_);
    issued_[half_] = running_;
    auto* const prompts = memory_.prompts_of(half_);
    for (int i = 0; i < n; ++i) prompts[i] = running_[static_cast<std::size_t>(i)].prompt;

    auto* const rows = memory_.pool.get();
    kv_.addresses(main_, step);
    space_.run(main_, n, indexer_kernel{prompts, kv_.bounds(), memory_.selection.get()});
    for (int layer = 0; layer < layers; ++layer) {
      ebb::source_id const source{layer};
      auto* const indices = memory_.indices_of(layer);
      space_.run(main_, n, append_kernel{rows, kv_.write_addresses(source), prompts, kv_.bounds(), layer});
      if (layer == 0) kv_.resolve(main_, step, ebb::group_id{0}, memory_.selection.get(), {indices});
      if (layer != 0) kv_.replay(main_, step, ebb::group_id{0}, source, {indices});
      space_.run(main_, n, attention_kernel{rows, indices, memory_.out_of(half_, layer)});
    }
    newest_ = kv_.end_step(main_, step, std::vector<int>(ids.size(), 1));  // every token is accepted: no need to wait

    most_running = std::max(most_running, n);
    for (session& s : running_) {
      if (++s.tokens == s.wanted) kv_.finish(s.id);
    }
    finished += static_cast<int>(std::erase_if(running_, [](session const& s) { return s.tokens == s.wanted; }));
  }
  void drain() {
    kv_.wait(newest_);
    for (int half : {0, 1}) read_answers(half);
  }

 private:
  void start_prompts() {
    if (!prefilling_.empty() && prefill(prefilling_.front())) prefilling_.pop_front();
    while (!waiting_.empty() && static_cast<int>(running_.size() + prefilling_.size()) < memory_.batch) {
      session const& s = waiting_.front();
      auto const id = kv_.admit(s.wanted);
      if (!id) return;  // the error says which pool is short; others will finish
      auto const blocks = kv_.take(prompt_blocks);
      if (!blocks) return kv_.abort(*id);
      prefilling_.push_back({s.prompt, s.tokens, s.wanted, *id, *blocks});
      waiting_.pop_front();
    }
  }
  /// A prompt is computed beside decoding, in taken blocks. Once written, they become history where they lie; blocks
  /// that were not needed go back. False: not there yet.
  bool prefill(session const& s) {
    int const used = (s.tokens + block_tokens - 1) / block_tokens;
    if (blocks_.empty()) {
      auto const blocks = kv_.collect(s.blocks);
      if (!blocks) return false;  // some still have readers
      blocks_ = *blocks;
      for (std::size_t b = 0; b < blocks_.size(); ++b) memory_.table.get()[b] = index(blocks_[b]);
      space_.run(prefill_, used, prefill_kernel{memory_.pool.get(), memory_.table.get(), s.prompt, s.tokens});
      prefilled_ = space_.record(prefill_);
    }
    if (!space_.reached(prefilled_)) return false;  // one prompt at a time has the table
    kv_.adopt(prefill_, s.id, std::span{blocks_}.first(static_cast<std::size_t>(used)), s.tokens);
    kv_.give(prefill_, std::span{blocks_}.subspan(static_cast<std::size_t>(used)));
    blocks_.clear();
    running_.push_back(s);
    return true;
  }
  void read_answers(int half) {
    for (std::size_t i = 0; i < issued_[half].size(); ++i) {
      session const& s = issued_[half][i];
      for (int layer = 0; layer < layers; ++layer, ++answers)
        wrong += memory_.out_of(half, layer)[i] != expected(s.prompt, layer, s.tokens + 1);
    }
    issued_[half].clear();
  }

  S space_;
  memory<S> memory_;
  typename S::stream main_ = space_.make_stream(), prefill_ = space_.make_stream();  // on CUDA: any cudaStream_t
  typename S::event prefilled_{};
  ebb::residency<kv_policy, S> kv_;
  std::deque<session> waiting_, prefilling_;
  std::vector<session> running_, issued_[2];
  std::vector<ebb::frame_id> blocks_;  // of the prompt that is being computed
  ebb::ticket newest_{};
  int half_ = 0;
};

}  // namespace toy
