// What a service counts, under vLLM's names, as Prometheus reads it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace unsloth::serve {

enum class Metric : uint8_t {
    requests_running,
    requests_waiting,
    kv_cache_usage,
    lora_requests_info,
    cache_config_info,
    prompt_tokens,
    generation_tokens,
    request_success,
    preemptions,
    prefix_cache_queries,
    prefix_cache_hits,
    admission_rejections,
    time_to_first_token,
    inter_token_latency,
    e2e_latency,
    queue_time,
    prefill_time,
    decode_time,
    inference_time,
    request_prompt_tokens,
    request_generation_tokens,
    request_params_n,
    iteration_tokens,
};

/// Every member is safe from any thread.
class Metrics {
  public:
    explicit Metrics(const std::string& model_name);

    /// `labels`: further ones, as Prometheus writes them (label() makes one), joined by commas. `alone`: values with
    /// other labels are forgotten.
    void set(Metric metric, double value, const std::string& labels = {}, bool alone = false);
    void add(Metric metric, double by = 1, const std::string& labels = {});
    /// `count` times.
    void observe(Metric histogram, double value, uint64_t count = 1);

    /// Prometheus' text format 0.0.4.
    std::string text() const;

  private:
    struct Series {
        double value = 0;
        std::vector<uint64_t> counts;  ///< of a histogram: values up to each bound, not cumulated
        uint64_t count = 0;
    };
    Series& at(Metric metric, const std::string& labels);

    mutable std::mutex mutex_;
    std::string labels_;
    std::map<Metric, std::map<std::string, Series>> series_;
};

/// NAME="VALUE", escaped.
std::string label(const std::string& name, const std::string& value);

}  // namespace unsloth::serve
