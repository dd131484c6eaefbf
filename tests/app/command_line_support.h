// Command lines that are refused.
#pragma once

#include "app/command_line/command_line.h"
#include "app/command_line/commands.h"
#include "common/files.h"

#include "tests/config/support.h"
#include "unsloth/core/version.h"

namespace unsloth::testing {

inline std::string error_of(const std::vector<std::string>& arguments, test::Expected expected = ErrorKind::usage) {
    return usage_message([&] { app::parse_command_line(arguments); }, expected);
}

}  // namespace unsloth::testing
