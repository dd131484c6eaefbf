// Prometheus' text format.
#include "unsloth/serve/metrics.h"

#include <gtest/gtest.h>

namespace unsloth::serve {
namespace {

TEST(Metrics, AreWrittenAsPrometheusReadsThem) {
    Metrics metrics("a\"b");
    metrics.add(Metric::generation_tokens, 3);
    metrics.add(Metric::generation_tokens);
    metrics.add(Metric::request_success, 1, label("finished_reason", "stop"));
    metrics.set(Metric::kv_cache_usage, 0.25);
    for (const double seconds : {0.3, 0.3001, 9000.0}) metrics.observe(Metric::e2e_latency, seconds);
    const std::string text = metrics.text();
    const auto has = [&](const std::string& line) {
        return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
    };
    const std::string own = R"(model_name="a\"b",engine="0")";
    EXPECT_TRUE(has("# TYPE vllm:generation_tokens_total counter"));
    EXPECT_TRUE(has("vllm:generation_tokens_total{" + own + "} 4")) << text;
    EXPECT_TRUE(has("vllm:request_success_total{" + own + R"(,finished_reason="stop"} 1)"));
    EXPECT_TRUE(has("vllm:kv_cache_usage_perc{" + own + "} 0.25"));
    const std::string bucket = "vllm:e2e_request_latency_seconds_bucket{" + own;
    EXPECT_TRUE(has(bucket + R"(,le="0.3"} 1)")) << "a bound belongs to its bucket";
    EXPECT_TRUE(has(bucket + R"(,le="0.5"} 2)")) << "buckets are cumulated";
    EXPECT_TRUE(has(bucket + R"(,le="+Inf"} 3)"));
    EXPECT_TRUE(has("vllm:e2e_request_latency_seconds_count{" + own + "} 3"));
    EXPECT_TRUE(has("vllm:num_requests_running{" + own + "} 0")) << "from the start";
    metrics.observe(Metric::inter_token_latency, 0.5, 64);
    EXPECT_NE(metrics.text().find("vllm:inter_token_latency_seconds_sum{" + own + "} 32"), std::string::npos);
    metrics.set(Metric::kv_cache_usage, 0.5, label("a", "b"), /*alone=*/true);
    EXPECT_EQ(metrics.text().find("vllm:kv_cache_usage_perc{" + own + "} "), std::string::npos);
}

}  // namespace
}  // namespace unsloth::serve
