#pragma once
/// Which pages of the host store are in use, handed out in runs so that neighbouring positions stay neighbours.

#include <ebb/config.hpp>
#include <ebb/ids.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ebb {

/// Free and used host pages. A run is a preference: any free page serves anyone, so free pages are never lost to
/// fragmentation. Host only, one control thread. `acquire` is O(1) but for the last free pages, where it walks a
/// bitmap.
class host_page_pool {
 public:
  host_page_pool(int pages, int run)
      : used_(static_cast<std::size_t>(pages), 0), after_(static_cast<std::size_t>(pages)), run_{run}, free_{pages} {
    runs_.assign(static_cast<std::size_t>((pages + run - 1) / run), 0);
    for (int r = static_cast<int>(runs_.size()); r-- > 0;) {
      runs_[static_cast<std::size_t>(r)] = std::min(run, pages - r * run);
      whole_.push_back(r);
    }
  }

  int size() const { return static_cast<int>(used_.size()); }
  int free() const { return free_; }
  /// Work of the page's earlier holders ends at this ticket; whoever writes it from outside the side stream waits for
  /// it.
  ticket after(host_page_id p) const { return after_[static_cast<std::size_t>(index(p))]; }

  /// A page for a holder whose last one was `previous`: the next of its run, else the first of a free run, else any.
  host_page_id acquire(host_page_id previous) {
    EBB_ASSERT(free_ > 0);
    int const next = index(previous) + 1;
    if (previous != host_page_id::none && next % run_ != 0 && next < size() && !is_used(next)) return use(next);
    while (!whole_.empty()) {
      int const r = whole_.back();
      whole_.pop_back();
      if (runs_[static_cast<std::size_t>(r)] == std::min(run_, size() - r * run_)) return use(r * run_);
    }
    while (is_used(cursor_)) cursor_ = (cursor_ + 1) % size();
    return use(cursor_);
  }

  void release(host_page_id p, ticket after) {
    EBB_ASSERT(is_used(index(p)));
    used_[static_cast<std::size_t>(index(p))] = 0;
    ticket& end = after_[static_cast<std::size_t>(index(p))];
    end = std::max(end, after);  // a holder that never used it adds nothing to what earlier ones still do
    ++free_;
    int const r = index(p) / run_;
    if (++runs_[static_cast<std::size_t>(r)] == std::min(run_, size() - r * run_)) whole_.push_back(r);
  }

  bool is_used(int page) const { return used_[static_cast<std::size_t>(page)] != 0; }

 private:
  host_page_id use(int page) {
    used_[static_cast<std::size_t>(page)] = 1;
    --runs_[static_cast<std::size_t>(page / run_)];
    --free_;
    return host_page_id{page};
  }

  std::vector<std::uint8_t> used_;
  std::vector<ticket> after_;
  std::vector<int> runs_;   ///< free pages of each run
  std::vector<int> whole_;  ///< runs that were wholly free when they were listed
  int run_;
  int free_;
  int cursor_ = 0;
};

}  // namespace ebb
