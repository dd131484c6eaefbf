// Git LFS: files that are sent by their SHA-256 before the commit that names them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/upload/conversation.h"
#include "hub/upload/local_file.h"

namespace unsloth::hub {

/// Sends those that the hub's storage lacks, in one request each or in parts, as the hub asks for; the number of bytes
/// that were sent. Errors as push().
int64_t send_large_files(Conversation& hub, const std::string& repository, const std::string& branch,
                         const std::vector<const LocalFile*>& files);

}  // namespace unsloth::hub
