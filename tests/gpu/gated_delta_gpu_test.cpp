#include <cmath>
#include <cstdio>
#include <numeric>

#include "gpu/gpu_testing.h"
#include "ops/delta_turns_cases.h"

namespace unsloth {
namespace {

using testing::GpuTest;
using testing::OpCase;
using testing::Tensors;

class GatedDeltaGpu : public GpuTest {};

/// Sizes that the kernels by chunks take: products round what is made of states and values to bf16, so results are
/// within 2 % of an element and 1 % of the largest one; a wrong term or token is off by more. Sums over all tokens may
/// cancel: hence the floor.
std::vector<OpCase> chunked_delta_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const ops::DeltaShape one{1, 1, 128, 128}, shared{2, 4, 128, 128}, three{1, 3, 128, 128};
    using testing::Layout;
    for (const double pace : {0.02, 1.0, 20.0}) {
        for (const int32_t length : {1, 63, 64, 65, 127})
            testing::add_delta_rule_cases(cases, one, {length}, pace, at::kBFloat16, Layout::packed);
        testing::add_delta_rule_cases(cases, shared, {3, 64, 65, 1, 130}, pace, at::kBFloat16, Layout::wide);
        testing::add_delta_rule_cases(cases, three, {70, 20}, pace, at::kHalf, Layout::packed);
        testing::add_delta_rule_cases(cases, one, {1000}, pace, at::kBFloat16, Layout::packed);
    }
    testing::add_delta_rule_cases(cases, {8, 16, 128, 128}, {100, 29, 64, 1, 66, 10}, 0.1, at::kBFloat16,
                                  Layout::packed);
    for (OpCase& op_case : cases) op_case.tolerance = testing::Tolerance{0.02, 0.01, 2e-3};
    return cases;
}

/// The same sizes in parts.
std::vector<OpCase> chunked_turns_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const ops::DeltaShape one{1, 1, 128, 128}, shared{2, 4, 128, 128};
    using testing::Layout;
    for (const double pace : {0.02, 1.0}) {
        testing::add_delta_turns_cases(cases, one, {{{64, 64}}}, pace, at::kBFloat16, Layout::packed);
        testing::add_delta_turns_cases(cases, one, {{{1, 129}}}, pace, at::kBFloat16, Layout::packed);
        testing::add_delta_turns_cases(cases, shared, {{{70, 65}, {3, 1}, {1, 0}}}, pace, at::kBFloat16, Layout::wide);
        testing::add_delta_turns_cases(cases, shared, {{{63, 0, 5}, {65, 130, 3}}}, pace, at::kHalf, Layout::packed);
    }
    for (OpCase& op_case : cases) op_case.tolerance = testing::Tolerance{0.02, 0.01, 2e-3};
    return cases;
}

TEST_F(GatedDeltaGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::gated_delta_cases);
}

TEST_F(GatedDeltaGpu, PartsInTurnsAreTheWholeSequence) {
    testing::check_on_gpu(testing::delta_turns_cases);
    testing::check_on_gpu(chunked_turns_cases);
}

TEST_F(GatedDeltaGpu, ChunksMatchTheRecurrenceInDoublePrecision) {
    testing::check_on_gpu(chunked_delta_cases);
}

/// The norm of a difference is far below what one element's bound allows: no systematic error.
TEST_F(GatedDeltaGpu, ChunksAreCloseInTheMean) {
    for (const OpCase& op_case : chunked_delta_cases(5)) {
        SCOPED_TRACE(op_case.name);
        const testing::CaseResult gpu = testing::run_case(op_case, at::kCUDA),
                                  cpu = testing::run_case(op_case, at::kCPU);
        for (size_t i = 0; i < op_case.args.size(); ++i) {
            if (op_case.args[i].role == testing::Role::input) continue;
            const at::Tensor expected = cpu.args[i].to(at::kDouble), actual = gpu.args[i].to(at::kDouble);
            // Sums over all tokens, whose terms cancel and are each rounded by up to 2^-9.
            const bool summed = op_case.args[i].value.dim() == 1;
            const double floor = summed ? std::sqrt(static_cast<double>(op_case.args[0].value.size(0))) / 512 : 1e-6;
            EXPECT_LE((actual - expected).norm().item<double>(), 0.01 * expected.norm().item<double>() + floor)
                << op_case.args[i].name;
        }
    }
}

