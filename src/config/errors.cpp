#include "unsloth/config/errors.h"

#include <algorithm>
#include <string_view>

namespace unsloth::config {

void Errors::add(const Error& error, const Names& doubtful) {
    errors_.push_back(error);
    doubtful_.insert(doubtful.begin(), doubtful.end());
}

bool Errors::in_doubt(const Names& options) const {
    return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
        return doubtful_.count(option) != 0 || doubtful_.count(option.substr(0, option.find('.'))) != 0;
    });
}

void Errors::raise() const {
    if (errors_.empty()) return;
    if (errors_.size() == 1) throw errors_.front();
    std::string text = cat(errors_.size(), " errors");
    for (const Error& error : errors_) {
        text += cat("\n  [", error.id().name(), "] ");
        for (const char letter : std::string_view(error.what()))
            text += letter == '\n' ? std::string("\n  ") : std::string(1, letter);
    }
    throw Error("config.several-errors", text);
}

}  // namespace unsloth::config
