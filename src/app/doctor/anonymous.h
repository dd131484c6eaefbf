// What of a machine's description may be published.
#pragma once

#include <string>
#include <vector>

namespace unsloth::app {

/// What names a person or a machine. Empty: not known, nothing is replaced for it.
struct Identity {
    std::string home;  ///< folder, without a slash at the end
    std::string user, host;
    std::vector<std::string> others;  ///< names of other users, as far as this machine knows them
};
/// Of this process.
Identity own_identity();

/// The text without them: a path below the home folder becomes "~/…", one below another's "/home/…", the user's and the
/// machine's names become USER and HOST where they stand as words, another user's OTHER where it is a folder of a path,
/// and a Hugging Face token "hf_…".
std::string anonymous(const std::string& text, const Identity& identity);

}  // namespace unsloth::app
