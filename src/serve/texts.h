// Small values that answers and metrics name.
#pragma once

#include <cstdint>
#include <string>

#include "unsloth/generate/request.h"

namespace unsloth::serve {

/// As OpenAI's finish_reason has it.
const char* finish_reason_name(generate::FinishReason reason);

/// Seconds since 1970.
int64_t unix_seconds();

/// 32 hexadecimal digits. From any thread.
std::string random_id();

}  // namespace unsloth::serve
