// Which part of a model this process reads when several load it together, and the exchange of the rest.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "unsloth/core/progress.h"

namespace unsloth::weights {

/// Processes that load the same model onto devices of their own at the same time: each reads a part and gets the rest
/// from the others.
struct LoadShare {
    int place = 0, size = 1;
    /// Contiguous values on the device: they become those of the process at `owner`. Called by all in the same order.
    std::function<void(const at::Tensor& values, int owner)> broadcast;
    /// NUMA nodes that their devices are attached to, for host memory that they share; empty: unknown.
    std::set<int> nodes = {};
    /// `bytes` bytes of this process', and those of the others, by place: uint8 that it can copy from. Called by all
    /// together; empty where they cannot.
    std::function<std::vector<at::Tensor>(int64_t bytes)> share_memory = nullptr;
};

class SharedLoading {
  public:
    /// `tensors`: how many will be done().
    SharedLoading(const LoadShare& share, int64_t tensors) : share_(share), progress_("loading the model", tensors) {}

    /// This many tensors more are read, or left to others.
    void done(int64_t tensors = 1) { progress_.add(tensors); }

    bool alone() const { return share_.size == 1; }
    int reader_of(int64_t layer) const { return static_cast<int>(layer % share_.size); }
    bool reads(int64_t layer) const { return reader_of(layer) == share_.place; }

    /// These values on the device, read or not, are the reader's after finish(). Undefined ones are skipped.
    void expect(const at::Tensor& values, int reader) {
        if (!alone() && values.defined()) expected_.emplace_back(values, reader);
    }

    /// Has this process' rows of a matrix read: read(begin, end). After finish() all rows are there.
    void read_rows(const at::Tensor& matrix, const std::function<void(int64_t begin, int64_t end)>& read);

    /// Exchanges what is expected: when everyone has read, so that no one's reading waits for another's.
    void finish();

  private:
    /// A process' rows of `rows`.
    std::pair<int64_t, int64_t> rows_of(int place, int64_t rows) const {
        return {rows * place / share_.size, rows * (place + 1) / share_.size};
    }

    const LoadShare& share_;
    Progress progress_;
    std::vector<std::pair<at::Tensor, int>> expected_;
};

}  // namespace unsloth::weights
