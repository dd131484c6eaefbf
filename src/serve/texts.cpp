#include "serve/texts.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>

namespace unsloth::serve {

const char* finish_reason_name(generate::FinishReason reason) {
    switch (reason) {
        case generate::FinishReason::length:
            return "length";
        case generate::FinishReason::not_finite:
            return "error";
        default:
            return "stop";
    }
}

std::string matched_stop(const tokenizer::Tokenizer& tokenizer, const generate::Completion& answer, std::size_t before,
                         const std::vector<std::string>& stops) {
    if (answer.finish_reason != generate::FinishReason::stop_text) return "";
    const std::string whole = tokenizer.decode(answer.ids, /*skip_special=*/true);
    const std::size_t at = std::min(before, whole.size());
    for (const std::string& stop : stops)
        if (whole.compare(at, stop.size(), stop) == 0) return stop;
    return "";
}

int64_t unix_seconds() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string random_id() {
    static std::mutex mutex;
    static std::mt19937_64 random{std::random_device{}()};
    const std::lock_guard lock(mutex);
    std::string id;
    for (int word = 0; word < 2; ++word) {
        uint64_t bits = random();
        for (int digit = 0; digit < 16; ++digit, bits >>= 4U) id += "0123456789abcdef"[bits & 15U];
    }
    return id;
}

}  // namespace unsloth::serve
