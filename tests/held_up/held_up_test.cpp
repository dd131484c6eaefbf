// Kernels whose warps have roles, with each role held up in turn beside everything that it waits for: they end, and
// give the bits that they give when nobody is held up. The kernels here are copies of their own, compiled with
// delay_injection.cuh.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "gpu/gpu_testing.h"
#include "held_up/delay_injection.h"
#include "kernels/coded_gemm_sm90.h"
#include "kernels/common/launch.h"
#include "kernels/lora_gemm.h"
#include "kernels/nf4_gemm.h"
#include "ops/coded_testing.h"
#include "ops/lora_cases.h"
#include "ops/quant_cases.h"
#include "src/ops/kernel_arguments.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/nf4_gemm.h"

namespace unsloth {
namespace kernels {

using SetHoldUp = void (*)(const HoldUp&);

std::vector<SetHoldUp>& files_that_hold_up() {
    static std::vector<SetHoldUp> files;
    return files;
}
bool list_hold_up(SetHoldUp set) {
    files_that_hold_up().push_back(set);
    return true;
}

}  // namespace kernels

namespace {

using kernels::HoldUp;

struct Role {
    const char* name;
    uint32_t warps;  ///< by bit
};

constexpr uint32_t held_ns = 20000;  ///< at each barrier: a ring of stages goes around several times meanwhile
constexpr std::chrono::seconds patience{60};

class HeldUpGpu : public testing::GpuTest {
  protected:
    void SetUp() override {
        testing::GpuTest::SetUp();
        if (IsSkipped()) return;
        cudaDeviceProp card{};
        UNSLOTH_CUDA_CHECK(cudaGetDeviceProperties(&card, 0));
        if (!kernels::built_for_hopper() || card.major != 9) GTEST_SKIP() << "not Hopper, or not built for it";
        ctx = std::make_unique<ops::Context>(at::Device(at::kCUDA, 0));
        ctx->workspace = at::empty({ops::gemm_workspace(ctx->device())}, bf16().dtype(at::kByte));
        at::manual_seed(17);
    }
    static at::TensorOptions bf16() { return at::TensorOptions(at::kBFloat16).device(at::kCUDA); }
    cudaStream_t stream() const { return static_cast<cudaStream_t>(ctx->stream()); }

