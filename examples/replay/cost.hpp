#pragma once
/// The clock of the host space: what a step would take on the machine that the rates describe.

#include <algorithm>

namespace replay {

/// What one step did, counted by the library and the driver.
struct step_work {
  int requests = 0;               ///< requests in the batch
  bool fetches = false;           ///< some row came from the host store
  long long fetched_bytes = 0;    ///< rows gathered from the host store while attention waits
  long long refilled_bytes = 0;   ///< pages handed back on the side stream
  long long imported_bytes = 0;   ///< history of arriving calls
  long long backed_up_bytes = 0;  ///< pages and rows copied to the host store
};

/// A step takes what its own work takes, or what the link needs for all its bytes, whichever is longer; without
/// requests there is no base:
///
///   own = base + per_request · requests + groups · (launches · launch + [fetches] · read + fetched / gather)
///   in  = (groups · fetched + sources · (refilled + imported)) / copy_in;   out = sources · backed up / copy_out
///
/// The replayed policy has one group and one source: `groups` and `sources` say for how many of the whole model they
/// stand. Launch, read and rates were measured on an H200 with PCIe 5 x16; base and per_request are an assumption about
/// the model around the library.
struct cost_model {
  double base_us = 20'000;      ///< a step of the model without the library
  double per_request_us = 100;  ///< more of it for each request
  double launch_us = 0.5;       ///< one launch inside a graph
  int launches = 2;             ///< resolver and the library's share of the rest, per group
  double read_us = 1.2;         ///< latency of a read from the host
  double gather_gbs = 45;       ///< scattered rows
  double copy_in_gbs = 51;      ///< pages to the GPU
  double copy_out_gbs = 52.5;   ///< pages to the host
  double groups = 1;            ///< resolves a step for which the replayed one stands
  double sources = 1;           ///< bytes of history for which one replayed byte stands

  double step_seconds(step_work const& w) const {
    double const gather = microseconds(static_cast<double>(w.fetched_bytes), gather_gbs);
    double const own = model_us(w.requests) + groups * (launches * launch_us + (w.fetches ? read_us : 0.0) + gather);
    double const in = microseconds(groups * static_cast<double>(w.fetched_bytes) +
                                       sources * static_cast<double>(w.refilled_bytes + w.imported_bytes),
                                   copy_in_gbs);
    double const out = microseconds(sources * static_cast<double>(w.backed_up_bytes), copy_out_gbs);
    return std::max({own, in, out}) * 1e-6;
  }

  /// The model's own part.
  double model_seconds(int requests) const { return model_us(requests) * 1e-6; }

 private:
  double model_us(int requests) const { return requests > 0 ? base_us + per_request_us * requests : 0.0; }
  static double microseconds(double bytes, double gbs) { return bytes / (gbs * 1e3); }
};

}  // namespace replay
