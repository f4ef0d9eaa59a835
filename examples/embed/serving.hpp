#pragma once
// The engine's serving loop with ebb in it: calls of `kv_` were added. Before, blocks came from a free list, and a
// request that did not fit whole had to wait. Two steps are in flight: one is issued while the last still runs, and
// its answers are read once it is done.
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
  static constexpr int prompt_blocks = 32;  // of the longest prompt

  serving(S const& of, ebb::sizes const& sizes)
      : space_{of},
        memory_{of, sizes},
        table_{array<std::int32_t>(of, prompt_blocks, true)},
        kv_{of, memory_.borrowed_by(sizes)} {}

  void submit(session s) { waiting_.push_back(s); }
  bool busy() const { return !waiting_.empty() || !prefilling_.empty() || !running_.empty(); }
  ebb::counters counts() const { return kv_.counts(); }
  long long answers = 0, wrong = 0;
  int most_running = 0;

  void step() {
    start_prompts();
    int const n = static_cast<int>(running_.size());
    std::vector<ebb::request_id> ids;
    for (session const& s : running_) ids.push_back(s.id);
    ebb::step const step = kv_.begin_step(main_, {ids});  // waits for the step before the last: its buffers are free
    half_ ^= 1;
    read_answers(half_);
    for (int i = 0; i < n; ++i) memory_.prompts_of(half_)[i] = running_[static_cast<std::size_t>(i)].prompt;
    issued_[half_] = running_;

    auto const* const prompts = memory_.prompts_of(half_);
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

    for (session& s : running_) {
      if (++s.tokens == s.wanted) kv_.finish(s.id);
    }
    std::erase_if(running_, [](session const& s) { return s.tokens == s.wanted; });
    most_running = std::max(most_running, n);
  }
  void drain() {
    kv_.wait(newest_);
    for (int half : {0, 1}) read_answers(half);
  }

 private:
  void start_prompts() {
    while (!waiting_.empty() && static_cast<int>(running_.size() + prefilling_.size()) < memory_.batch) {
      session& s = waiting_.front();
      auto const id = kv_.admit(s.wanted);
      if (!id) break;  // the error says which pool is short; others will finish
      auto const blocks = kv_.take(prompt_blocks);
      if (!blocks) {
        kv_.abort(*id);
        break;
      }
      s.id = *id;
      s.blocks = *blocks;
      prefilling_.push_back(s);
      waiting_.pop_front();
    }
    if (!prefilling_.empty() && prefill(prefilling_.front())) prefilling_.pop_front();
  }
  /// A prompt is computed on a stream of its own, in blocks that the engine takes for the longest one; those it wrote
  /// become history where they lie, the others go back. False: some blocks still have readers.
  bool prefill(session const& s) {
    auto const blocks = kv_.collect(s.blocks);
    if (!blocks) return false;
    space_.synchronize(prefilled_);  // the kernel of the last prompt has read its table
    for (std::size_t b = 0; b < blocks->size(); ++b) table_.get()[b] = index((*blocks)[b]);
    int const used = (s.tokens + block_tokens - 1) / block_tokens;
    space_.run(prefill_, used, prefill_kernel{memory_.pool.get(), table_.get(), s.prompt, s.tokens});
    prefilled_ = space_.record(prefill_);
    space_.wait(main_, prefilled_);  // adopted rows are written before the next begin_step, in stream order
    auto const all = std::span{*blocks};
    kv_.adopt(s.id, all.first(static_cast<std::size_t>(used)), s.tokens);
    kv_.give(all.subspan(static_cast<std::size_t>(used)));
    running_.push_back(s);
    return true;
  }
  void read_answers(int half) {
    for (int layer = 0; layer < layers; ++layer) {
      for (std::size_t i = 0; i < issued_[half].size(); ++i, ++answers) {
        session const& s = issued_[half][i];
        wrong += memory_.out_of(half, layer)[i] != expected(s.prompt, layer, s.tokens + 1);
      }
    }
    issued_[half].clear();
  }

  S space_;
  memory<S> memory_;
  std::shared_ptr<std::int32_t> table_;
  typename S::stream main_ = space_.make_stream(), prefill_ = space_.make_stream();  // on CUDA: any cudaStream_t
  typename S::event prefilled_{};
  ebb::residency<kv_policy, S> kv_;
  std::deque<session> waiting_, prefilling_;
  std::vector<session> running_, issued_[2];
  ebb::ticket newest_{};
  int half_ = 0;
};

}  // namespace toy
