#include "config/problems.h"

#include <algorithm>
#include <string_view>

namespace unsloth::config {

void Problems::add(const Error& mistake, const Names& doubtful) {
    mistakes_.push_back(mistake);
    doubtful_.insert(doubtful.begin(), doubtful.end());
}

bool Problems::in_doubt(const Names& options) const {
    return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
        return doubtful_.count(option) != 0 || doubtful_.count(option.substr(0, option.find('.'))) != 0;
    });
}

void Problems::raise() const {
    if (mistakes_.empty()) return;
    if (mistakes_.size() == 1) throw mistakes_.front();
    std::string text = cat(mistakes_.size(), " mistakes");
    for (const Error& mistake : mistakes_) {
        text += cat("\n  [", mistake.id().name(), "] ");
        for (const char letter : std::string_view(mistake.what()))
            text += letter == '\n' ? std::string("\n  ") : std::string(1, letter);
    }
    throw Error("config.several-mistakes", text);
}

}  // namespace unsloth::config
