// Streams of one document a line, such as JSON Lines.
#pragma once

#include <istream>
#include <string>

#include "unsloth/core/error.h"

namespace unsloth {

/// `use(line, "line 7")` for every line that is not blank; errors begin with the line's number.
template <class Use>
void for_each_line(std::istream& in, Use use) {
    std::string line;
    for (std::size_t number = 1; std::getline(in, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = cat("line ", number);
        try {
            use(line, where);
        } catch (const Error& error) {
            const std::string message = error.what();
            throw Error(error.id(), message.starts_with(where) ? message : cat(where, ": ", message));
        }
    }
}

}  // namespace unsloth
