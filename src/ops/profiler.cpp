#include "unsloth/ops/profiler.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/common/launch.h"
#endif

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"

namespace unsloth::ops {

/// Two marks a region: 2i its begin, 2i + 1 its end.
struct Profiler::Clock {
    explicit Clock(const Context& context) : ctx(context) {}

    ~Clock() {
#ifdef UNSLOTH_CUDA
        for (const cudaEvent_t event : events) cudaEventDestroy(event);
#endif
    }

    void mark(std::size_t index) {
#ifdef UNSLOTH_CUDA
        if (ctx.is_cuda()) {
            while (events.size() <= index) {
                cudaEvent_t event = nullptr;
                UNSLOTH_CUDA_CHECK(cudaEventCreate(&event));
                events.push_back(event);
            }
            UNSLOTH_CUDA_CHECK(cudaEventRecord(events[index], static_cast<cudaStream_t>(ctx.stream())));
            return;
        }
#endif
        if (times.size() <= index) times.resize(index + 1);
        times[index] = std::chrono::steady_clock::now();
    }

    void wait() {
#ifdef UNSLOTH_CUDA
        if (ctx.is_cuda()) UNSLOTH_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(ctx.stream())));
#endif
    }

    double since_first_us(std::size_t index) const {
#ifdef UNSLOTH_CUDA
        if (ctx.is_cuda()) {
            float ms = 0;
            UNSLOTH_CUDA_CHECK(cudaEventElapsedTime(&ms, events[0], events[index]));
            return 1000.0 * static_cast<double>(ms);
        }
#endif
        return std::chrono::duration<double, std::micro>(times[index] - times[0]).count();
    }

    const Context& ctx;
#ifdef UNSLOTH_CUDA
    std::vector<cudaEvent_t> events;
#endif
    std::vector<std::chrono::steady_clock::time_point> times;
};

Profiler::Profiler(const Context& ctx) : clock_(std::make_unique<Clock>(ctx)) {}
Profiler::~Profiler() = default;

void Profiler::begin(std::string name) {
    const auto index = static_cast<int64_t>(spans_.size());
    spans_.push_back({std::move(name), open_.empty() ? -1 : open_.back(), static_cast<int>(open_.size())});
    open_.push_back(index);
    clock_->mark(static_cast<std::size_t>(2 * index));
}

void Profiler::end() {
    UNSLOTH_CHECK(!open_.empty(), "a region ends that did not begin");
    clock_->mark(static_cast<std::size_t>(2 * open_.back() + 1));
    open_.pop_back();
}

std::vector<Span> Profiler::take() {
    UNSLOTH_CHECK(open_.empty(), "region ", spans_[static_cast<std::size_t>(open_.back())].name, " is still open");
    clock_->wait();
    for (std::size_t i = 0; i < spans_.size(); ++i) {
        spans_[i].begin_us = clock_->since_first_us(2 * i);
        spans_[i].end_us = clock_->since_first_us(2 * i + 1);
    }
    return std::exchange(spans_, {});
}

namespace {

struct Line {
    std::string name;
    double us = 0;
    int64_t calls = 0;
};

}  // namespace

std::string region_table(const std::vector<Span>& spans) {
    std::vector<bool> has_children(spans.size(), false);
    for (const Span& span : spans)
        if (span.parent >= 0) has_children[static_cast<std::size_t>(span.parent)] = true;
    // Leaves are summed by (outermost region, own name); what no leaf covers is the outermost region's own time.
    std::vector<Line> lines;
    std::map<std::string, std::size_t> index;
    std::map<std::string, double> uncovered;
    double total = 0;
    const auto add = [&](const std::string& name, double us) {
        const auto [at, fresh] = index.try_emplace(name, lines.size());
        if (fresh) lines.push_back({name});
        lines[at->second].us += us;
        ++lines[at->second].calls;
    };
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const double us = spans[i].end_us - spans[i].begin_us;
        std::size_t top = i;
        while (spans[top].parent >= 0) top = static_cast<std::size_t>(spans[top].parent);
        if (top == i) {
            total += us;
            uncovered[spans[i].name] += us;
        }
        if (has_children[i]) continue;
        add(top == i ? spans[i].name : cat(spans[top].name, " / ", spans[i].name), us);
        uncovered[spans[top].name] -= us;
    }
    for (const auto& [name, us] : uncovered)
        if (us > 0.5) add(cat(name, " / (between)"), us);
    std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.us > b.us; });
    std::string text = "region                                              calls          ms   share\n";
    lines.push_back({"in all", total, 1});
    for (const Line& line : lines) {
        char row[160];
        std::snprintf(row, sizeof row, "%-50s %6lld %11.3f %6.1f %%\n", line.name.c_str(),
                      static_cast<long long>(line.calls), line.us / 1000, total > 0 ? 100 * line.us / total : 0);
        text += row;
    }
    return text;
}

void write_chrome_trace(const std::filesystem::path& path, const std::vector<Span>& spans) {
    nlohmann::json events = nlohmann::json::array();
    for (const Span& span : spans)
        events.push_back({{"name", span.name},
                          {"ph", "X"},
                          {"pid", 0},
                          {"tid", 0},
                          {"ts", span.begin_us},
                          {"dur", span.end_us - span.begin_us}});
    write_file_atomically(path, nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump());
}

void profile(Context& ctx, const std::filesystem::path& trace, const std::function<void()>& step) {
    Profiler profiler(ctx);
    ctx.profiler = &profiler;
    step();
    ctx.profiler = nullptr;
    const std::vector<Span> spans = profiler.take();
    log::info("profile of one step\n", region_table(spans));
    write_chrome_trace(trace, spans);
    log::info("trace in ", trace.string());
}

}  // namespace unsloth::ops
