#pragma once
/// Captured work of a GPU.

#include <ebb/cuda/check.cuh>

#include <memory>

namespace ebb {

/// An executable graph: what was enqueued on a stream between `begin_capture` and `end_capture`, to be launched any
/// number of times. Owns no memory that its bodies read or write.
class cuda_graph {
 public:
  /// Takes over `graph`.
  explicit cuda_graph(cudaGraph_t graph) {
    cudaGraphExec_t ready = nullptr;
    cudaError_t const result = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check(result);
    ready_.reset(ready);
  }
  cudaGraphExec_t get() const { return ready_.get(); }

 private:
  struct destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  std::unique_ptr<CUgraphExec_st, destroy> ready_;
};

}  // namespace ebb
