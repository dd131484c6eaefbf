// Words about rows that cannot be taken.
#pragma once

#include "unsloth/core/error.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

/// "file:line: what is wrong", and that such rows can be skipped.
Error error_at(const RowReader& file, int64_t line, const BadRow& reason);

}  // namespace unsloth::data
