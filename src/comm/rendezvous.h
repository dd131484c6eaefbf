// How the ranks of a run find their store.
#pragma once

#include <memory>

#include "comm/store_client.h"
#include "comm/store_server.h"

namespace unsloth::comm {

/// Rank 0 hosts the store: on one machine at 127.0.0.1, else at every address, at the launcher's port or (under
/// torchrun, whose agent has that) one of its own that it publishes in the agent's store. The others learn where it
/// is. Only between machines is a name looked up, once. runtime Error when that does not work by `give_up`.
Rendezvous meet(const LaunchEnvironment& environment, Clock::time_point give_up, std::unique_ptr<StoreServer>& server);

}  // namespace unsloth::comm
