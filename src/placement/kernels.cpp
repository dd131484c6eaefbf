#include "unsloth/placement/kernels.h"

#include <algorithm>
#include <filesystem>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/kernel_table.h"
#include "unsloth/weights/layout.h"

namespace unsloth::placement {
namespace {

using Table = std::shared_ptr<const spec::KernelTable>;

std::string name_of(const spec::KernelCard& card) {
    return cat(card.name, " (compute capability ", card.compute_capability / 10, ".", card.compute_capability % 10,
               ", ", card.multiprocessors, " multiprocessors)");
}

bool has_bias(const weights::MatrixGroup& group, const spec::ModelSpec& spec) {
    return std::any_of(group.slices.begin(), group.slices.end(),
                       [&](const weights::Slice& slice) { return spec.has_bias(slice.projection); });
}

}  // namespace

Table kernel_table(const config::Config& config, at::Device device) {
    const std::string& wish = config.hardware.kernels;
    if (wish == "auto") return ops::built_in_kernels(device);
    static const auto none = std::make_shared<const spec::KernelTable>();
    if (wish == "library") return none;
    if (!std::filesystem::is_regular_file(wish))
        throw Error("kernel.wrong-table", cat("hardware.kernels: there is no file ", wish),
                    "Known are auto, library, and files that `unsloth-train tune` wrote.");
    const spec::KernelTable table = spec::parse_kernels(read_file(wish), wish);
    if (!device.is_cuda())
        throw Error("kernel.wrong-table",
                    cat("hardware.kernels: ", wish, " is of ", table.card.name, ", and the device is ", device.str()),
                    "Leave it at auto.");
    if (ops::is_absent(device)) return none;  // plans bound what any choice takes
    if (const spec::KernelCard card = ops::kernel_card(device); card != table.card)
        throw Error("kernel.wrong-table",
                    cat("hardware.kernels: ", wish, " was measured on ", name_of(table.card), ", and this card is ",
                        name_of(card)),
                    "Leave it at auto, or let `unsloth-train tune` measure this card.");
    return ops::usable_kernels(device, table, wish);
}

Table kernel_table_of(const std::string& folder, const config::Config& config, at::Device device) {
    const std::filesystem::path file = std::filesystem::path(folder) / kernels_file;
    if (config.hardware.kernels == "auto" && device.is_cuda() && std::filesystem::exists(file)) {
        const spec::KernelTable table = spec::parse_kernels(read_file(file.string()), file.string());
        if (table.card == ops::kernel_card(device)) return ops::usable_kernels(device, table, file.string());
    }
    return kernel_table(config, device);
}

TunedProducts tuned_products(const spec::KernelTable& table, const model::ModelPlan& plan) {
    using Operator = spec::KernelOperator;
    const model::LoadRequest& request = plan.request();
    TunedProducts result;
    const auto count = [&](const std::string& name, const spec::ProductKey& key, bool has_a_table) {
        ++result.all;
        if (!has_a_table || !table.measured(key)) result.untuned.push_back(name);
    };
    const bool bf16 = request.dtype == at::kBFloat16;
    for (const weights::Group g : plan.layout().single_groups()) {
        const auto [n, k, r] = std::tuple{plan.layout()[g].n, plan.layout()[g].k, plan.layout()[g].r};
        for (const spec::ProductForm form : {spec::ProductForm::nt, spec::ProductForm::nn}) {
            const bool forward = form == spec::ProductForm::nt;
            spec::ProductKey key{.op = Operator::gemm,
                                 .form = form,
                                 .tokens = request.sizes.tokens,
                                 .n = forward ? n : k,
                                 .k = (forward ? k : n) + r};
            const spec::Codes codes = forward ? forward_codes(request.coded) : dx_codes(request.coded);
            if (codes == spec::Codes::int8) continue;  // one kernel, whose tile follows from the size
            const bool fp8 = codes == spec::Codes::e4m3;
            if (fp8) key.op = Operator::gemm_fp8, key.k -= r, key.rank = r;
            // Products of bf16 matrices that add a bias are another kind than was measured.
            const bool measured = bf16 && (fp8 || !forward || !has_bias(plan.layout()[g], plan.spec()));
            count(cat(weights::name_of(g), forward ? "" : " dx"), key, measured);
        }
    }
    const int64_t vocab = plan.spec().vocab_size, hidden = plan.spec().hidden_size,
                  rows = std::min(request.run.head_tile, request.sizes.head_rows);
    const auto head = [](spec::Codes codes) {
        return codes == spec::Codes::none ? Operator::gemm : Operator::gemm_fp8;
    };
    const spec::Codes logits = forward_codes(request.sizes.head_coded), dx = head_dx_codes(request.sizes.head_coded);
    if (logits != spec::Codes::int8) count("lm_head", {head(logits), spec::ProductForm::nt, rows, vocab, hidden}, bf16);
    count("lm_head dx", {head(dx), spec::ProductForm::nn, rows, hidden, vocab}, bf16);
    return result;
}

std::string kernels_line(const spec::KernelTable& table, const model::ModelPlan& plan) {
    if (!plan.request().device.is_cuda()) return "";
    const TunedProducts products = tuned_products(table, plan);
    if (products.untuned.empty()) return cat("all ", products.all, " kinds of products are tuned for this card");
    std::string names;
    for (const std::string& name : products.untuned) names += (names.empty() ? "" : ", ") + name;
    return cat(products.untuned.size(), " of ", products.all,
               " kinds of products are untuned on this card and left to cuBLASLt's own choice: ", names,
               " (unsloth-train tune measures them)");
}

}  // namespace unsloth::placement
