#include "unsloth/config/errors.h"

#include <algorithm>

namespace unsloth::config {

void Errors::add(const Error& error, const Names& doubtful) {
    messages_.emplace_back(error.what());
    doubtful_.insert(doubtful.begin(), doubtful.end());
}

bool Errors::in_doubt(const Names& options) const {
    return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
        return doubtful_.count(option) != 0 || doubtful_.count(option.substr(0, option.find('.'))) != 0;
    });
}

void Errors::raise() const {
    if (messages_.empty()) return;
    if (messages_.size() == 1) throw usage_error(messages_.front());
    std::string text = cat(messages_.size(), " errors");
    for (const std::string& error : messages_) {
        text += "\n  ";
        for (const char letter : error) text += letter == '\n' ? std::string("\n  ") : std::string(1, letter);
    }
    throw usage_error(text);
}

}  // namespace unsloth::config