/// A sequence in parts, the last ones of a token each, is the sequence; states and rows are in any order.
void expect_continues(const ops::DeltaShape& shape, at::ScalarType dtype, double tolerance) {
    const std::vector<int32_t> parts = {70, 1, 1};
    const int64_t sequences = 2, tokens = 72, channels = shape.channels();
    const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
    const auto floats = options.dtype(at::kFloat);
    ops::Context ctx(at::kCUDA);
    ctx.workspace =
        at::empty({ops::delta_rule_workspace(shape, dtype, ctx.device(), sequences * tokens, sequences) + 16},
                  options.dtype(at::kByte));
    const at::Tensor x = at::randn({sequences, tokens, channels}, options), weight = at::randn({channels, 4}, floats),
                     b = at::randn({sequences, tokens, shape.value_heads}, options), a = at::randn_like(b),
                     a_log = at::full({shape.value_heads}, -2.0, floats), bias = at::zeros({shape.value_heads}, floats);
    const auto run = [&](const std::vector<int32_t>& lengths, int64_t first, int64_t count, const ops::KeptStates& rows,
                         const ops::KeptStates& states) {
        const auto part = [&](const at::Tensor& t) { return t.narrow(1, first, count).contiguous().flatten(0, 1); };
        const at::Tensor mixed = at::empty({sequences * count, channels}, options),
                         o = at::empty({sequences * count, shape.value_heads, shape.value_dim}, options);
        const ops::Segments segments = testing::segments_of(lengths, ctx.device());
        ops::short_conv_forward(ctx, segments, part(x), weight, mixed, rows);
        ops::delta_rule_forward(ctx, shape, segments, {mixed, part(b), part(a), a_log, bias}, o, states);
        return o.unflatten(0, {sequences, count});
    };
    const at::Tensor whole = run({72, 72}, 0, tokens, {}, {});
    const std::vector<int32_t> order = {2, 0};
    const at::Tensor order_S = at::tensor(order, at::kInt).to(ctx.device());
    const ops::KeptStates rows{at::zeros({4, 3, channels}, options), order, order_S},
        states{at::zeros({4, shape.value_heads, shape.key_dim, shape.value_dim}, floats), order, order_S};
    int64_t first = 0;
    for (const int32_t count : parts) {
        const at::Tensor o = run({count, count}, first, count, rows, states);
        const at::Tensor expected = whole.narrow(1, first, count).to(at::kDouble);
        EXPECT_LE((o.to(at::kDouble) - expected).norm().item<double>(), tolerance * expected.norm().item<double>())
            << "from token " << first;
        first += count;
    }
    EXPECT_EQ(states.data[1].abs().max().item<float>(), 0.0F) << "another sequence's state was written";
}

TEST_F(GatedDeltaGpu, PartsContinueFromKeptStates) {
    expect_continues({2, 4, 128, 128}, at::kBFloat16, 0.01);
    expect_continues({1, 2, 128, 128}, at::kFloat, 1e-5);
    expect_continues({1, 2, 24, 16}, at::kFloat, 1e-5);
}

/// Qwen3.5 9B's shape: printed for the reader; the bounds are far above what is expected.
TEST_F(GatedDeltaGpu, Speed) {
    const ops::DeltaShape shape{16, 32, 128, 128};
    const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
    const auto floats = options.dtype(at::kFloat);
    for (const auto& [count, length] : {std::pair{8, 2048}, std::pair{1, 16384}}) {
        const std::vector<int32_t> lengths(static_cast<size_t>(count), length);
        const int64_t tokens = int64_t{count} * length;
        ops::Context ctx(at::kCUDA);
        const ops::Segments segments = testing::segments_of(lengths, ctx.device());
        ctx.workspace = at::empty({ops::delta_rule_workspace(shape, at::kBFloat16, ctx.device(), tokens, count)},
                                  options.dtype(at::kByte));
        const at::Tensor x = at::randn({tokens, shape.channels()}, options), y = at::empty_like(x),
                         dx = at::empty_like(x), weight = at::randn({shape.channels(), 4}, floats),
                         b = at::randn({tokens, 32}, options), a = at::randn_like(b), db = at::empty_like(b),
                         da = at::empty_like(b), a_log = at::zeros({32}, floats), bias = at::zeros({32}, floats),
                         o = at::empty({tokens, 32, 128}, options), dout = at::randn_like(o), z = at::randn_like(o),
                         dz = at::empty_like(o), norm = at::ones({128}, floats),
                         states = at::empty({ops::delta_state_elements(shape, tokens, count)}, floats);
        const ops::DeltaInputs in{x, b, a, a_log, bias};
        const auto report = [&](const char* name, double bound, const std::function<void()>& call) {
            const double ms = testing::milliseconds_of(call);
            std::printf("  %dx%d %-22s %8.4f ms\n", count, length, name, ms);
            EXPECT_LT(ms, bound) << name;
        };
        report("short_conv", 2, [&] { ops::short_conv_forward(ctx, segments, x, weight, y); });
        report("short_conv_backward", 4, [&] { ops::short_conv_backward(ctx, segments, y, x, weight, dx, {}); });
        report("delta_rule", 20, [&] { ops::delta_rule_forward(ctx, shape, segments, in, o); });
        report("delta_rule_backward", 60,
               [&] { ops::delta_rule_backward(ctx, shape, segments, in, dout, states, {dx, db, da, {}, {}}); });
        report("gated_norm", 2, [&] { ops::gated_norm_forward(ctx, o, z, norm, 1e-6, o); });
        report("gated_norm_backward", 4, [&] { ops::gated_norm_backward(ctx, dout, o, z, norm, 1e-6, dz, z, {}); });
    }
    ops::Context ctx(at::kCUDA);
    const int64_t rows = 64;
    const at::Tensor x = at::randn({rows, shape.channels()}, options), b = at::randn({rows, 32}, options),
                     a = at::randn_like(b), a_log = at::zeros({32}, floats), o = at::empty({rows, 32, 128}, options);
    std::vector<int32_t> places(static_cast<size_t>(rows));
    std::iota(places.begin(), places.end(), 0);
    const ops::KeptStates states{at::zeros({rows + 1, 32, 128, 128}, floats), places,
                                 at::arange(rows, floats.dtype(at::kInt))};
    const ops::Segments segments = testing::segments_of(std::vector<int32_t>(rows, 1), ctx.device());
    const double ms = testing::milliseconds_of(
        [&] { ops::delta_rule_forward(ctx, shape, segments, {x, b, a, a_log, a_log}, o, states); });
    const double bytes = 2.0 * static_cast<double>(states.data.nbytes());
    std::printf("  decode of %d rows %8.4f ms, %.0f GB/s\n", static_cast<int>(rows), ms, bytes / ms / 1e6);
    EXPECT_LT(ms, 1.0);
}

}  // namespace
}  // namespace unsloth
