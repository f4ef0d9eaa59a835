#pragma once
// Random sequences of every call of an instance, each checked against the reference model.

#include <ebb/ebb.hpp>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "invariants.hpp"
#include "operations.hpp"
#include "random_selection.hpp"
#include "random_shape.hpp"
#include "resolve_check.hpp"

namespace ebb::testing {

/// One instance, its model, and the calls.
template <policy P, class S>
class trial {
  using kv_type = residency<P, S>;
  using metadata = typename P::metadata;
  static constexpr int sources = static_cast<int>(P::ratios.size());

 public:
  explicit trial(setting how)
      : how_{how},
        random_{how.seed},
        space_{how.deferred ? S{host::deferred{how.seed}} : S{}},
        main_{space_.make_stream()},
        side_{space_.make_stream()},
        model_{random_.model} {
    ebb::sizes s = random_.sizes();
    std::int64_t bytes = 0;
    (void)random_.arenas(nullptr, bytes);
    engine_ = space_.device_memory(static_cast<std::size_t>(bytes));
    auto const arenas = random_.arenas(engine_.get(), bytes);
    if (random_.borrows) s.arenas = arenas;
    kv_ = std::make_unique<kv_type>(space_, s);
    audit_ = std::make_unique<auditor<P, kv_type>>(*kv_, model_);
    space_.refuse_copies([this](copy_kind kind, int slot, int page) {
      bool const no = refusal_ > 0 && chance_.below(100) < refusal_;
      if (no) refusals_.push_back({kind, slot, page});
      refused_ += no;
      return no;
    });
  }
  trial(trial const&) = delete;
  trial& operator=(trial const&) = delete;
  ~trial() {
    broken_ = std::make_exception_ptr(0);  // what is still enqueued checks nothing
    gates_.clear();
    space_.drain();
    kv_.reset();
  }

  /// Makes one call and checks everything. Throws: fault, or what the library threw and should not have.
  void perform(operation const& op) {
    generator g{op.seed};
    chance_ = generator{op.seed ^ 0xC0FFEEull};
    note_.clear();
    switch (op.what) {
      case call::step:
        step(g);
        break;
      case call::admit:
        admit(g);
        break;
      case call::finish:
        finish(g);
        break;
      case call::preempt:
        preempt(g);
        break;
      case call::resume:
        resume(g);
        break;
      case call::truncate:
        truncate(g);
        break;
      case call::reserve:
        reserve(g);
        break;
      case call::import:
        import(g);
        break;
      case call::publish:
        publish(g);
        break;
      case call::hold:
        hold(g);
        break;
      case call::take:
        take(g);
        break;
      case call::collect:
        collect(g);
        break;
      case call::give:
        give(g);
        break;
      case call::adopt:
        adopt(g);
        break;
      case call::whole:
        whole(g);
        break;
      case call::refuse:
        refusal_ = g.below(2) == 0 ? 0 : 1 + g.below(g.below(3) == 0 ? 100 : 20);
        say("refuse ", refusal_, " %");
        break;
      case call::wrong:
        wrong(g);
        break;
      case call::advance:
        advance(g);
        break;
      case call::gate:
        gate(g);
        break;
      case call::quiesce:
        quiesce();
        break;
      case call::look:
        look();
        break;
      default:
        break;
    }
    if (how_.deferred) {
      for (int n = g.below(4) == 0 ? g.below(12) : 0; n > 0; --n) space_.advance();
    }
    audit(op.seed);
  }
  /// The end of a sequence: everything settles, everything is checked.
  void finish_up() {
    quiesce();
    audit(0);
  }

  /// The ledger in words.
  std::string books() const {
    static constexpr char const* states[] = {"free", "required", "lent", "taken", "filling", "revoking"};
    std::ostringstream out;
    ledger const& book = kv_->allocator().book();
    out << "  tail " << model_.shape.tail_pages() << " hot " << model_.shape.hot_frames() << " done "
        << static_cast<long long>(book.done) << " last " << static_cast<long long>(book.last) << " wanted "
        << kv_->allocator().outstanding() << "\n  frames:";
    for (int i = 0; i < book.frames.size(); ++i) {
      frame_record const& f = book.frames[frame_id{i}];
      out << " " << i << ":" << states[static_cast<int>(f.state)] << "/" << f.slot << "/" << f.page;
    }
    for (request_record const& r : book.requests()) {
      if (r.phase == phase::vacant) continue;
      out << "\n  slot " << r.id.slot << " phase " << static_cast<int>(r.phase) << (r.pinned ? " pinned" : "")
          << " tokens " << r.tokens << "/" << r.reserved << "/" << r.tokens_max << " reserve " << r.reserve << " hot "
          << r.hot.size() << " idle " << r.idle.size() << " pages:";
      for (auto const& p : r.pages)
        out << " " << (p.mapped ? "" : "(") << index(p.at.frame) << (p.mapped ? "" : ")") << "+" << p.backed << "/"
            << p.backing;
    }
    out << "\n  marked:";
    for (auto [slot, page] : book.marked) out << " " << slot << "/" << page;
    return out.str() + "\n";
  }
  std::string const& note() const { return note_; }
  /// What happened so far, so that a run can tell what it tried.
  std::vector<std::pair<char const*, std::uint64_t>> totals() const {
    counters const c = kv_->counts();
    move_counts const& p = c.pages;
    return {{"rows checked", rows_checked_},
            {"steps", c.steps},
            {"resolves of somebody", resolves_},
            {"tail hits", c.tail_hits},
            {"lent hits", c.lent_hits},
            {"hot hits", c.hot_hits},
            {"fetched", c.fetched_rows},
            {"staged", c.staged_rows},
            {"rejected", c.rejected},
            {"admitted", p.admitted},
            {"refused", p.refused},
            {"waited", p.waited},
            {"finished", p.finished},
            {"preempted", p.preempted},
            {"resumed", p.resumed},
            {"truncated", p.truncated},
            {"lent", p.lent},
            {"revoked", p.revoked},
            {"refilled", p.refilled},
            {"restored", p.restored},
            {"backed up", p.backed_up},
            {"imported", p.imported},
            {"adopted", p.adopted},
            {"copies refused", p.copy_failures},
            {"forced waits", p.forced_waits},
            {"ragged steps", ragged_},
            {"accepted on the device", accepted_on_device_},
            {"prefetched", c.prefetched_rows},
            {"prefetch dropped", c.prefetch_dropped},
            {"hits that were announced", announced_hits_}};
  }

 private:
  template <class... Words>
  void say(Words const&... words) {
    note_ += sentence({words...});
  }

  // ---- choosing --------------------------------------------------------------------------------------------------------------------

  template <class Fits>
  model_request* pick(generator& g, Fits fits) {
    std::vector<model_request*> out;
    for (auto& r : model_.live) {
      if (fits(r)) out.push_back(&r);
    }
    return out.empty() ? nullptr : out[static_cast<std::size_t>(g.below(static_cast<int>(out.size())))];
  }
  bool in_batch(model_request const& r) const {
    return open_.number != 0 && std::find(batch_.begin(), batch_.end(), r.id) != batch_.end();
  }
  bool queued(model_request const& r) const {
    return std::any_of(later_.begin(), later_.end(), [&](auto const& l) { return l.id == r.id; });
  }
  bool queued(model_request const& r, char what) const {
    return std::any_of(later_.begin(), later_.end(), [&](auto const& l) { return l.id == r.id && l.what == what; });
  }
  /// No step and no waiting call concerns it.
  bool idle(model_request const& r) const { return !in_batch(r) && !queued(r); }
  bool ready(model_request const& r) const { return kv_->ready(r.id); }

  template <class F>
  void must_refuse(char const* what, F f) {
    try {
      f();
    } catch (std::invalid_argument const&) {
      return;
    } catch (std::out_of_range const&) {
      return;
    }
    fail(what, " was accepted");
  }
  template <class T>
  void check_outcome(char const* what, outcome<T> const& got, std::vector<shortage> const& lacking) {
    if (got.has_value() != lacking.empty()) {
      std::string why;
      if (!got) why = got.error().message();
      for (auto const& l : lacking) why += " model: " + l.message();
      fail(what, got ? " was accepted: " : " was refused: ", why);
    }
    if (got) return;
    shortage const e = got.error();
    for (auto const& l : lacking) {
      if (l.pool == e.pool && l.wanted == e.wanted && l.free == e.free && l.ever == e.ever) return;
    }
    fail(what, " was refused for the wrong reason: ", e.message(), "; model: ", lacking.front().message());
  }

  // ---- admission -------------------------------------------------------------------------------------------------------------------

