#include "unsloth/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "unsloth/core/terminal.h"
#include "unsloth/core/utf8.h"

namespace unsloth::log {
namespace {

std::atomic<Level> current_level{Level::info};
std::mutex write_mutex;
Decoration* decoration = nullptr;

spdlog::logger& sink() {
    static const auto logger = [] {
        auto stream = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
        stream->set_color_mode(takes_colours(STDERR_FILENO) ? spdlog::color_mode::automatic
                                                            : spdlog::color_mode::never);
        auto made = std::make_shared<spdlog::logger>("unsloth", std::move(stream));
        made->set_pattern("%^[%H:%M:%S] %L%$ %v");
        made->set_level(spdlog::level::trace);
        made->flush_on(spdlog::level::trace);
        return made;
    }();
    return *logger;
}

spdlog::level::level_enum to_spdlog(Level level) {
    switch (level) {
        case Level::debug:
            return spdlog::level::debug;
        case Level::info:
            return spdlog::level::info;
        case Level::warning:
            return spdlog::level::warn;
        case Level::error:
            return spdlog::level::err;
        case Level::off:
            return spdlog::level::off;
    }
    return spdlog::level::info;
}

}  // namespace

Level parse_level(std::string_view name) {
    if (name == "debug") return Level::debug;
    if (name == "info") return Level::info;
    if (name == "warning") return Level::warning;
    if (name == "error") return Level::error;
    if (name == "off") return Level::off;
    throw Error("option.invalid-value",
                cat("log level: expected debug, info, warning, error or off, found '", name, "'"));
}

void set_level(Level level) {
    current_level = level;
}
Level level() {
    return current_level;
}

void write(Level level, const std::string& message) {
    const std::lock_guard lock(write_mutex);
    if (decoration != nullptr) decoration->before();
    sink().log(to_spdlog(level), "{}", printable_message(message));
    if (decoration != nullptr) decoration->after();
}

void last_words(const std::string& message) {
    std::fprintf(stderr, "unsloth-train: %s\n", printable_message(message).c_str());
    std::fflush(stderr);
}

void set_decoration(Decoration* made) {
    const std::lock_guard lock(write_mutex);
    decoration = made;
}

}  // namespace unsloth::log
