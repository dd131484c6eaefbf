// Logging. This header hides spdlog: LibTorch brings another fmt, and no file may see both.
#pragma once

#include <string>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth::log {

enum class Level { debug, info, warning, error, off };

/// Accepts debug | info | warning | error | off; throws a usage Error otherwise.
Level parse_level(std::string_view name);
void set_level(Level level);
Level level();
/// One line (or several) to stderr, safe from any thread. A progress bar in use is redrawn below it.
void write(Level level, const std::string& message);
/// "unsloth-train: MESSAGE" to stderr, whatever the level: what the process says before it ends.
void last_words(const std::string& message);

template <class... Args>
void debug(const Args&... args) {
    if (level() <= Level::debug) write(Level::debug, cat(args...));
}
template <class... Args>
void info(const Args&... args) {
    if (level() <= Level::info) write(Level::info, cat(args...));
}
template <class... Args>
void warning(const Args&... args) {
    if (level() <= Level::warning) write(Level::warning, cat(args...));
}
template <class... Args>
void error(const Args&... args) {
    if (level() <= Level::error) write(Level::error, cat(args...));
}

/// Called before and after each written message (used by the progress bar to clear and redraw itself).
struct Decoration {
    virtual ~Decoration() = default;
    virtual void before() = 0;
    virtual void after() = 0;
};
/// Not owned; nullptr removes it.
void set_decoration(Decoration* decoration);

}  // namespace unsloth::log
