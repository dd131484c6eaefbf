// hardware.kernels: which table a run uses, and what it says of it.
#include "unsloth/placement/kernels.h"

#include "common/errors.h"
#include "train/support.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/kernel_table.h"
#include "unsloth/placement/loading.h"
#include "unsloth/session/session.h"
#include "unsloth/weights/layout.h"

namespace unsloth::test {
namespace {

const char* const of_a_card = R"({"kernels": {
  "card": "NVIDIA Test", "compute_capability": 8.9, "multiprocessors": 128, "source": "a test",
  "versions": {"driver": "580.1", "cublaslt": 130100, "cudnn": 91900, "own": 1}, "choices": []}})";

std::string refusal(const std::string& kernels, at::Device device, Expected expected) {
    config::Config config;
    config.hardware.kernels = kernels;
    try {
        placement::kernel_table(config, device);
    } catch (const Error& error) {
        expected.check(error);
        return error.what();
    }
    return "nothing was refused";
}

TEST(Kernels, TheCpuHasNoTable) {
    config::Config config;
    for (const char* wish : {"auto", "library"}) {
        config.hardware.kernels = wish;
        ASSERT_NE(placement::kernel_table(config, at::kCPU), nullptr);
        EXPECT_TRUE(placement::kernel_table(config, at::kCPU)->choices.empty()) << wish;
    }
}

TEST(Kernels, AFileThatIsNoneOrOfAnotherDeviceIsRefused) {
    const ScratchFolder folder;
    EXPECT_NE(refusal("libary", at::kCPU, "kernel.wrong-table").find("there is no file libary"), std::string::npos);
    const std::string broken = folder.write("broken.json", "{").string();
    EXPECT_NE(refusal(broken, at::kCPU, "json.syntax").find("not valid JSON: line 1, column 2"), std::string::npos);
    const std::string file = folder.write("card.json", of_a_card).string();
    EXPECT_NE(refusal(file, at::kCPU, "kernel.wrong-table").find("NVIDIA Test"), std::string::npos);
    if (!device_available("cuda")) return;
    EXPECT_NE(refusal(file, at::Device(at::kCUDA, 0), "kernel.wrong-table").find("was measured on NVIDIA Test"),
              std::string::npos);
}

TEST(Kernels, ACheckpointsTableCountsWhereTheConfigurationLeavesItOpen) {
    const ScratchFolder folder;
    folder.write(placement::kernels_file, of_a_card);
    config::Config config;
    // Of another card, and on the CPU, it does not.
    EXPECT_EQ(placement::kernel_table_of(folder.path().string(), config, at::kCPU),
              placement::kernel_table(config, at::kCPU));
    if (!device_available("cuda")) return;
    const at::Device device(at::kCUDA, 0);
    EXPECT_EQ(*placement::kernel_table_of(folder.path().string(), config, device),
              *placement::kernel_table(config, device));
    spec::KernelTable own = spec::parse_kernels(of_a_card, "a test");
    own.card = ops::kernel_card(device);
    own.versions = ops::kernel_versions();
    own.choices = {{.op = spec::KernelOperator::lora_dy, .rank = {0, 8}}};
    folder.write(placement::kernels_file, spec::kernels_text(own));
    EXPECT_EQ(*placement::kernel_table_of(folder.path().string(), config, device), own);
    config.hardware.kernels = "library";
    EXPECT_TRUE(placement::kernel_table_of(folder.path().string(), config, device)->choices.empty());
}

config::LoadedConfig of_tiny_llama(const std::string& kernels) {
    return make_config({"--model.path", model_folder("tiny_llama/nf4_dq").string(), "--model.dtype", "bfloat16",
                        "--hardware.kernels", kernels});
}

