// Sampling on a GPU: the CPU's tokens from the same logits and random numbers, and the exact distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "gpu/gpu_testing.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/sampling.h"

namespace unsloth::ops {
namespace {

class SamplingGpu : public testing::GpuTest {};

struct Draw {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
};

Draw draw(at::Device device, const at::Tensor& logits_CV, const std::vector<RowSampling>& rows) {
    Context ctx(device);
    const at::Tensor logits = logits_CV.to(device).clone();
    const at::Tensor ids = at::empty({logits.size(0)}, at::device(device).dtype(at::kInt));
    const at::Tensor logprobs = at::empty({logits.size(0)}, at::device(device).dtype(at::kFloat));
    sample_tokens(ctx, logits, rows, ids, logprobs);
    const at::Tensor i = ids.cpu(), l = logprobs.cpu();
    return {{i.const_data_ptr<int32_t>(), i.const_data_ptr<int32_t>() + i.numel()},
            {l.const_data_ptr<float>(), l.const_data_ptr<float>() + l.numel()}};
}

const std::vector<spec::Sampling> ways = {
    {},
    {.repetition_penalty = 1.3},
    {.temperature = 1},
    {.temperature = 0.7, .top_k = 50},
    {.temperature = 1.5, .top_p = 0.9},
    {.temperature = 1, .top_k = 1},
    {.temperature = 2, .top_k = 400, .top_p = 0.5},
    {.temperature = 1, .min_p = 0.05},
    {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.02, .repetition_penalty = 1.2, .presence_penalty = 0.5},
    {.temperature = 1, .repetition_penalty = 0.9, .logit_bias = {{3, 4.0F}, {17, -INFINITY}, {90, 2.5F}}},
};

TEST_F(SamplingGpu, ChoosesTheCpusTokens) {
    at::manual_seed(7);
    std::mt19937 random(11);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        for (const int64_t vocabulary : {101, 4096, 128256}) {
            const int64_t count = 96;
            // Of bf16 many are equal: the order of ids decides.
            const at::Tensor logits = (at::randn({count, vocabulary}) * 3).to(type);
            std::vector<std::vector<int32_t>> ids(static_cast<std::size_t>(count));
            std::vector<std::vector<uint32_t>> allowed(static_cast<std::size_t>(count));
            std::vector<RowSampling> rows;
            for (std::size_t row = 0; row < ids.size(); ++row) {
                if (row % 5 == 0)  // some tokens alone, and in one row none
                    for (int64_t word = 0; word < (vocabulary + 31) / 32; ++word)
                        allowed[row].push_back(row == 5 ? 0 : static_cast<uint32_t>(random() & random() & random()));
                for (int i = 0; i < 60; ++i) ids[row].push_back(static_cast<int32_t>(random() % 100));
                rows.push_back(
                    {&ways[row % ways.size()],
                     ids[row],
                     20,
                     {.seed = 1234567890123ULL, .prompt = static_cast<uint32_t>(row), .answer = 2, .position = 40},
                     row % 3 > 0 && ways[row % ways.size()].temperature > 0 ? LogprobOf::policy : LogprobOf::model,
                     allowed[row]});
            }
            const Draw gpu = draw(at::kCUDA, logits, rows), cpu = draw(at::kCPU, logits, rows);
            for (std::size_t row = 0; row < rows.size(); ++row) {
                SCOPED_TRACE(cat(type, " of ", vocabulary, ", row ", row, ", way ", row % ways.size()));
                EXPECT_EQ(gpu.ids[row], cpu.ids[row]);
                EXPECT_EQ(std::isnan(gpu.logprobs[row]), row == 5);
                if (row == 5) continue;
                EXPECT_NEAR(gpu.logprobs[row], cpu.logprobs[row], 1e-5 * std::max(1.0F, std::abs(cpu.logprobs[row])));
            }
            const Draw again = draw(at::kCUDA, logits, rows);
            EXPECT_EQ(gpu.ids, again.ids);
            // A row alone, in another place of another batch.
            const Draw alone = draw(at::kCUDA, logits.narrow(0, 42, 1), {rows[42]});
            EXPECT_EQ(alone.ids[0], gpu.ids[42]);
            EXPECT_EQ(alone.logprobs[0], gpu.logprobs[42]);
        }
    }
}

TEST_F(SamplingGpu, DrawsTheDistribution) {
    constexpr int64_t draws = 20000, vocabulary = 40;
    at::manual_seed(3);
    const at::Tensor one = at::randn({1, vocabulary}) * 2;
    const spec::Sampling way{.temperature = 1.3};
    std::vector<RowSampling> rows;
    for (uint32_t i = 0; i < draws; ++i)
        rows.push_back({&way, {}, 0, {.seed = 9, .prompt = 1, .answer = 0, .position = i}});
    const Draw drawn = draw(at::kCUDA, one.expand({draws, vocabulary}).contiguous(), rows);
    const at::Tensor p = (one / 1.3).softmax(1);
    std::vector<double> seen(vocabulary);
    for (const int32_t id : drawn.ids) seen[static_cast<std::size_t>(id)] += 1;
    double chi = 0;
    for (int64_t id = 0; id < vocabulary; ++id) {
        const double expected = draws * p[0][id].item<double>();
        chi += (seen[static_cast<std::size_t>(id)] - expected) * (seen[static_cast<std::size_t>(id)] - expected) /
               expected;
    }
    EXPECT_LT(chi, 39 + 4.5 * std::sqrt(2.0 * 39));  // degrees of freedom, and 4.5 deviations
    EXPECT_GT(chi, 39 - 4.0 * std::sqrt(2.0 * 39));
}

TEST_F(SamplingGpu, SaysThatLogitsAreNotFinite) {
    at::Tensor logits = at::zeros({3, 50});
    logits[0][7] = NAN;
    logits[1].fill_(-INFINITY);
    const spec::Sampling way{.temperature = 1};
    const Draw drawn = draw(at::kCUDA, logits, {{&way, {}, 0, {}}, {&way, {}, 0, {}}, {&way, {}, 0, {}}});
    EXPECT_TRUE(std::isnan(drawn.logprobs[0]) && std::isnan(drawn.logprobs[1]));
    EXPECT_NEAR(drawn.logprobs[2], -std::log(50.0F), 1e-5);
}

}  // namespace
}  // namespace unsloth::ops
