// Communicators of CPU ranks: through memory that they share, or between machines through the ranks' store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/shared_segment.h"
#include "comm/store.h"
#include "unsloth/comm/communicator.h"

namespace unsloth::comm {

/// Bytes of the segment of so many ranks.
std::size_t shared_segment_bytes(int size);
/// `exchange` outlives it.
std::unique_ptr<Communicator> make_shared_communicator(Exchange& exchange, int rank, std::vector<int> ranks,
                                                       std::unique_ptr<SharedSegment> segment);
/// Of all ranks; between two of them nothing can be sent.
std::unique_ptr<Communicator> make_store_communicator(Exchange& exchange);

/// runtime Error of a rank that sent another number of bytes than this one expects.
void require_size(std::size_t found, std::size_t expected, int rank, const std::string& what);

}  // namespace unsloth::comm
