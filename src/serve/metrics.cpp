#include "unsloth/serve/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::serve {
namespace {

enum class Kind : uint8_t { gauge, counter, histogram };

/// vLLM's bounds.
const std::vector<double> first_token_bounds = {.001, .005, .01, .02, .04, .06, .08, .1,  .25,  .5,   .75,
                                                1.0,  2.5,  5.0, 7.5, 10., 20., 40., 80., 160., 640., 2560.};
const std::vector<double> token_bounds = {.01, .025, .05, .075, .1,  .15, .2,  .3,  .4, .5,
                                          .75, 1.,   2.5, 5.,   7.5, 10,  20., 40., 80.};
const std::vector<double> request_bounds = {.3,  .5,  .8,  1.,  1.5, 2.,  2.5,  5.,   10.,  15.,  20.,
                                            30., 40., 50., 60., 120, 240, 480., 960., 1920, 7680.};
const std::vector<double> size_bounds = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const std::vector<double> choice_bounds = {1, 2, 5, 10, 20};
const std::vector<double> pass_bounds = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

struct Family {
    const char* name;
    const char* help;
    Kind kind;
    const std::vector<double>* bounds = nullptr;
};

/// In the order of Metric.
const Family families[] = {
    {"vllm:num_requests_running", "Sequences that are decoded.", Kind::gauge},
    {"vllm:num_requests_waiting", "Sequences that wait for a row.", Kind::gauge},
    {"vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1: all of it.", Kind::gauge},
    {"vllm:lora_requests_info", "Adapters of running and waiting requests.", Kind::gauge},
    {"vllm:cache_config_info", "The KV cache.", Kind::gauge},
    {"vllm:prompt_tokens_total", "Tokens of prompts.", Kind::counter},
    {"vllm:generation_tokens_total", "Generated tokens.", Kind::counter},
    {"vllm:request_success_total", "Completions that ended.", Kind::counter},
    {"vllm:num_preemptions_total", "Sequences that lost their pages and are computed again.", Kind::counter},
    {"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", Kind::counter},
    {"vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", Kind::counter},
    {"vllm:admission_rejections_total", "Requests that were refused.", Kind::counter},
    {"vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", Kind::histogram,
     &first_token_bounds},
    {"vllm:inter_token_latency_seconds", "Between a sequence's tokens.", Kind::histogram, &token_bounds},
    {"vllm:e2e_request_latency_seconds", "From a request's arrival to a completion's end.", Kind::histogram,
     &request_bounds},
    {"vllm:request_queue_time_seconds", "Until a sequence gets a row.", Kind::histogram, &request_bounds},
    {"vllm:request_prefill_time_seconds", "From the row to the first token.", Kind::histogram, &request_bounds},
    {"vllm:request_decode_time_seconds", "From the first token to the last one.", Kind::histogram, &request_bounds},
    {"vllm:request_inference_time_seconds", "From the row to the last token.", Kind::histogram, &request_bounds},
    {"vllm:request_prompt_tokens", "Tokens of a prompt.", Kind::histogram, &size_bounds},
    {"vllm:request_generation_tokens", "Tokens of a completion.", Kind::histogram, &size_bounds},
    {"vllm:request_params_n", "Completions that a request asks for.", Kind::histogram, &choice_bounds},
    {"vllm:iteration_tokens_total", "Tokens that a pass computed.", Kind::histogram, &pass_bounds},
};

const Family& family_of(Metric metric) {
    return families[static_cast<std::size_t>(metric)];
}

std::string number_text(double value) {
    if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
    char text[32];
    const auto written = std::to_chars(std::begin(text), std::end(text), value);
    return {std::begin(text), written.ptr};
}

std::string line(const std::string& name, const std::string& labels, double value) {
    return cat(name, "{", labels, "} ", number_text(value), "\n");
}

std::string joined(const std::string& one, const std::string& other) {
    return other.empty() ? one : one + "," + other;
}

}  // namespace

Metrics::Metrics(const std::string& model_name)
    : labels_(joined(label("model_name", model_name), label("engine", "0"))) {
    for (std::size_t i = 0; i < std::size(families); ++i) {
        const auto metric = static_cast<Metric>(i);
        const bool has_labels = metric == Metric::lora_requests_info || metric == Metric::cache_config_info ||
                                metric == Metric::request_success || metric == Metric::admission_rejections;
        if (!has_labels) at(metric, {});
    }
}

Metrics::Series& Metrics::at(Metric metric, const std::string& labels) {
    Series& series = series_[metric][labels];
    if (family_of(metric).kind == Kind::histogram && series.counts.empty())
        series.counts.resize(family_of(metric).bounds->size() + 1);
    return series;
}

void Metrics::set(Metric metric, double value, const std::string& labels, bool alone) {
    const std::lock_guard lock(mutex_);
    if (alone) series_[metric].clear();
    at(metric, labels).value = value;
}

void Metrics::add(Metric metric, double by, const std::string& labels) {
    const std::lock_guard lock(mutex_);
    at(metric, labels).value += by;
}

void Metrics::observe(Metric histogram, double value, uint64_t count) {
    const std::lock_guard lock(mutex_);
    const std::vector<double>& bounds = *family_of(histogram).bounds;
    Series& series = at(histogram, {});
    series.counts[static_cast<std::size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())] += count;
    series.count += count;
    series.value += value * static_cast<double>(count);
}

std::string Metrics::text() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [metric, all] : series_) {
        const Family& family = family_of(metric);
        const std::string name = family.name;
        const char* const kind = family.kind == Kind::gauge     ? "gauge"
                                 : family.kind == Kind::counter ? "counter"
                                                                : "histogram";
        text += cat("# HELP ", name, " ", family.help, "\n# TYPE ", name, " ", kind, "\n");
        for (const auto& [more, series] : all) {
            const std::string labels = joined(labels_, more);
            if (family.kind != Kind::histogram) {
                text += line(name, labels, series.value);
                continue;
            }
            uint64_t sum = 0;
            for (std::size_t i = 0; i < series.counts.size(); ++i) {
                sum += series.counts[i];
                const std::string bound = i < family.bounds->size() ? number_text((*family.bounds)[i]) : "+Inf";
                text += line(name + "_bucket", joined(labels, label("le", bound)), static_cast<double>(sum));
            }
            text += line(name + "_sum", labels, series.value);
            text += line(name + "_count", labels, static_cast<double>(series.count));
        }
    }
    return text;
}

std::string label(const std::string& name, const std::string& value) {
    std::string text = name + "=\"";
    for (const char c : value) {
        if (c == '\\' || c == '"') text += '\\';
        text += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return text + '"';
}

}  // namespace unsloth::serve
