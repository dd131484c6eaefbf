#include "unsloth/report/sinks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "report/prometheus_library.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/report/event_file.h"
#include "unsloth/report/page.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double wall_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Warns of the first failure; a run does not end because it cannot be watched.
class Warner {
  public:
    template <class Work>
    void guard(const Work& work) {
        try {
            work();
        } catch (const std::exception& failure) {
            if (!warned_) log::warning(failure.what(), "; training continues without");
            warned_ = true;
        }
    }

  private:
    bool warned_ = false;
};

class EventFileSink final : public RowSink {
  public:
    EventFileSink(const config::Config& config, const std::filesystem::path& folder) {
        const Folder own = Folder::made(folder).require().made_below(config.logging.tensorboard_dir);
        const std::string name = event_file_name(wall_time());
        path_ = own / name;
        errno = own.failure();
        if (own.open()) file_ = open_own_file(own, name, O_WRONLY | O_CREAT | O_APPEND);
        if (!file_.open())
            throw Error("disk.cannot-write", cat("cannot create ", path_.string(), ": ", std::strerror(errno)),
                        "logging.tensorboard_dir says where TensorBoard's files are written.");
        write(version_event(wall_time()));
        std::string indented;  // Markdown's code
        std::string text = config::config_to_json(config);
        for (std::size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
            indented += "    " + text.substr(start, end - start + 1);
        write(text_event(wall_time(), 0, "configuration", indented));
    }

    void row(const Json& row) override {
        const bool evaluation = row.contains("eval_tokens"), summary = row.contains("event");
        std::vector<std::pair<std::string, double>> values;
        for (const auto& [key, value] : row.items()) {
            if (key == "step" || !value.is_number()) continue;
            // The names that transformers' callback gives them.
            values.emplace_back(evaluation && key.starts_with("eval_") ? "eval/" + key.substr(5)
                                : summary                              ? "summary/" + key
                                                                       : "train/" + key,
                                value.get<double>());
        }
        const int64_t step = summary ? row.value("global_step", int64_t{0}) : row.value("step", int64_t{0});
        warner_.guard([&] { write(scalars_event(wall_time(), step, values)); });
    }

  private:
    void write(const std::string& event) {
        waiting_ += framed_record(event);
        while (!waiting_.empty()) {
            const ssize_t written = ::write(file_.get(), waiting_.data(), waiting_.size());
            if (written < 0 && errno != EINTR)
                throw Error(write_failure(errno), cat("cannot write ", path_.string(), ": ", std::strerror(errno)));
            waiting_.erase(0, static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
        }
    }

    std::filesystem::path path_;
    Descriptor file_;
    std::string waiting_;  ///< of which the first bytes may be written: records are never torn
    Warner warner_;
};

class PageSink final : public RowSink {
  public:
    explicit PageSink(std::filesystem::path folder) : folder_(std::move(folder)) {}

    void row(const Json& row) override {
        const bool last = row.contains("event");
        if (!last && Clock::now() < next_) return;
        warner_.guard([&] {
            const auto begin = Clock::now();
            if (!reader_) reader_.emplace(folder_);
            reader_->update();
            write_file_atomically(folder_ / page_file, page(reader_->run(), refresh_seconds));
            // A hundredth of the time at most, on the slowest disk too.
            next_ = Clock::now() +
                    std::max<Clock::duration>(std::chrono::seconds(refresh_seconds), 100 * (Clock::now() - begin));
        });
    }

  private:
    static constexpr int refresh_seconds = 5;

    std::filesystem::path folder_;
    std::optional<RunReader> reader_;
    Clock::time_point next_{};
    Warner warner_;
};

bool wants(const config::Config& config, const char* what) {
    const auto& names = config.training.report_to;
    return std::find(names.begin(), names.end(), what) != names.end();
}

}  // namespace

std::vector<std::unique_ptr<RowSink>> make_sinks(const config::Config& config, const std::filesystem::path& folder,
                                                 const std::string& gpu) {
    std::vector<std::unique_ptr<RowSink>> sinks;
    if (wants(config, "tensorboard")) sinks.push_back(std::make_unique<EventFileSink>(config, folder));
    if (wants(config, "html")) sinks.push_back(std::make_unique<PageSink>(folder));
    if (wants(config, "prometheus")) {
        sinks.push_back(make_prometheus_sink(config, folder, gpu));
        log::info("metrics for Prometheus: http://", config.logging.metrics_address, ":", config.logging.metrics_port,
                  "/metrics");
    }
    return sinks;
}

void require_sinks(const config::Config& config, const std::filesystem::path& folder, const std::string& gpu) {
    if (wants(config, "prometheus")) make_prometheus_sink(config, folder, gpu);
    const Folder out = Folder::named(folder);
    if (!out.open()) return;  // what it is to hold is made with it
    for (const std::filesystem::path& names :
         {std::filesystem::path(config.logging.metrics_file).parent_path(),
          wants(config, "tensorboard") ? std::filesystem::path(config.logging.tensorboard_dir) : ""})
        if (const Folder own = out.below(names); own.failure() != ENOENT) own.require();
}

}  // namespace unsloth::report