    /// Milliseconds of a launch. A kernel that does not end is ended with this program.
    double run(const std::string& what, const HoldUp& delay_injection, const std::function<void()>& launch) const {
        for (const kernels::SetHoldUp set : kernels::files_that_hold_up()) set(delay_injection);
        at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
        begin.record();
        launch();
        end.record();
        const auto given_up = std::chrono::steady_clock::now() + patience;
        while (!end.query()) {
            if (std::chrono::steady_clock::now() > given_up) {
                ADD_FAILURE() << what << " did not end";
                std::cout.flush();
                std::_Exit(EXIT_FAILURE);
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        return begin.elapsed_time(end);
    }

    /// `launch` writes or adds to `outputs`. `product`: what the product's kernels give, other roundings aside.
    void check(const std::string& name, const std::vector<Role>& roles, const std::vector<at::Tensor>& outputs,
               const std::vector<at::Tensor>& product, const std::function<void()>& launch) {
        const auto from_zero = [&](const std::string& who, const HoldUp& delay_injection) {
            for (const at::Tensor& out : outputs) out.zero_();
            return run(cat(name, ", held up: ", who), delay_injection, launch);
        };
        from_zero("nobody", {});  // loads the kernel
        const double freely = from_zero("nobody", {});
        std::vector<at::Tensor> expected;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            expected.push_back(outputs[i].clone());
            EXPECT_LT(ops::relative_error(outputs[i], ops::fp64_of(product[i])), 1e-2) << name << ", output " << i;
        }
        const auto expect_same = [&](const std::string& who) {
            for (std::size_t i = 0; i < outputs.size(); ++i)
                EXPECT_TRUE(testing::same_bits(outputs[i], expected[i]))
                    << name << ", output " << i << ", held up: " << who;
        };
        for (const Role& role : roles) {
            for (const uint32_t blocks : {0xFFU, 0xAAU}) {  // all; every second one, of a cluster too
                const std::string who = cat(role.name, blocks == 0xFF ? "" : " of every second block");
                const double held = from_zero(who, {.warps = role.warps, .blocks = blocks, .nanoseconds = held_ns});
                EXPECT_GT(held, freely + 1e-6 * held_ns) << name << ": " << who << " was not held up";
                expect_same(who);
            }
        }
        for (int i = 0; i < 8; ++i) {
            from_zero("any warp", {.warps = ~0U, .nanoseconds = held_ns, .sometimes = 1});
            expect_same("any warp");
        }
    }
    std::unique_ptr<ops::Context> ctx;
};

// ---- 4-bit weights: kernels/nf4_gemm_sm90.cu

const std::vector<Role> nf4_roles = {
    {"producer", 1U << 8}, {"scales of group 0", 1U << 9}, {"scales of group 1", 1U << 10}, {"group 0", 0x0FU},
    {"group 1", 0xF0U},    {"a warp of group 0", 1U << 2}, {"both groups", 0xFFU},
};

struct Nf4Operands {
    std::vector<ops::Nf4Tiles> weights;
    std::array<spec::Nf4TilesView, kernels::nf4_gemm_most_weights> views;
    ops::Nf4Gemm product;
    kernels::Nf4GemmArgs args;
};

/// Two tiles for most blocks, a reduction that fills the ring of stages four times, a tail of two stages.
std::unique_ptr<Nf4Operands> nf4_operands(ops::Context& ctx, bool transposed, int tokens) {
    auto made = std::make_unique<Nf4Operands>();
    at::Generator generator = at::detail::createCPUGenerator(29);
    const int64_t m = (tokens <= 32 ? 6 : 3) * tokens - 10, sum = 2048, out = 6144, tail = 72;
    for (const int64_t part : {2, 1, 1}) {
        const int64_t rows = (transposed ? sum : out) * part / 4, columns = transposed ? out : sum;
        const ops::Quant4Tensor host = quant_cases::random_weight(rows, columns, true, generator);
        made->weights.push_back(ops::make_nf4_tiles(ctx, ops::upload(ctx, host.view())));
        made->views[made->weights.size() - 1] = made->weights.back().view();
    }
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx.device());
    made->product = {.weights = made->weights,
                     .transposed = transposed,
                     .x = at::randn({m, sum + tail}, options),
                     .tail_weight = transposed ? at::randn({tail, out}, options) : at::randn({out, tail}, options),
                     .out = at::empty({m, out}, options)};
    const ops::Nf4Gemm& g = made->product;
    kernels::Nf4GemmArgs& args = made->args;
    args.weights = made->views.data(), args.count = static_cast<int>(made->weights.size());
    args.transposed = transposed, args.m = m;
    args.x = {g.x.const_data_ptr(), g.x.stride(0)};
    args.tail = tail, args.tail_weight = {g.tail_weight.const_data_ptr(), g.tail_weight.stride(0)};
    args.out = {g.out.data_ptr(), g.out.stride(0)};
    return made;
}

TEST_F(HeldUpGpu, Nf4) {
    using Kernel = ops::Nf4GemmChoice::Kernel;
    for (const bool transposed : {false, true}) {
        for (const int tokens : {16, 32, 64, 128, 256}) {
            const std::unique_ptr<Nf4Operands> p = nf4_operands(*ctx, transposed, tokens);
            for (const int split : {1, 2, 3, 8}) {
                for (const bool pairs : {false, true}) {
                    const kernels::Nf4GemmSm90Form form = {tokens, split, pairs};
                    if (!kernels::nf4_gemm_sm90_has(form) || (pairs && transposed)) continue;
                    ops::nf4_gemm(
                        *ctx, p->product,
                        {.kernel = pairs ? Kernel::sm90_pairs : Kernel::sm90, .tokens = tokens, .split = split});
                    check(cat("nf4 tokens ", tokens, " split ", split, " transposed ", transposed, " pairs ", pairs),
                          nf4_roles, {p->product.out}, {p->product.out.clone()},
                          [&] { kernels::nf4_gemm_sm90(p->args, form, stream()); });
                }
            }
        }
    }
}

// ---- 8-bit products: kernels/coded_gemm_sm90.cu

const std::vector<Role> coded_roles = {
    {"producer", 1U << 0}, {"epilogue of group 0", 1U << 1}, {"epilogue of group 1", 1U << 2}, {"group 0", 0x0F0U},
    {"group 1", 0xF00U},   {"a warp of group 1", 1U << 9},   {"both groups", 0xFF0U},
};

TEST_F(HeldUpGpu, Coded) {
    kernels::CodedGemmSm90 own;
    // Two tiles or three for each block; a last one of few rows and columns.
    const int64_t m = 2000, n = 4104, k = 1040, rank = 192;
    for (const auto& [tail, int8] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
        ops::GemmCoded g{
            .x = int8 ? ops::random_int8(m, k, at::kCUDA, 0.01, true) : ops::random_fp8(m, k, at::kCUDA, 0.01),
            .w = int8 ? ops::random_int8(n, k, at::kCUDA, 1e-3, false) : ops::random_fp8(n, k, at::kCUDA, 1e-3)};
        g.out = at::empty({m, n}, bf16());
        if (tail) g.u = at::randn({m, rank}, bf16()), g.b = at::randn({n, rank}, bf16());
        if (tail) g.residual = at::randn({m, n}, bf16()) * 3, g.bias = at::randn({n}, bf16());
        ops::gemm_coded(*ctx, g);
        const at::Tensor product = g.out.clone();
        const auto format = int8 ? kernels::CodeFormat::int8 : kernels::CodeFormat::e4m3;
        for (const kernels::CodedTile& tile : kernels::coded_gemm_tiles(format))
            check(cat(int8 ? "int8" : "fp8", " columns ", tile.columns, " cluster ", tile.cluster, " tail ", tail),
                  coded_roles, {g.out}, {product}, [&] { own.run(ops::plain(g), tile, stream()); });
    }
}

// ---- v and dB: kernels/lora_dy.cu

std::vector<Role> lora_roles(int consumers) {
    const uint32_t all = (1U << consumers) - 1;
    return {{"producer", 1U << consumers},
            {"reducer of v", 2U << consumers},
            {"the first consumer", 1U},
            {"half of the consumers", all & 0x5555U},
            {"all consumers", all}};
}

class HeldUpLora : public HeldUpGpu, public ::testing::WithParamInterface<spec::Codes> {};

TEST_P(HeldUpLora, Dy) {
    for (const int64_t rank : {16, 32}) {
        const testing::LoraModules modules = {{1024, rank}, {528, rank}};
        std::vector<ops::LoraSlice> slices = testing::lora_slices(modules);
        const int64_t tokens = 4100, n = testing::outputs_of(slices), r = testing::ranks_of(slices);
        ops::CodedMatrix codes;
        if (GetParam() != spec::Codes::none) codes = testing::random_codes(tokens, n, at::kCUDA, GetParam());
        const at::Tensor dy = codes.codes.defined() ? testing::fp64_with_factors(codes).to(bf16())
                                                    : at::randn({tokens, n}, bf16()),
                         u = at::randn({tokens, r}, bf16()), b = at::zeros({n, r}, bf16()),
                         v = at::empty({tokens, r}, bf16());
        kernels::LoraBackward p;
        p.tokens = tokens, p.n = n, p.r = r;
        p.dy = {dy.const_data_ptr(), n}, p.b = {b.const_data_ptr(), r}, p.v = {v.data_ptr(), r};
        p.u = u.const_data_ptr();
        p.codes = ops::coded_rows_of(codes);
        std::vector<at::Tensor> outputs = {v};
        for (ops::LoraSlice& s : slices) {
            b.narrow(0, s.n_begin, s.n).narrow(1, s.r_begin, s.r).normal_(0, 0.05);
            s.db = at::zeros({s.n, s.rank}, bf16().dtype(at::kFloat));
            outputs.push_back(s.db);
            p.parts[p.part_count++] = {
                s.n_begin, s.n, s.r_begin, s.r, s.rank, static_cast<float>(s.scale), s.db.mutable_data_ptr<float>()};
        }
        ops::lora_dy(
            *ctx, {.dy_TN = dy, .b_NR = b, .u_TR = u, .v_TR = v, .slices = slices, .choice = ops::LoraChoice::library});
        std::vector<at::Tensor> product;
        for (const at::Tensor& out : outputs) product.push_back(out.clone());
        const int tiles = rank == 16 ? 4 : codes.codes.defined() ? 1 : 2;
        for (int tile = 0; tile < tiles; ++tile) {
            for (const auto& [cluster, splits] : {std::pair{1, 8}, {2, 4}, {3, 1}, {4, 2}, {8, 1}}) {
                const kernels::LoraPlan plan = {tile, cluster, splits};
                const int64_t bytes = kernels::lora_workspace(p, plan).wanted;
                const at::Tensor workspace = at::empty({bytes}, bf16().dtype(at::kByte));
                check(cat("lora rank ", rank, " tile ", tile, " cluster ", cluster), lora_roles(tile == 2 ? 16 : 8),
                      outputs, product, [&] { kernels::lora_v_db(p, plan, workspace.data_ptr(), bytes, stream()); });
            }
        }
    }
}

std::string name_of(const ::testing::TestParamInfo<spec::Codes>& info) {
    return info.param == spec::Codes::none ? "values" : info.param == spec::Codes::int8 ? "int8" : "e4m3";
}
INSTANTIATE_TEST_SUITE_P(Of, HeldUpLora, ::testing::Values(spec::Codes::none, spec::Codes::int8, spec::Codes::e4m3),
                         name_of);

}  // namespace
}  // namespace unsloth