  std::int64_t random_length(generator& g) {
    switch (g.below(20)) {
      case 0:
        return model_.shape.max_tokens + 1 + g.below(100);
      case 1:
        return std::min<std::int64_t>(model_.shape.max_tokens,
                                      std::int64_t{model_.shape.host_pages} * P::page_tokens + 1);
      case 2:
      case 3:
      case 4:
      case 5:
        return 1 + g.below((model_.shape.tail_pages() + model_.shape.hot_frames()) * P::page_tokens);
      case 6:
      case 7:
      case 8:
        return 1 + g.below(random_.longest * P::page_tokens);
      default:
        return random_.longest * P::page_tokens - g.below(random_.longest * P::page_tokens / 3);
    }
  }
  void admit(generator& g) {
    std::int64_t const most = random_length(g);
    std::int64_t const first =
        g.below(2) == 0 ? 0 : g.below(static_cast<int>(std::min<std::int64_t>(most, 1 << 20)) + 1);
    std::uint64_t hold = 0;
    if (!model_.holds.empty() && g.below(2) == 0)
      hold = g.below(2) == 0 ? model_.holds.begin()->first : model_.holds.rbegin()->first;
    say("admit ", most, " first ", first, " hold ", hold);
    auto const lacking = model_.lacking({model_.shape.required(most), model_.shape.pages(most), 1, most}, hold);
    auto const before = kv_->pools();
    auto const got = kv_->admit(most, first, hold_id{hold});
    check_outcome("admit", got, lacking);
    if (!got) return;
    say(" -> slot ", got->slot, ".", got->incarnation);
    if (model_.find(*got) != nullptr) fail("admit: handle ", got->slot, ".", got->incarnation, " is in use");
    model_.holds.erase(hold);
    model_.admit(*got, most);
    if (before.frames_wanted == 0 &&
        before.frames_free >= std::min(model_.shape.required(most), model_.shape.pages(first)) && !kv_->ready(*got)) {
      fail("admit: pending with ", before.frames_free, " frames free");
    }
  }
  void finish(generator& g) {
    bool const full = g.below(3) != 0;
    auto* r = pick(g, [&](auto const& m) { return !queued(m, 'f') && (!full || m.tokens == m.tokens_max); });
    if (r == nullptr) return;
    request_id const id = r->id;
    say("finish ", id.slot);
    g.below(2) == 0 ? kv_->finish(id) : kv_->abort(id);
    later({'f', id, 0});
  }
  void preempt(generator& g) {
    auto* r = pick(g, [&](auto const& m) {
      return !queued(m, 'f') && !queued(m, 'p') && !m.preempted && !m.importing() && ready(m);
    });
    if (r == nullptr) return;
    say("preempt ", r->id.slot);
    request_id const id = r->id;
    kv_->preempt(id);
    later({'p', id, 0});
  }
  void truncate(generator& g) {
    auto* r = pick(g, [&](auto const& m) { return !queued(m, 'f') && !m.importing(); });
    if (r == nullptr) return;
    std::int64_t most = r->certain;
    for (auto const& l : later_) most = l.id == r->id && l.what == 't' ? l.tokens : most;
    std::int64_t n = 0;
    switch (g.below(4)) {
      case 0:
        n = g.below(static_cast<int>(most) + 1) / P::page_tokens * P::page_tokens;
        break;
      case 1:
        n = std::max<std::int64_t>(0, most - g.below(2 * P::page_tokens));
        break;
      case 2:
        n = g.below(4) == 0 ? 0 : most;
        break;
      default:
        n = g.below(static_cast<int>(most) + 1);
    }
    if (most < r->tokens)
      must_refuse("truncate to more than is certain, or than a waiting one keeps",
                  [&] { kv_->truncate(r->id, most + 1); });
    say("truncate ", r->id.slot, " from ", r->tokens, " to ", n);
    request_id const id = r->id;
    kv_->truncate(id, n);
    later({'t', id, n});
  }
  void resume(generator& g) {
    auto* r = pick(g, [&](auto const& m) { return idle(m) ? m.preempted : open_.number == 0 && queued(m, 'p'); });
    if (r == nullptr) return;
    learn(r->id);
    std::int64_t const tokens = g.below(2) == 0 ? -1 : g.below(static_cast<int>(r->tokens_max) + 1);
    say("resume ", r->id.slot, " tokens ", tokens);
    auto const got = kv_->resume(r->id, tokens);
    check_outcome("resume", got, model_.lacking({model_.shape.required(r->tokens_max), 0, 0, 0}));
    if (got) model_.resume(*r);
  }
  /// What a control call does, now or when the open step ends.
  struct later_call {
    char what;
    request_id id;
    std::int64_t tokens;
  };
  void later(later_call c) {
    later_.push_back(c);
    if (open_.number == 0) {
      carry_out();
    } else {
      say(" (later)");
    }
  }
  /// The calls that waited; what depends on a length that the host does not know waits on.
  void carry_out() {
    std::vector<later_call> still;
    for (auto const& c : std::exchange(later_, {})) {
      auto const* r = model_.find(c.id);
      if (r == nullptr) continue;  // finished meanwhile
      if (c.what != 'f' && r->pending > 0) {
        still.push_back(c);
      } else {
        apply(c);
      }
    }
    later_ = std::move(still);
  }
  /// The next call waits for the length of the request.
  void learn(request_id id) {
    if (!model_.is_unknown(id)) return;
    say(" (learns) ");
    open_gates();
    model_.settle([&](auto const&) { return model_.is_unknown(id); });
    if (open_.number == 0) carry_out();
  }
  /// begin_step number `next` waited for old steps, and saw what is done.
  void settle(std::uint64_t next) {
    ticket const done = kv_->allocator().book().done;
    auto const lag = static_cast<std::uint64_t>(model_.shape.steps_in_flight);
    model_.settle([&](auto const& a) { return a.at <= done || a.step + lag <= next; });
    carry_out();
  }
  void apply(later_call const& c) {
    auto* r = model_.find(c.id);
    if (c.what == 'f') {
      gone_.push_back(c.id);
      if (gone_.size() > 20) gone_.erase(gone_.begin());
      return model_.finish(c.id);
    }
    if (c.what == 'p') model_.preempt(*r);
    if (c.what == 't') model_.truncate(*r, c.tokens);
  }

