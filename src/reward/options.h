// The option `rewards`: a JSON list, read into one Entry a reward.
#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::reward {

enum class OnError : uint8_t { stop, none, drop };

struct Entry {
    enum class Kind : uint8_t { built_in, python, command, http };
    Kind kind = Kind::built_in;
    std::string name;   ///< of metrics and columns
    std::string where;  ///< "rewards[2]", for messages
    double weight = 1;
    std::optional<std::chrono::milliseconds> timeout;
    OnError on_error = OnError::stop;
    nlohmann::json arguments = nlohmann::json::object();  ///< a built-in reward's; otherwise the function's kwargs
    std::string built_in;                                 ///< which
    // python
    std::filesystem::path file;  ///< absolute; empty: a module
    std::string module, function;
    std::string style = "trl";  ///< http: json, openrlhf or slime
    std::string label;          ///< column of the expected answer, for styles that pass one; empty: by its usual names
    bool factory = false;       ///< the function makes the reward function
    bool gpu = false;
    std::vector<std::string> command;
    std::string url;
};

/// usage Error that names the entry for what is not allowed. Relative files are in `folder`.
std::vector<Entry> read_entries(const nlohmann::json& list, const std::filesystem::path& folder);

}  // namespace unsloth::reward
