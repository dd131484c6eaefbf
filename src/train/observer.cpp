#include "unsloth/train/observer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

namespace unsloth::train {
namespace {

/// JSON has no NaN: null stands for what is not finite.
nlohmann::ordered_json number(double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

class MetricsFile final : public Observer {
  public:
    MetricsFile(const std::filesystem::path& path, int64_t after_step) : path_(path) {
        write_file_atomically(path, rows_until(path, after_step));
        file_ = std::fopen(path.c_str(), "ae");
        if (file_ == nullptr) throw runtime_failure(cat("cannot create ", path.string(), ": ", std::strerror(errno)));
    }
    ~MetricsFile() override { std::fclose(file_); }
    MetricsFile(const MetricsFile&) = delete;
    MetricsFile& operator=(const MetricsFile&) = delete;

    void on_step(const StepReport& r) override {
        write({{"step", r.step},
               {"epoch", number(r.epoch)},
               {"loss", number(r.loss)},
               {"grad_norm", number(r.grad_norm)},
               {"learning_rate", number(r.learning_rate)},
               {"tokens", r.tokens},
               {"trained_tokens", r.trained_tokens},
               {"tokens_per_second", number(r.tokens_per_second)},
               {"step_ms", number(r.step_ms)},
               {"memory_gib", number(r.memory_gib)}});
    }
    void on_eval(const EvalReport& r) override {
        write({{"step", r.step}, {"epoch", number(r.epoch)}, {"eval_loss", number(r.loss)}, {"eval_tokens", r.tokens}});
    }

  private:
    void write(const nlohmann::ordered_json& row) {
        const std::string line = row.dump() + "\n";
        if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
            throw runtime_failure(cat("cannot write ", path_.string(), ": ", std::strerror(errno)),
                                  "Free some space on that file system.");
    }
    /// A last line that was cut by a kill is no row.
    static std::string rows_until(const std::filesystem::path& path, int64_t step) {
        if (step == 0 || !std::filesystem::exists(path)) return "";
        std::istringstream lines(read_file(path));
        std::string kept;
        for (std::string line; std::getline(lines, line);) {
            const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
            if (row.is_object() && row.contains("step") && row["step"].is_number_integer() &&
                row["step"].get<int64_t>() <= step)
                kept += line + "\n";
        }
        return kept;
    }

    std::filesystem::path path_;
    std::FILE* file_ = nullptr;
};

std::string duration_text(double seconds) {
    char text[32];
    const auto whole = static_cast<long>(seconds + 0.5);
    if (whole >= 3600) {
        std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        std::snprintf(text, sizeof text, "%02ld:%02ld", whole / 60, whole % 60);
    }
    return text;
}

std::string step_text(const StepReport& r) {
    char text[160];
    std::snprintf(text, sizeof text, "loss %.4f  lr %.2e  grad norm %.3f  %.0f tok/s", r.loss, r.learning_rate,
                  r.grad_norm, r.tokens_per_second);
    return text;
}

std::string eval_text(const EvalReport& r) {
    char text[160];
    std::snprintf(text, sizeof text, "step %lld  eval loss %.4f  (%lld labels in %.1f s)",
                  static_cast<long long>(r.step), r.loss, static_cast<long long>(r.tokens), r.seconds);
    return text;
}

/// Estimates what is left from a smoothed time per step.
class Clock {
  public:
    double seconds_left(const StepReport& r) {
        smoothed_ms_ = smoothed_ms_ == 0 ? r.step_ms : 0.9 * smoothed_ms_ + 0.1 * r.step_ms;
        return smoothed_ms_ * static_cast<double>(r.total_steps - r.step) / 1000.0;
    }

  private:
    double smoothed_ms_ = 0;
};

class PlainLines final : public Observer {
  public:
    void on_step(const StepReport& r) override {
        log::info("step ", r.step, "/", r.total_steps, "  ", step_text(r), "  ", static_cast<int64_t>(r.step_ms + 0.5),
                  " ms  left ", duration_text(clock_.seconds_left(r)));
    }
    void on_eval(const EvalReport& r) override { log::info(eval_text(r)); }

  private:
    Clock clock_;
};

/// One line at the bottom of the terminal, cleared while a log line is written.
class ProgressBar final : public Observer, public log::Decoration {
  public:
    ProgressBar() { log::set_decoration(this); }
    ~ProgressBar() override {
        log::set_decoration(nullptr);
        if (!line_.empty()) std::fputs("\n", stderr);
    }
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    void on_step(const StepReport& r) override {
        const std::string tail =
            cat(" ", r.step, "/", r.total_steps, "  ", step_text(r), "  left ", duration_text(clock_.seconds_left(r)));
        const int width = std::clamp(columns() - static_cast<int>(tail.size()) - 3, 0, 40);
        const auto full = static_cast<int>(static_cast<double>(width) * static_cast<double>(r.step) /
                                           static_cast<double>(std::max<int64_t>(r.total_steps, 1)));
        before();
        line_.clear();
        if (width > 4) {
            line_ += '[';
            for (int i = 0; i < width; ++i) line_ += i < full ? '#' : '.';
            line_ += ']';
        }
        line_ += tail;
        after();
    }
    void on_eval(const EvalReport& r) override { log::info(eval_text(r)); }
    void before() override { std::fputs("\r\033[K", stderr); }
    void after() override {
        std::fputs(line_.c_str(), stderr);
        std::fflush(stderr);
    }

  private:
    static int columns() {
        winsize size{};
        return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    }
    std::string line_;
    Clock clock_;
};

}  // namespace

std::unique_ptr<Observer> make_metrics_file(const std::filesystem::path& path, int64_t after_step) {
    return std::make_unique<MetricsFile>(path, after_step);
}

std::unique_ptr<Observer> make_console(bool terminal) {
    if (terminal) return std::make_unique<ProgressBar>();
    return std::make_unique<PlainLines>();
}

void HistoryObserver::on_step(const StepReport& r) {
    rows.push_back(
        {r.step, r.epoch, {{"loss", r.loss}, {"grad_norm", r.grad_norm}, {"learning_rate", r.learning_rate}}});
}

void HistoryObserver::on_eval(const EvalReport& r) {
    rows.push_back({r.step, r.epoch, {{"eval_loss", r.loss}}});
}

}  // namespace unsloth::train