  void hold(generator& g) {
    if (!model_.holds.empty() && g.below(3) != 0) {
      std::uint64_t const id = model_.holds.begin()->first;
      say("release ", id);
      kv_->release(hold_id{id});
      model_.holds.erase(id);
      return;
    }
    std::int64_t const most = random_length(g);
    say("hold ", most);
    auto const got = kv_->hold(most);
    check_outcome("hold", got, model_.impossible({model_.shape.required(most), model_.shape.pages(most), 0, most}));
    if (got) model_.holds[static_cast<std::uint64_t>(*got)] = most;
  }
  void take(generator& g) {
    int const n = 1 + g.below(g.below(4) == 0 ? model_.shape.frames : std::max(1, model_.shape.frames / 4));
    say("take ", n);
    auto const got = kv_->take(n);
    check_outcome("take", got, model_.lacking({n, 0, 0, 0}));
    if (!got) return;
    takes_.push_back({*got, n});
    model_.taken += n;
  }
  void collect(generator& g) {
    if (takes_.empty()) return;
    auto const it = takes_.begin() + g.below(static_cast<int>(takes_.size()));
    say("collect ", it->second);
    auto const got = kv_->collect(it->first);
    if (!got) return;
    say(" got");
    if (static_cast<int>(got->size()) != it->second) fail("collect: ", got->size(), " frames of ", it->second);
    takes_.erase(it);
    for (frame_id f : *got) {
      engine_frames_.push_back(f);
      scribble(f);
    }
  }
  std::vector<frame_id> some_frames(generator& g, int n) {
    std::vector<frame_id> out;
    for (; n > 0 && !engine_frames_.empty(); --n) {
      auto const it = engine_frames_.begin() + g.below(static_cast<int>(engine_frames_.size()));
      out.push_back(*it);
      engine_frames_.erase(it);
    }
    return out;
  }
  void give(generator& g) {
    auto const frames = some_frames(g, 1 + g.below(6));
    if (frames.empty()) return;
    say("give ", frames.size());
    auto const on = g.below(2) == 0 ? main_ : side_;
    space_.call(on, [this, frames] {
      for (frame_id f : frames) scribble(f);
    });
    kv_->give(on, frames);
    model_.taken -= static_cast<std::int64_t>(frames.size());
  }
  /// The engine writes all over a frame of its own.
  void scribble(frame_id f) {
    for (source_view const& v : audit_->views())
      std::memset(v.base + index(f) * v.layout.stride, 0x77, static_cast<std::size_t>(v.host_layout.payload()));
  }
  void adopt(generator& g) {
    if (engine_frames_.empty()) return;
    auto* r = pick(g, [&](auto const& m) {
      return idle(m) && !m.preempted && !m.importing() && ready(m) && m.tokens % P::page_tokens == 0 &&
             m.tokens < m.tokens_max && static_cast<std::int64_t>(record(m).pages.size()) == m.tokens / P::page_tokens;
    });
    if (r == nullptr) return;
    learn(r->id);
    std::int64_t const room = model_.shape.pages(r->tokens_max) - model_.shape.pages(r->tokens);
    auto const frames = some_frames(g, static_cast<int>(std::min<std::int64_t>(room, 1 + g.below(4))));
    auto const n = static_cast<std::int64_t>(frames.size());
    std::int64_t const tokens =
        std::min(r->tokens_max, r->tokens + n * P::page_tokens - (g.below(2) == 0 ? g.below(P::page_tokens) : 0));
    say("adopt ", r->id.slot, ": ", n, " frames to ", tokens);
    struct write {
      int source;
      std::int64_t address;
      std::uint64_t seed;
    };
    std::vector<write> writes;
    for (int s = 0; s < sources; ++s) {
      int const rows = model_.shape.rows_per_page(s);
      for (std::int64_t p = model_.rows_of(s, r->tokens); p < model_.rows_of(s, tokens); ++p) {
        frame_id const f = frames[static_cast<std::size_t>(p / rows - r->tokens / P::page_tokens)];
        writes.push_back({s, std::int64_t{index(f)} * rows + p % rows, r->write(s, p, false)});
      }
    }
    auto const on = g.below(2) == 0 ? main_ : side_;
    space_.call(on, [this, writes] {
      for (write const& w : writes) {
        source_view const& v = audit_->views()[static_cast<std::size_t>(w.source)];
        write_row(v.base, v.layout, w.address, w.seed);
      }
    });
    kv_->adopt(on, r->id, frames, tokens);
    model_.taken -= n;
    model_.commit(*r, tokens);
  }
  void whole(generator& g) {
    auto* r = pick(g, [&](auto const& m) { return idle(m) && !m.preempted && !m.importing() && ready(m); });
    if (r == nullptr) return;
    learn(r->id);
    if (r->pinned) {
      say("release_whole ", r->id.slot);
      kv_->release_whole(r->id);
      r->pinned = false;
      r->reserve = model_.shape.required(r->tokens_max);
      return;
    }
    // Hot rows, where the request has them already, come on top of its pages.
    std::int64_t const least = model_.shape.pages(r->tokens_max) - r->reserve;
    std::int64_t const most = least + model_.shape.hot_frames();
    say("require_whole ", r->id.slot);
    auto const got = kv_->require_whole(r->id);
    if (model_.lacking({std::max<std::int64_t>(0, most), 0, 0, 0}).empty() && !got)
      fail("require_whole was refused: ", got.error().message());
    if (!model_.lacking({std::max<std::int64_t>(0, least), 0, 0, 0}).empty() && got) fail("require_whole was accepted");
    if (!got) return;
    r->pinned = true;
    std::int64_t const now = record(*r).reserve;
    if (now < std::max(r->reserve, r->reserve + least) || now > std::max(r->reserve, r->reserve + most))
      fail("require_whole: ", now, " frames are promised");
    r->reserve = now;
  }
  request_record const& record(model_request const& m) const { return kv_->allocator().book().at(m.id.slot); }

  // ---- history that comes in -------------------------------------------------------------------------------------------------------

  void reserve(generator& g) {
    auto* r = pick(g, [&](auto const& m) {
      return idle(m) && !m.preempted && !m.importing() && ready(m) && m.tokens < m.tokens_max;
    });
    if (r == nullptr) return;
    learn(r->id);
    std::int64_t const room = r->tokens_max - r->tokens;
    std::int64_t n =
        1 + g.below(static_cast<int>(g.below(2) == 0 ? room : std::min<std::int64_t>(room, 3 * P::page_tokens)));
    if (g.below(3) == 0)
      n = std::min(room, std::max<std::int64_t>(1, (r->tokens + n) / P::page_tokens * P::page_tokens - r->tokens));
    say("reserve ", r->id.slot, ": ", r->tokens, " to ", r->tokens + n);
    r->reserved = r->tokens + n;
    r->arrived.assign(sources, 0);
    r->refused.assign(sources, {});
    import_after_ = kv_->reserve_import(r->id, r->reserved);
    reserve_after_[r->name] = import_after_;
  }
  void import(generator& g) {
    auto* r = pick(g, [&](auto const& m) { return m.importing() && idle(m); });
    if (r == nullptr) return;
    int const all = g.below(2);
    for (int s = 0; s < sources; ++s) {
      if (all == 0 && r->arrived[static_cast<std::size_t>(s)] != 0 && g.below(8) != 0) continue;
      g.below(3) == 0 && r->arrived[static_cast<std::size_t>(s)] == 0 ? write_pages(*r, s) : import_source(g, *r, s);
      if (all == 0) break;
    }
  }
  void import_source(generator& g, model_request& r, int s) {
    std::int64_t const from = model_.rows_of(s, r.tokens);
    std::int64_t const to = model_.rows_of(s, r.reserved);
    std::int64_t const total = P::row.total();
    std::int64_t const stride = total + (g.below(2) == 0 ? 0 : g.below(24));
    std::int64_t const shift = g.below(2) == 0 ? 0 : g.below(16);
    say("import ", r.id.slot, " source ", s, " stride ", stride, " shift ", shift, "; ");
    auto memory = space_.shared_memory(static_cast<std::size_t>((to - from) * stride + shift + 16));
    std::byte* const rows = memory.get() + shift;
    for (std::int64_t p = from; p < to; ++p) {
      std::uint64_t const seed = r.write(s, p, false);
      write_bytes(rows + (p - from) * stride, P::row.in_row, seed, 0);
      write_bytes(rows + (p - from) * stride + P::row.in_row, P::row.at_page_end, seed, second_segment(P::row));
    }
    refusals_.clear();
    ticket const t = kv_->import(r.id, static_cast<source_id>(s), {rows, stride == total ? 0 : stride});
    auto& refused = r.refused[static_cast<std::size_t>(s)];
    refused.clear();
    for (auto const& no : refusals_) {
      if (no.kind == copy_kind::import) refused.insert(no.page);
    }
    r.arrived[static_cast<std::size_t>(s)] = 1;
    buffers_.push_back({std::move(memory), static_cast<std::size_t>((to - from) * stride + shift), t});
  }
  /// The engine writes the pages itself.
  void write_pages(model_request& r, int s) {
    if (!kv_->reached(reserve_after_[r.name])) return;
    say("write ", r.id.slot, " source ", s, "; ");
    auto const pages = kv_->import_pages(r.id, static_cast<source_id>(s));
    source_view const& v = audit_->views()[static_cast<std::size_t>(s)];
    std::int64_t const rows = model_.shape.rows_per_page(s);
    std::int64_t next = r.tokens / P::page_tokens;
    for (import_page const& p : pages) {
      if (index(p.page) != next++) fail("import_pages: page ", index(p.page), " is not the next");
      if (p.host == nullptr && p.frame == nullptr) fail("import_pages: page ", index(p.page), " is nowhere");
      for (std::int64_t i = 0; i < rows; ++i) {
        std::int64_t const row = index(p.page) * rows + i;
        if (row < model_.rows_of(s, r.tokens) || row >= model_.rows_of(s, r.reserved)) continue;
        std::uint64_t const seed = r.write(s, row, false);
        if (p.host != nullptr) write_row(p.host, v.host_layout, i, seed);
        if (p.frame != nullptr) {
          page_layout in_frame = v.layout;
          write_row(p.frame, in_frame, i, seed);
        }
      }
    }
    if (next < model_.shape.pages(r.reserved))
      fail("import_pages: ", next, " pages of ", model_.shape.pages(r.reserved));
    r.arrived[static_cast<std::size_t>(s)] = 1;
  }
  void publish(generator& g) {
    auto* r = pick(g, [&](auto const& m) { return m.importing() && idle(m); });
    if (r == nullptr) return;
    for (int s = 0; s < sources; ++s) {
      if (r->arrived[static_cast<std::size_t>(s)] == 0) import_source(g, *r, s);
    }
    std::int64_t const n =
        g.below(3) != 0 ? r->reserved : r->tokens + 1 + g.below(static_cast<int>(r->reserved - r->tokens));
    bool lacks = false;
    for (auto const& f : r->refused) lacks |= !f.empty();
    say("publish ", r->id.slot, " ", n, lacks ? " lacking" : "");
    try {
      kv_->publish(r->id, n);
    } catch (std::invalid_argument const&) {
      throw;
    } catch (std::runtime_error const&) {
      if (!lacks) throw;
      return;
    }
    if (lacks) fail("publish: accepted, though a page was not imported");
    model_.commit(*r, n);
  }