TEST(Kernels, TheTableOfARunIsItsContextsToo) {
    const config::LoadedConfig loaded = of_tiny_llama("auto");
    const auto own =
        std::make_shared<const spec::KernelTable>(spec::KernelTable{.source = "a checkpoint",
                                                                    .choices = {{.op = spec::KernelOperator::gemm_nf4,
                                                                                 .form = spec::ProductForm::nt,
                                                                                 .kernel = spec::KernelSource::few,
                                                                                 .parameters = {8}}}});
    model::LoadRequest request = placement::load_request(loaded, at::kCPU, /*trains=*/true, own);
    EXPECT_EQ(request.kernels, own);
    EXPECT_TRUE(request.nf4_chooser) << "the plan asks it too";
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 8;
    request.sizes.segments = 1;
    request.run.head_tile = 8;
    const model::ModelPlan plan(session::open_model(loaded.config).file, request);
    EXPECT_EQ(placement::make_context(loaded.config, plan)->kernels, own);
    EXPECT_EQ(placement::load_request(loaded, at::kCPU, /*trains=*/true).kernels,
              placement::kernel_table(loaded.config, at::kCPU));
}

// Of another library version: the run asks no other table, such as the built-in one, which would be told of too.
TEST(Kernels, ATableThatDoesNotHoldIsToldOfOnce) {
    if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    const ScratchFolder folder;
    spec::KernelTable old = spec::parse_kernels(of_a_card, "a test");
    old.card = ops::kernel_card(at::Device(at::kCUDA, 0));
    old.versions.cublaslt = 1;
    old.choices = {{.tokens = {1, 64}, .parameters = {66, 17, 35, 1, 0, 0, 0, 0, 4}}};
    const std::string file = folder.write("old.json", spec::kernels_text(old)).string();
    config::LoadedConfig loaded = of_tiny_llama(file);
    loaded.config.hardware.device = "cuda";
    log::set_level(log::Level::warning);
    ::testing::internal::CaptureStderr();
    const session::LoadedModel model =
        session::load_for_inference(loaded, session::open_model(loaded.config), 8, 1, 8, 8, {});
    const std::string told = ::testing::internal::GetCapturedStderr();
    log::set_level(log::Level::error);
    const std::string warning = "choices of kernels do not hold here";
    const std::size_t first = told.find(warning);
    ASSERT_NE(first, std::string::npos) << told;
    EXPECT_EQ(told.find(warning, first + 1), std::string::npos) << told;
    EXPECT_NE(told.find("old.json"), std::string::npos) << told;
    EXPECT_TRUE(model.ctx->kernels->choices.empty());
}

TEST(Kernels, UntunedProductsAreNamed) {
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("small_llama/nf4_dq").string()));
    model::LoadRequest request;
    request.dtype = at::kBFloat16;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;
    request.sizes.segments = 1;
    request.run.head_tile = 32;
    const model::ModelPlan plan(file, request);
    const auto untuned = [&](std::vector<spec::KernelChoice> choices) {
        const placement::TunedProducts products = placement::tuned_products({.choices = std::move(choices)}, plan);
        EXPECT_EQ(products.all, 10);
        return products.untuned;
    };
    EXPECT_EQ(untuned({}).size(), 10U);
    EXPECT_EQ(untuned({{.tokens = {33, 64}}}), (std::vector<std::string>{"lm_head", "lm_head dx"}))
        << "the head takes 32 rows at a time";
    EXPECT_EQ(untuned({{.tokens = {1, 64}}}), std::vector<std::string>{});
    const weights::MatrixGroup& wide = plan.layout()[weights::Group::gate_up];
    const std::vector<std::string> left =
        untuned({{.form = spec::ProductForm::nt, .n = {wide.n, wide.n}, .k = {wide.k, wide.k + 1023}}});
    EXPECT_EQ(left.size(), 9U);
    EXPECT_EQ(std::count(left.begin(), left.end(), "gate_up"), 0);
    EXPECT_EQ(placement::kernels_line({}, plan), "") << "on the CPU nothing is tuned";
}

}  // namespace
}  // namespace unsloth::test
