// What of a machine's description may be published.
#pragma once

#include <string>

namespace unsloth::app {

/// What names a person or a machine. Empty: not known, nothing is replaced for it.
struct Identity {
    std::string home;  ///< folder, without a slash at the end
    std::string user, host;
};
/// Of this process.
Identity own_identity();

/// The text without them: a path below the home folder becomes "~/…", the user's and the machine's names become USER
/// and HOST where they stand as words, a Hugging Face token "hf_…".
std::string anonymous(const std::string& text, const Identity& identity);

}  // namespace unsloth::app
