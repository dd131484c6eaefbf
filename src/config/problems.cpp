#include "unsloth/config/problems.h"

#include <algorithm>

namespace unsloth::config {

void Problems::add(const Error& mistake, const Names& doubtful) {
    mistakes_.emplace_back(mistake.what());
    doubtful_.insert(doubtful.begin(), doubtful.end());
}

bool Problems::in_doubt(const Names& options) const {
    return std::any_of(options.begin(), options.end(), [&](const std::string& option) {
        return doubtful_.count(option) != 0 || doubtful_.count(option.substr(0, option.find('.'))) != 0;
    });
}

void Problems::raise() const {
    if (mistakes_.empty()) return;
    if (mistakes_.size() == 1) throw usage_error(mistakes_.front());
    std::string text = cat(mistakes_.size(), " mistakes");
    for (const std::string& mistake : mistakes_) {
        text += "\n  ";
        for (const char letter : mistake) text += letter == '\n' ? std::string("\n  ") : std::string(1, letter);
    }
    throw usage_error(text);
}

}  // namespace unsloth::config
