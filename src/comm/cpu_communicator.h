// Communicators of CPU ranks: through memory that they share, or between machines through the ranks' store.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/store.h"
#include "unsloth/comm/communicator.h"
#include "unsloth/core/shared_segment.h"

namespace unsloth::comm {

/// CPU work is done when it is requested: nothing runs concurrently with it.
class CpuCommunicator : public Communicator {
  public:
    void all_reduce_async(const at::Tensor& sum, const std::function<void()>& after, const std::string& what) override {
        after();
        all_reduce(sum, what);
    }
    void join() override {}

  protected:
    using Communicator::Communicator;
};

/// Bytes of the segment of this many ranks.
std::size_t shared_segment_bytes(int size);
/// `exchange` outlives it.
std::unique_ptr<Communicator> make_shared_communicator(Exchange& exchange, int rank, std::vector<int> ranks,
                                                       const std::string& name, std::unique_ptr<SharedSegment> segment);
/// Of all ranks, which `ranks` are; between two of them nothing can be sent. `exchange` outlives it.
std::unique_ptr<Communicator> make_store_communicator(Exchange& exchange, std::vector<int> ranks,
                                                      const std::string& name);

/// runtime Error of a rank that sent another number of bytes than this one expects.
void require_size(std::size_t found, std::size_t expected, int rank, const std::string& what);

}  // namespace unsloth::comm