  // ---- a step ----------------------------------------------------------------------------------------------------------------------

  void step(generator& g) {
    if (open_.number == 0) {
      bool const anybody =
          std::any_of(model_.live.begin(), model_.live.end(), [&](auto const& r) { return can_step(r); });
      if (!anybody && g.below(4) != 0) return move_on(g);
      return begin(g);
    }
    if (!written_) return write(g);
    if (g.below(16) == 0) return join();
    int left = 0;
    for (char d : resolved_) left += d == 0;
    if (left > 0 && g.below(10) != 0) {
      if (P::candidate_pool > 0 && g.below(5) < 2) return prefetch(g);
      return resolve(g);
    }
    end(g);
  }

  /// Nobody can step: lets somebody.
  void move_on(generator& g) {
    auto const full = [](auto const& r) { return r.tokens == r.tokens_max; };
    for (auto& r : model_.live) {
      if (r.importing() && idle(r)) return publish(g);
      if (r.preempted && idle(r) && g.below(2) == 0) return resume(g);
      if (!full(r) || queued(r)) continue;
      request_id const id = r.id;
      std::int64_t const n = g.below(static_cast<int>(std::max<std::int64_t>(1, r.certain)));
      say("full: ");
      if (g.below(2) == 0) {
        say("truncate ", id.slot, " to ", n);
        kv_->truncate(id, n);
        return later({'t', id, n});
      }
      say("finish ", id.slot);
      kv_->finish(id);
      return later({'f', id, 0});
    }
    admit(g);
  }
  bool can_step(model_request const& r) const {
    return !r.preempted && !r.importing() && ready(r) && r.certain < r.tokens_max;
  }
  void begin(generator& g) {
    bool const hasty = g.below(16) == 0;  // perhaps requests that preempt or truncate wait for
    std::vector<model_request*> able;
    for (auto& r : model_.live) {
      if (can_step(r) && (hasty || !queued(r))) able.push_back(&r);
    }
    batch_.clear();
    int const most = g.below(3) == 0 ? g.below(model_.shape.max_batch + 1) : model_.shape.max_batch;
    while (!able.empty() && static_cast<int>(batch_.size()) < most) {
      auto const it = able.begin() + g.below(static_cast<int>(able.size()));
      batch_.push_back((*it)->id);
      able.erase(it);
    }
    int const queries = g.below(2) == 0 ? P::max_queries : 1 + g.below(P::max_queries);
    int const n = static_cast<int>(batch_.size());
    int const padded = g.below(2) == 0 ? 0 : n + g.below(model_.shape.max_batch - n + 1);
    enum { uniform, counted, offsets } const kind = static_cast<decltype(uniform)>(std::max(0, g.below(5) - 2));
    padded_ = padded != 0 ? padded : kind == uniform ? n : std::max(n, 1);  // somebody writes the padding
    std::shared_ptr<std::byte> own_offsets;
    upper_.assign(batch_.size(), queries);
    arrays_ = uniform_rows(n, padded_, queries);
    batch b{batch_, queries, padded == n ? 0 : padded};
    if (kind == counted) {
      for (int& q : upper_) q = 1 + g.below(P::max_queries);
      arrays_ = random_rows(g, upper_, n);
      b.counts = upper_;
      bool const exact = n > 0 && arrays_.rows == arrays_.of.back().first + arrays_.of.back().count;
      b.rows = exact && g.below(2) == 0 ? 0 : arrays_.rows;
    } else if (kind == offsets) {
      std::vector<int> counts(static_cast<std::size_t>(padded_));
      for (int& q : counts) q = g.below(queries + 1);
      arrays_ = random_rows(g, counts, n);
      own_offsets = engine_array(offsets_of(counts));
      b.offsets = reinterpret_cast<std::int32_t const*>(own_offsets.get());
      b.rows = arrays_.rows;
    }
    bool const is_ragged = kind != uniform;
    std::optional<ticket> progress;
    if (int const k = g.below(4); k == 0) {
      progress = kv_->progress();
    } else if (k == 1) {
      progress = ticket{static_cast<std::uint64_t>(kv_->progress()) / 2};
    } else if (k == 2 && g.below(3) == 0 && !tickets_.empty() && !gated()) {
      progress = tickets_[static_cast<std::size_t>(g.below(static_cast<int>(tickets_.size())))];
    }
    say("begin queries ", queries, " padded ", padded, is_ragged ? " ragged rows " : " rows ", arrays_.rows,
        " progress ", progress ? static_cast<long long>(*progress) : -1LL, " batch");
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      model_request const& m = *model_.find(batch_[i]);
      say(" ", m.id.slot, "@", m.certain, m.pending > 0 ? "+?" : "");
      if (is_ragged) say("x", arrays_.of[i].count);
    }
    open_gates();
    long long const refused = refused_;
    ticket const seen = kv_->allocator().book().done, least = std::max(seen, progress.value_or(kv_->progress()));
    std::uint64_t const next = steps_ + 1;
    auto const waits = [&] {
      return std::any_of(batch_.begin(), batch_.end(), [&](request_id id) {
        model_request const& m = *model_.find(id);
        return queued(m) || m.preempted || !ready(m);
      });
    };
    try {
      open_ = kv_->begin_step(main_, b, progress);
    } catch (std::invalid_argument const& e) {
      if (!hasty) throw;
      settle(next);
      if (!waits()) throw;
      batch_.clear();
      say(" refused: ", e.what());
      return;
    } catch (std::runtime_error const& e) {
      settle(next);
      batch_.clear();
      if (refused_ == refused) throw;
      say(" refused: ", e.what());
      return;
    }
    if (ticket const done = kv_->allocator().book().done; done < least || (progress && done != least))
      fail("begin_step: sees copies up to ", static_cast<long long>(done), ", not ", static_cast<long long>(least));
    ebb::step const begun = std::exchange(open_, {});
    settle(next);  // between two steps
    open_ = begun;
    steps_ = next;
    if (waits()) fail("begin_step: took a request that another call waits for");
    int const most_queries = kind == counted ? P::max_queries : queries;
    if (open_.number != next || open_.requests != n || open_.queries != most_queries || open_.padded != padded_ ||
        open_.shape.rows != arrays_.rows)
      fail("begin_step: the step does not say what the batch said");
    ragged_ += is_ragged;
    if (own_offsets != nullptr) keep(std::move(own_offsets), static_cast<std::size_t>(padded_) + 1);
    for (auto& m : model_.live) {
      for (auto* rows : {&m.claimed, &m.present}) {
        for (auto& of_set : *rows) of_set.clear();
      }
    }
    ahead_ = nullptr;
    written_ = false;
    resolved_.assign(model_.shape.groups.size(), 0);
    ledger const& book = kv_->allocator().book();
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      request_id const id = batch_[i];
      model_request const& m = *model_.find(id);
      request_record const& r = book.at(id.slot);
      for (std::int64_t p = m.tokens / P::page_tokens;
           p < model_.shape.pages(std::min<std::int64_t>(m.tokens + upper_[i], m.tokens_max)); ++p) {
        if (p >= static_cast<std::int64_t>(r.pages.size()) || !r.pages[static_cast<std::size_t>(p)].mapped)
          fail("I11: page ", p, " of slot ", id.slot, " cannot be written");
      }
      if (m.pinned && !kv_->whole(id)) fail("require_whole: slot ", id.slot, " is in a step and not whole");
    }
    if (drained()) {
      for (auto const& m : model_.live) audit_->map(m);
    }
  }

  /// Rows for those counts, the first n of which are the batch's, and perhaps padding.
  array_rows random_rows(generator& g, std::vector<int> const& counts, int n) const {
    array_rows out;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (static_cast<int>(i) < n) out.of.push_back({out.rows, counts[i]});
      out.rows += counts[i];
    }
    int const most = model_.shape.max_batch * P::max_queries;
    out.rows = std::clamp(out.rows + (g.below(2) == 0 ? 0 : g.below(5)), 1, most);
    return out;
  }
  static std::vector<std::int32_t> offsets_of(std::vector<int> const& counts) {
    std::vector<std::int32_t> out{0};
    for (int n : counts) out.push_back(out.back() + n);
    return out;
  }
  /// An array of the engine's that its kernels write on the main stream, garbage until then.
  std::shared_ptr<std::byte> engine_array(std::vector<std::int32_t> values) {
    std::size_t const bytes = values.size() * sizeof(std::int32_t);
    auto memory = space_.shared_memory(std::max<std::size_t>(1, bytes));
    std::memset(memory.get(), 0x66, bytes);
    to_write_.push_back([memory, values = std::move(values)] {
      std::copy(values.begin(), values.end(), reinterpret_cast<std::int32_t*>(memory.get()));
    });
    return memory;
  }
  void write_arrays() {
    for (auto& f : std::exchange(to_write_, {})) call_on_main(std::move(f));
  }
  /// It stays as it is until the open step's ticket is reached.
  void keep(std::shared_ptr<std::byte> memory, std::size_t words) {
    of_step_.push_back({std::move(memory), words * sizeof(std::int32_t), ticket::none});
    write_arrays();
  }

  std::vector<member> members() const {
    std::vector<member> out;
    for (auto id : batch_) {
      request_record const& r = kv_->allocator().book().at(id.slot);
      member m{id.slot, {}, {}};
      for (auto const& p : r.pages) m.frames.push_back(p.mapped ? index(p.at.frame) : -1);
      for (frame_id f : r.hot) m.hot.push_back(index(f));
      out.push_back(std::move(m));
    }
    return out;
  }

  void write(generator&) {
    say("addresses and rows");
    kv_->addresses(main_, open_);
    written_ = true;
    now_ = members();
    struct expected {
      std::vector<std::int32_t> bounds;
      std::vector<std::vector<std::int32_t>> writes;
      std::vector<std::vector<std::uint64_t>> seeds;
    };
    auto want = std::make_shared<expected>();
    // Nothing is written behind the step's rows.
    want->bounds.assign(static_cast<std::size_t>(model_.shape.max_batch * P::max_queries), 0);
    want->writes.assign(sources, std::vector<std::int32_t>(want->bounds.size(), -1));
    want->seeds.assign(sources, std::vector<std::uint64_t>(want->bounds.size(), 0));
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      model_request& m = *model_.find(batch_[i]);
      for (int j = 0; j < arrays_.of[i].count; ++j) {
        std::int64_t const token = m.tokens + j;
        auto const at = static_cast<std::size_t>(arrays_.of[i].first + j);
        if (token >= m.tokens_max) continue;
        want->bounds[at] = static_cast<std::int32_t>(token + 1);
        for (int s = 0; s < sources; ++s) {
          int const r = model_.shape.ratios[static_cast<std::size_t>(s)];
          if ((token + 1) % r != 0) continue;
          int const rows = model_.shape.rows_per_page(s);
          want->writes[static_cast<std::size_t>(s)][at] =
              now_[i].frames[static_cast<std::size_t>(token / P::page_tokens)] * rows +
              static_cast<std::int32_t>(token / r % rows);
          want->seeds[static_cast<std::size_t>(s)][at] = m.write(s, token / r, true);
        }
      }
    }
    bounds_ = want->bounds;
    call_on_main([this, want] {
      for (std::size_t i = 0; i < want->bounds.size(); ++i) {
        if (kv_->bounds()[i] != want->bounds[i])
          fail("addresses: bound ", i, " is ", kv_->bounds()[i], ", not ", want->bounds[i]);
      }
      for (int s = 0; s < sources; ++s) {
        auto const* writes = kv_->write_addresses(static_cast<source_id>(s));
        source_view const& v = audit_->views()[static_cast<std::size_t>(s)];
        for (std::size_t i = 0; i < want->bounds.size(); ++i) {
          if (writes[i] != want->writes[static_cast<std::size_t>(s)][i])
            fail("addresses: query ", i, " of source ", s, " is written at ", writes[i], ", not ",
                 want->writes[static_cast<std::size_t>(s)][i]);
          if (writes[i] >= 0) write_row(v.base, v.layout, writes[i], want->seeds[static_cast<std::size_t>(s)][i]);
        }
      }
    });
  }

  /// Work of the engine on the main stream, or on a side stream that the main stream joins.
  void call_on_main(std::function<void()> what, bool aside = false) {
    auto run = [this, what = std::move(what)] {
      if (broken_) return;
      try {
        what();
      } catch (...) {
        broken_ = std::current_exception();
      }
    };
    if (!aside) return space_.call(main_, run);
    space_.wait(side_, space_.record(main_));
    space_.call(side_, run);
    space_.wait(main_, space_.record(side_));
  }

  void resolve(generator& g) {
    std::vector<int> open;
    for (int i = 0; i < static_cast<int>(resolved_.size()); ++i) {
      if (resolved_[static_cast<std::size_t>(i)] == 0) open.push_back(i);
    }
    int const group = open[static_cast<std::size_t>(g.below(static_cast<int>(open.size())))];
    resolved_[static_cast<std::size_t>(group)] = 1;
    say("resolve group ", group);
    resolves_ += !batch_.empty();

    if (again_ && g.below(2) == 0) call_on_main(again_);  // whatever ran beside it
    // Rows and bounds are the step's, or its own.
    enum { steps, own_bounds, own_queries, own_offsets } rows_are = steps;
    if (padded_ > 0 && g.below(2) == 0) rows_are = static_cast<decltype(rows_are)>(1 + g.below(3));
    array_rows arrays = arrays_;
    selected what;
    std::vector<int> counts;
    if (rows_are >= own_queries) what.queries = 1 + g.below(P::max_queries);
    if (rows_are == own_queries) arrays = uniform_rows(open_.requests, padded_, what.queries);
    if (rows_are == own_offsets) {
      counts.resize(static_cast<std::size_t>(padded_));
      for (int& q : counts) q = g.below(what.queries + 1);
      arrays = random_rows(g, counts, open_.requests);
      what.rows = arrays.rows;
    }
    auto c = std::make_shared<resolve_check<P>>(model_.shape, group, now_, arrays);
    if (rows_are == own_offsets) c->offsets = offsets_of(counts);
    if (rows_are != steps) c->bounds.assign(static_cast<std::size_t>(arrays.rows) + 1, 1 << 20);  // padding has no say
    auto const set = static_cast<std::size_t>(model_.shape.set_of_group[static_cast<std::size_t>(group)]);
    int const ratio = model_.shape.ratios[static_cast<std::size_t>(c->sources.front())];
    int const sets = std::max(1, model_.shape.hot_frames() * c->rows_per_page / 16);
    int const alike = g.below(4);
    bool const as_announced = g.below(2) == 0;
    for (std::size_t i = 0; i < now_.size(); ++i) {
      model_request& m = *model_.find(batch_[i]);
      std::set<std::int32_t> absent;
      int const kind = g.below(selection_kinds);
      std::int64_t const written = written_to(i);
      std::vector<std::int32_t> const* const pool =
          as_announced && pools_.contains({set, m.name}) ? &pools_.at({set, m.name}) : nullptr;
      for (int j = 0; j < arrays.of[i].count; ++j) {
        auto const query = static_cast<std::size_t>(arrays.of[i].first + j);
        if (rows_are != steps) {
          std::int64_t const most = rows_are == own_bounds ? bounds_[query] : written;
          c->bounds[query] = static_cast<std::int32_t>(g.below(3) == 0 ? most : g.below(static_cast<int>(most) + 1));
        }
        std::int64_t const bound = (rows_are == steps ? bounds_ : c->bounds)[query] / ratio;
        std::span<std::int32_t> const row{c->selection.data() + query * P::top_k, P::top_k};
        if (alike == 0 && j > 0) {
          std::copy_n(row.data() - P::top_k, P::top_k, row.data());
        } else {
          // At times rows up to the step's own bound, which is too far.
          std::int64_t const rows = g.below(4) == 0 ? written / ratio : bound;
          fill_selection(g, row, rows, alike == 1 ? g.below(selection_kinds) : kind, sets);
          for (std::int32_t& p : row) {
            if (pool != nullptr && g.below(5) != 0)
              p = (*pool)[static_cast<std::size_t>(g.below(static_cast<int>(pool->size())))];
          }
        }
        c->expect(i, query, m, bound, m.present[set], absent);
      }
      // A row that was fetched since the tables were cleared may still be there; any other one must be fetched now, and
      // one that was announced and had room must not.
      for (std::int32_t p : absent) {
        c->most += !m.present[set].contains(p);
        c->least += m.fetched[set].insert(p).second;
        m.claimed[set].insert(p);
      }
      m.present[set].clear();
      for (std::size_t s = 0; s < c->sources.size(); ++s) {
        std::int64_t const committed = model_.rows_of(c->sources[s], m.tokens);
        c->newest[s * now_.size() + i] = committed == 0 ? 0 : m.row(c->sources[s], committed - 1).seed;
      }
    }
    announced_hits_ += c->found;
    say(" rows ", static_cast<int>(rows_are), "/", arrays.rows);
    call_on_main([this, c] { c->before = kv_->counts(); });
    what.positions = c->selection.data();
    if (rows_are != steps) what.bounds = c->bounds.data();
    if (rows_are == own_offsets) what.offsets = c->offsets.data();
    kv_->resolve(main_, open_, static_cast<group_id>(group), what, metadata_in<metadata>(c->entries, c->lengths));
    call_on_main([this, c] { c->counts(kv_->counts()); });
    attend(c, true, 0, g.below(4) == 0);
    // The other sources of the set, in order, some of them twice or never, into memory of their own or over the first one's.
    if (g.below(3) == 0) return;
    bool const in_place = g.below(2) == 0;
    std::size_t s = 0;
    for (std::size_t k = 0; k < c->sources.size(); ++k) {
      if (in_place) {
        s += static_cast<std::size_t>(g.below(static_cast<int>(c->sources.size() - s)));
      } else {
        s = k;
      }
      if (k > 0 && g.below(5) == 0) return;
      if (!in_place && k == 0) c->clear(c->other, c->other_lengths);
      if (!in_place && k > 0) call_on_main([c] { c->clear(c->other, c->other_lengths); });
      kv_->replay(
          main_, open_, static_cast<group_id>(group), static_cast<source_id>(c->sources[s]),
          in_place ? metadata_in<metadata>(c->entries, c->lengths) : metadata_in<metadata>(c->other, c->other_lengths));
      attend(c, in_place, s, g.below(4) == 0);
    }
  }
  /// Attention reads what the metadata says, now and once more when the step ends: until the next resolve nothing may change (I5).
  void attend(std::shared_ptr<resolve_check<P>> const& c, bool first, std::size_t s, bool aside) {
    auto const look = [this, c, first, s] {
      rows_checked_ += static_cast<std::uint64_t>(c->attend(
          first ? c->entries : c->other, first ? c->lengths : c->other_lengths, s,
          audit_->views()[static_cast<std::size_t>(c->sources[s])], [this](std::byte const* at) { return whose(at); }));
    };
    call_on_main(look, aside);
    again_ = look;
    // The rest of the plan, carried out at once, reuses the staging of the source before the one before.
    again_behind_join_ = s + 2 >= c->sources.size();
    last_group_ = c->group;
  }
  /// Tokens of the batch's i-th request that are committed or written by the open step.
  std::int64_t written_to(std::size_t i) const {
    std::int64_t most =
        std::find_if(model_.live.begin(), model_.live.end(), [&](auto const& m) { return m.id == batch_[i]; })->tokens;
    for (int j = 0; j < arrays_.of[i].count; ++j)
      most = std::max<std::int64_t>(most, bounds_[static_cast<std::size_t>(arrays_.of[i].first + j)]);
    return most;
  }
  void join() {
    say("join");
    kv_->join(main_, open_);
    if (!again_behind_join_) again_ = nullptr;
    if (last_group_ < 0) return;
    auto const source = model_.shape.groups[static_cast<std::size_t>(last_group_)].back();
    std::vector<typename metadata::entry> entries(1);
    std::vector<std::int32_t> lengths(1);
    must_refuse("replay behind join", [&] {
      kv_->replay(main_, open_, static_cast<group_id>(last_group_), static_cast<source_id>(source),
                  metadata_in<metadata>(entries, lengths));
    });
  }
  /// Announces candidates to a table, for a group behind the resolves of earlier groups.
  void prefetch(generator& g) {
    if constexpr (P::candidate_pool > 0) {
      auto const& set_of = model_.shape.set_of_group;
      std::vector<int> open;
      for (std::size_t i = 0; i < resolved_.size(); ++i) {
        bool first = resolved_[i] == 0;
        for (std::size_t k = 0; k < i; ++k) first &= resolved_[k] != 0 || set_of[k] != set_of[i];
        if (first) open.push_back(static_cast<int>(i));
      }
      int const group = open[static_cast<std::size_t>(g.below(static_cast<int>(open.size())))];
      auto const set = static_cast<std::size_t>(set_of[static_cast<std::size_t>(group)]);
      auto const& of = model_.shape.groups[static_cast<std::size_t>(group)];
      int const size = 1 + g.below(P::candidate_pool);
      bool const per_query = g.below(2) == 0;
      say("prefetch group ", group, " size ", size, per_query ? " per query" : "");
      if (ahead_ == nullptr) {
        ahead_ = std::make_shared<prefetch_check>();
        call_on_main([this, check = ahead_] { check->before = kv_->counts(); });
      }
      int const rows_per_page = model_.shape.rows_per_page(of.front());
      int const ratio = model_.shape.ratios[static_cast<std::size_t>(of.front())];
      int const room = std::min(16, model_.shape.ways(of.front()));
      int const tables = std::max(1, model_.shape.ways(of.front()) / 16);
      std::vector<std::int32_t> pool(static_cast<std::size_t>((per_query ? arrays_.rows : padded_) * size), 3);
      for (std::size_t i = 0; i < now_.size(); ++i) {
        model_request& m = *model_.find(batch_[i]);
        array_rows::part const part = per_query ? arrays_.of[i] : array_rows::part{static_cast<int>(i), 1};
        std::int64_t bound = 0;
        for (int j = 0; j < arrays_.of[i].count; ++j)
          bound = std::max<std::int64_t>(bound, bounds_[static_cast<std::size_t>(arrays_.of[i].first + j)] / ratio);
        std::set<std::int32_t> absent;
        int entries = 0;
        auto& announced = pools_[{set, m.name}];
        announced.clear();
        for (int j = part.first; j < part.first + part.count; ++j) {
          std::span<std::int32_t> const row{pool.data() + j * size, static_cast<std::size_t>(size)};
          fill_selection(g, row, bound, g.below(selection_kinds), tables);
          announced.insert(announced.end(), row.begin(), row.end());
          for (std::int32_t p : row) {
            if (p < 0 || p >= bound || now_[i].frames.at(static_cast<std::size_t>(p / rows_per_page)) >= 0) continue;
            absent.insert(p);
            ++entries;
          }
        }
        if (announced.empty()) pools_.erase({set, m.name});
        expect_ahead(m, set, of.size(), absent, entries, room);
      }
      auto const memory = engine_array(pool);
      keep(memory, pool.size());
      kv_->prefetch(main_, open_, static_cast<group_id>(group),
                    {reinterpret_cast<std::int32_t const*>(memory.get()), size, per_query});
      if (drained() && !kv_->prefetched(static_cast<group_id>(group))) fail("prefetched: false, though all is done");
    }
  }
  /// What the candidates of one request come to: `entries` of them name the `absent` rows, which have room in sets of
  /// `room` ways if nothing else has been pinned there.
  void expect_ahead(model_request& m, std::size_t set, std::size_t of, std::set<std::int32_t> const& absent,
                    int entries, int room) {
    auto &claimed = m.claimed[set], &fetched = m.fetched[set], &present = m.present[set];
    std::uint64_t fresh = 0, unsure = 0;
    claimed.insert(absent.begin(), absent.end());
    for (std::int32_t p : absent) {
      fresh += fetched.insert(p).second;
      unsure += !present.contains(p);
    }
    bool const fits = entries <= model_.shape.prefetch_rows && static_cast<int>(claimed.size()) <= room;
    ahead_->rows_most += of * std::min<std::uint64_t>(unsure, static_cast<std::uint64_t>(model_.shape.prefetch_rows));
    ahead_->either_least += of * fresh;
    ahead_->sources_most = std::max<std::uint64_t>(ahead_->sources_most, of);
    if (fits) {
      ahead_->rows_least += of * fresh;
      present.insert(absent.begin(), absent.end());
    } else {
      ahead_->dropped_most += static_cast<std::uint64_t>(entries);
    }
  }
  /// What some bytes are, in words, for the message of a fault.
  std::string whose(std::byte const* at) const {
    if (is_poison(at, 8)) return "poison of free memory";
    if (*at == std::byte{0x77}) return "of the engine's frame";
    if (*at == std::byte{0x66}) return "of an import's buffer that is over";
    for (auto const& m : model_.live) {
      for (int s = 0; s < sources; ++s) {
        for (std::int64_t p = 0; p < static_cast<std::int64_t>(m.rows[static_cast<std::size_t>(s)].size()); ++p) {
          std::uint32_t const newest = m.row(s, p).version;
          for (std::uint32_t n = 1; n <= newest; ++n) {
            if (same_bytes(at, 8, row_seed(m.name, s, p, n), 0))
              return sentence({"row ", p, " of source ", s, ", slot ", m.id.slot, ", writing ", n, " of ", newest});
          }
        }
      }
    }
    return "of nobody who lives";
  }

  void end(generator& g) {
    std::vector<int> accepted;
    std::vector<std::int32_t> given;
    bool const on_the_device = g.below(2) == 0;
    int const mode = g.below(3);
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      model_request const& m = *model_.find(batch_[i]);
      std::int64_t most = std::min<std::int64_t>(arrays_.of[i].count, m.tokens_max - m.tokens);
      if (!on_the_device) most = std::clamp<std::int64_t>(m.tokens_max - m.certain - m.pending, 0, most);
      if (!written_) most = 0;
      int const a = static_cast<int>(mode == 0 ? most : g.below(static_cast<int>(most) + 1));
      accepted.push_back(a);
      using limits = std::numeric_limits<std::int32_t>;
      std::int32_t v = a;  // out of range at times: it is cut
      if (g.below(4) == 0 && written_ && a == most) v = g.below(4) == 0 ? limits::max() : a + 1 + g.below(30);
      if (g.below(4) == 0 && a == 0) v = g.below(4) == 0 ? limits::min() : -1 - g.below(30);
      given.push_back(v);
    }
    if (auto const again = std::exchange(again_, nullptr)) call_on_main(again);
    say("end accepted", on_the_device ? " on the device" : "");
    for (int a : accepted) say(" ", a);
    ticket at{};
    if (on_the_device) {
      auto const memory = engine_array(given);
      keep(memory, given.size());
      at = kv_->end_step(main_, open_, on_device{reinterpret_cast<std::int32_t const*>(memory.get())});
      model_.unknown.push_back({open_.number, at, {}});
      ++accepted_on_device_;
    } else {
      at = kv_->end_step(main_, open_, accepted);
    }
    tickets_.push_back(at);
    if (tickets_.size() > 6) tickets_.erase(tickets_.begin());
    if (ahead_ != nullptr) call_on_main([this, check = ahead_] { check->counts(kv_->counts()); });
    for (auto& b : std::exchange(of_step_, {})) buffers_.push_back({std::move(b.memory), b.bytes, at});
    open_ = {};
    last_group_ = -1;
    pools_.clear();
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      model_request& m = *model_.find(batch_[i]);
      model_.commit(m, m.tokens + accepted[i], !on_the_device);
      if (!on_the_device) continue;
      m.pending += upper_[i];
      model_.unknown.back().of.push_back({m.id, upper_[i], accepted[i]});
    }
    carry_out();
    batch_.clear();
  }

  // ---- the rest --------------------------------------------------------------------------------------------------------------------

  void wrong(generator& g) {
    int const kind = g.below(12);
    say("wrong ", kind);
    auto* r = pick(g, [&](auto const& m) { return idle(m); });
    switch (kind) {
      case 0:
        must_refuse("admit of nothing", [&] { (void)kv_->admit(0); });
        break;
      case 1:
        must_refuse("admit of more tokens than it may have", [&] { (void)kv_->admit(8, 9); });
        break;
      case 2: {
        request_id old{g.below(model_.shape.requests + 2) - 1, 0xFFFFFFu};
        if (!gone_.empty() && g.below(3) != 0)
          old = gone_[static_cast<std::size_t>(g.below(static_cast<int>(gone_.size())))];
        must_refuse("finish of a handle nobody has", [&] { kv_->finish(old); });
        must_refuse("tokens of a handle nobody has", [&] { (void)kv_->tokens(old); });
        must_refuse("truncate of a handle nobody has", [&] { kv_->truncate(old, 0); });
        must_refuse("resume of a handle nobody has", [&] { (void)kv_->resume(old); });
        for (auto const& l : later_) {
          if (l.what == 'f') must_refuse("finish of a request that finishes with the step", [&] { kv_->finish(l.id); });
          if (l.what == 'f')
            must_refuse("truncate of a request that finishes with the step", [&] { kv_->truncate(l.id, 0); });
          if (open_.number == 0) continue;
          if (!in_batch(*model_.find(l.id))) learn(l.id);
          must_refuse("reserve_import of a request with a waiting call",
                      [&] { kv_->reserve_import(l.id, model_.find(l.id)->tokens_max); });
        }
        break;
      }
      case 3:
        must_refuse("take of no frames", [&] { (void)kv_->take(0); });
        must_refuse("a ticket that nobody got", [&] { (void)kv_->reached(ticket{~0ull}); });
        break;
      case 4:
        must_refuse("give of a frame the engine does not have", [&] {
          frame_id f{g.below(model_.shape.frames + 2) - 1};
          if (std::find(engine_frames_.begin(), engine_frames_.end(), f) != engine_frames_.end()) f = frame_id{-1};
          kv_->give(main_, std::vector{f});
        });
        if (!engine_frames_.empty())
          must_refuse("give of a frame named twice", [&] { kv_->give(main_, std::vector(2, engine_frames_.front())); });
        break;
      case 5:
        if (r != nullptr && !r->importing()) {
          learn(r->id);
          must_refuse("publish without an import", [&] { kv_->publish(r->id, r->tokens + 1); });
          must_refuse("import_pages without room", [&] { (void)kv_->import_pages(r->id, source_id{0}); });
        }
        break;
      case 6:
        if (r != nullptr && !r->importing())
          must_refuse("truncate to more", [&] { kv_->truncate(r->id, r->certain + 1); });
        break;
      case 7:
        if (r != nullptr && !r->preempted) {
          learn(r->id);
          must_refuse("resume of a running request", [&] { (void)kv_->resume(r->id); });
        }
        break;
      case 8:
        if (open_.number != 0) {
          must_refuse("a second open step", [&] { kv_->begin_step(main_, {}); });
          must_refuse("end_step with too few",
                      [&] { kv_->end_step(main_, open_, std::vector<int>(batch_.size() + 1, 0)); });
          must_refuse("resolve of no selection", [&] { kv_->resolve(main_, open_, group_id{0}, nullptr, {}); });
          if (!batch_.empty())
            must_refuse("end_step with too much",
                        [&] { kv_->end_step(main_, open_, std::vector<int>(batch_.size(), P::max_queries + 1)); });
          must_refuse("end_step without numbers", [&] { kv_->end_step(main_, open_, on_device{nullptr}); });
          must_refuse("resolve of rows without bounds", [&] {
            std::int32_t const nothing[2] = {};
            std::vector<typename metadata::entry> entries(1);
            std::vector<std::int32_t> lengths(1);
            kv_->resolve(main_, open_, group_id{0}, {.positions = nothing, .queries = 1, .rows = 1, .offsets = nothing},
                         metadata_in<metadata>(entries, lengths));
          });
          if constexpr (P::candidate_pool > 0) {
            std::int32_t const nothing = -1;
            must_refuse("prefetch of too many",
                        [&] { kv_->prefetch(main_, open_, group_id{0}, {&nothing, P::candidate_pool + 1, false}); });
            must_refuse("prefetch of nothing", [&] { kv_->prefetch(main_, open_, group_id{0}, {nullptr, 1, false}); });
          }
        }
        break;
      case 9:
        if (open_.number == 0) {
          must_refuse("a step with too many queries", [&] { kv_->begin_step(main_, {{}, P::max_queries + 1, 0}); });
          must_refuse("a step with too much padding",
                      [&] { kv_->begin_step(main_, {{}, 1, model_.shape.max_batch + 1}); });
          int const one = 1, too_many = P::max_queries + 1;
          std::int32_t const offsets[2] = {};
          for (auto const& m : model_.live) {
            std::vector const just{m.id};
            if (!can_step(m))
              must_refuse("a step with a request that cannot", [&] { kv_->begin_step(main_, {just, 1, 0}); });
            must_refuse("a step of too many queries",
                        [&] { kv_->begin_step(main_, {just, 1, 0, std::span{&too_many, 1}}); });
            must_refuse("rows without counts or offsets",
                        [&] { kv_->begin_step(main_, {just, 1, 1, {}, nullptr, 1}); });
            must_refuse("a step of two shapes",
                        [&] { kv_->begin_step(main_, {just, 1, 0, std::span{&one, 1}, offsets, 1}); });
          }
          must_refuse("a step of more counts than requests",
                      [&] { kv_->begin_step(main_, {{}, 1, 0, std::span{&one, 1}}); });
          must_refuse("offsets without rows", [&] { kv_->begin_step(main_, {{}, 1, 1, {}, offsets}); });
          must_refuse("progress that nobody has made", [&] { kv_->begin_step(main_, {}, ticket{~0ull}); });
        }
        break;
      case 10:
        if (r != nullptr && !r->importing() && !r->preempted && ready(*r)) {
          learn(r->id);
          must_refuse("reserve_import beyond tokens_max", [&] { kv_->reserve_import(r->id, r->tokens_max + 1); });
          must_refuse("reserve_import of nothing", [&] { kv_->reserve_import(r->id, r->tokens); });
        }
        break;
      default:
        if (r != nullptr && r->importing()) {
          must_refuse("preempt while importing", [&] { kv_->preempt(r->id); });
          must_refuse("import of no rows", [&] { kv_->import(r->id, source_id{0}, {nullptr}); });
          must_refuse("truncate while importing", [&] { kv_->truncate(r->id, 0); });
          must_refuse("reserve while importing", [&] { kv_->reserve_import(r->id, r->tokens + 1); });
        }
    }
  }

  bool gated() const { return !gates_.empty(); }
  void open_gates() { gates_.clear(); }
  void advance(generator& g) {
    if (!how_.deferred) return;
    say("advance");
    if (g.below(6) == 0) return space_.drain();
    for (int n = g.below(40); n > 0; --n) space_.advance();
  }
  void gate(generator& g) {
    if (!how_.deferred) return;
    if (gated()) {
      say("open gate");
      return open_gates();
    }
    say("close gate");
    gates_.push_back(space_.close_gate(g.below(2) == 0 ? main_ : side_, "test"));
    if (g.below(2) == 0) space_.drain();
  }
  bool drained() const { return space_.pending() == 0; }
  std::int64_t uncollected() const {
    std::int64_t n = 0;
    for (auto const& t : takes_) n += t.second;
    return n;
  }

  /// Everything that is under way comes to its end within a few empty steps.
  void quiesce() {
    say("quiesce");
    open_gates();
    refusal_ = 0;
    generator g{7};
    if (open_.number != 0) end(g);
    for (int i = 0; i < 60 && (i < 6 || !lacking().empty()); ++i) {
      space_.drain();
      rethrow();
      if (i == 4) settled();
      open_gates();
      ebb::step const empty = kv_->begin_step(main_, {});
      settle(++steps_);
      kv_->end_step(main_, empty, {});
      space_.drain();
      audit(0);
    }
    settled();
    if (!model_.unknown.empty() || !later_.empty()) fail("acceptances are not known, or calls wait for them still");
    for (auto const& m : model_.live) {
      if (kv_->tokens(m.id) != m.tokens || m.pending != 0)
        fail("tokens: ", kv_->tokens(m.id), ", not ", m.tokens, ", with all acceptances known");
    }
    if (auto const what = lacking(); !what.empty()) fail(what);
  }
  void settled() {
    gauges const now = kv_->pools();
    if (now.frames_wanted != 0 || now.waiting != 0)
      fail("I11: ", now.waiting, " requests wait, ", now.frames_wanted,
           " frames are wanted, after five empty steps with everything done");
    if (now.frames_revoking != 0 && now.frames_revoking != kv_->allocator().book().frames.returning())
      fail("I11: a page of a preempted or revoked frame has not left");
    for (auto const& t : std::exchange(takes_, {})) {
      auto const got = kv_->collect(t.first);
      if (!got)
        fail("I11: a take of ", t.second, " frames cannot be collected after five empty steps with everything done");
      if (static_cast<int>(got->size()) != t.second) fail("collect: ", got->size(), " frames of ", t.second);
      for (frame_id f : *got) {
        engine_frames_.push_back(f);
        scribble(f);
      }
    }
  }
  /// Spare frames do not stay empty while someone lacks pages.
  std::string lacking() const {
    std::int64_t page = 0;
    for (int s = 0; s < sources; ++s) page += geometry_of<P>::layout(s).stride;
    if (!P::tiers::lends || random_.refill_bytes < page) return {};
    gauges const now = kv_->pools();
    if (now.frames_free - model_.held_frames() <= 0) return {};
    for (auto const& m : model_.live) {
      if (m.preempted || !model_.shape.is_long(m.tokens_max) || m.importing()) continue;
      request_record const& r = record(m);
      for (int p = 0; p < static_cast<int>(r.pages.size()) - model_.shape.tail_pages(); ++p) {
        if (r.pages[static_cast<std::size_t>(p)].mapped) continue;
        return "refill: page " + std::to_string(p) + " of slot " + std::to_string(m.id.slot) + " is not back, though " +
               std::to_string(now.frames_free) + " frames are free and " + std::to_string(model_.held_frames()) +
               " held";
      }
    }
    return {};
  }

  void look() {
    counters const c = kv_->counts();
    gauges const now = kv_->pools();
    say("look");
    if (now.frames_free + now.frames_required + now.frames_lent + now.frames_taken + now.frames_filling +
            now.frames_revoking !=
        now.frames)
      fail("I7: the gauges of frames do not add up");
    if (now.frames_held != model_.held_frames() || now.host_pages_held != model_.held_hosts())
      fail("holds: ", now.frames_held, " frames and ", now.host_pages_held, " host pages held, the model says ",
           model_.held_frames(), " and ", model_.held_hosts());
    int preempted = 0;
    for (auto const& m : model_.live) preempted += m.preempted;
    if (now.preempted != preempted || now.running + now.waiting + now.preempted != static_cast<int>(model_.live.size()))
      fail("I7: the gauges of requests do not add up");
    if (c.pages.copy_failures != static_cast<std::uint64_t>(refused_))
      fail("counters: ", c.pages.copy_failures, " copies failed, ", refused_, " were refused");
    if (c.lost != 0) fail("counters: rows were lost");
    failures_seen_ += static_cast<long long>(kv_->take_failures().size());
    if (failures_seen_ != refused_) fail("take_failures: ", failures_seen_, " told, ", refused_, " were refused");
    for (auto const& m : model_.live) {
      if (kv_->tokens(m.id) != m.certain) fail("tokens: ", kv_->tokens(m.id), ", not ", m.certain);
    }
  }

  void rethrow() {
    if (broken_) std::rethrow_exception(std::exchange(broken_, nullptr));
  }
  void audit(std::uint32_t chance) {
    rethrow();
    audit_->books(engine_frames_, uncollected());
    std::erase_if(buffers_, [&](auto& b) {
      if (!kv_->reached(b.after)) return false;
      std::memset(b.memory.get(), 0x66, b.bytes);
      return true;
    });
    // Where begin_step threw, copies that it asked for go out with the next call.
    if (drained() && kv_->allocator().book().out.copies.empty()) {
      for (auto const& m : model_.live) {
        audit_->bytes(m);
      }
    }
    audit_->free_memory(chance % 64 == 0 ? -1 : static_cast<std::int64_t>(chance / 64));
  }

  struct refusal {
    copy_kind kind;
    int slot, page;
  };
  struct buffer {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
    ticket after;
  };

  setting how_;
  random_shape<P> random_;
  S space_;
  typename S::stream main_, side_;
  reference_model model_;
  std::shared_ptr<std::byte> engine_;
  std::unique_ptr<kv_type> kv_;
  std::unique_ptr<auditor<P, kv_type>> audit_;

  ebb::step open_{};
  std::vector<request_id> batch_;
  std::vector<member> now_;
  std::function<void()> again_;
  std::vector<std::int32_t> bounds_;
  std::vector<char> resolved_;
  int padded_ = 0;
  array_rows arrays_;        ///< of the open step
  std::vector<int> upper_;   ///< queries of each request of the batch, as the host knows it
  std::uint64_t steps_ = 0;  ///< begun
  bool again_behind_join_ = true;
  int last_group_ = -1;  ///< that the step resolved last
  std::shared_ptr<prefetch_check> ahead_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<std::int32_t>> pools_;  ///< announced to a set for a name
  std::vector<std::function<void()>> to_write_;
  bool written_ = false;
  std::vector<later_call> later_;
  std::vector<request_id> gone_;
  std::vector<std::pair<take_id, int>> takes_;
  std::vector<frame_id> engine_frames_;
  std::vector<ticket> tickets_;
  std::map<std::uint64_t, ticket> reserve_after_;
  ticket import_after_ = ticket::none;
  std::vector<buffer> buffers_, of_step_;
  std::vector<host::gate> gates_;
  int refusal_ = 0;
  long long refused_ = 0, failures_seen_ = 0;
  std::vector<refusal> refusals_;
  generator chance_{0};
  std::exception_ptr broken_;
  std::uint64_t rows_checked_ = 0, resolves_ = 0, ragged_ = 0, accepted_on_device_ = 0, announced_hits_ = 0;
  std::string note_;
};

}  // namespace ebb::testing
