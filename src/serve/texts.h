// Small values that answers and metrics name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/generate/request.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::serve {

/// As OpenAI's finish_reason has it.
const char* finish_reason_name(generate::FinishReason reason);

/// The one of the stop texts that ended a completion of these ids, whose text up to it has `before` bytes; empty: none.
std::string matched_stop(const tokenizer::Tokenizer& tokenizer, const generate::Completion& answer, std::size_t before,
                         const std::vector<std::string>& stops);

/// Seconds since 1970.
int64_t unix_seconds();

/// 32 hexadecimal digits. From any thread.
std::string random_id();

}  // namespace unsloth::serve
