#include "unsloth/placement/load_request.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "unsloth/config/auto_values.h"
#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/peft.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/placement/kernels.h"

namespace unsloth::placement {
namespace {

constexpr int64_t head_chunk_bytes = 256 << 20;  // of logits at a time: large enough for full-rate products

/// A lora option that the user gave must say what the adapter folder says.
void check_against_adapter(const config::LoadedConfig& loaded, const spec::LoraSpec& asked,
                           const spec::LoraSpec& adapter) {
    const auto require = [&](const char* option, bool same) {
        if (loaded.is_given(cat("lora.", option)) && !same)
            throw Error("adapter.contradicts",
                        cat("lora.", option, " contradicts the adapter in ", *loaded.config.model.adapter_name_or_path),
                        "Leave the option out: the adapter's own config decides.");
    };
    const auto sorted = [](std::vector<std::string> names) {
        std::sort(names.begin(), names.end());
        return names;
    };
    require("r", asked.r == adapter.r);
    require("lora_alpha", asked.lora_alpha == adapter.lora_alpha);
    require("use_rslora", asked.use_rslora == adapter.use_rslora);
    require("use_dora", asked.use_dora == adapter.use_dora);
    require("target_modules", sorted(asked.target_modules) == sorted(adapter.target_modules));
    require("target_parameters", sorted(asked.target_parameters) == sorted(adapter.target_parameters));
    require("modules_to_save", sorted(asked.modules_to_save) == sorted(adapter.modules_to_save));
    require("rank_pattern", asked.rank_pattern == adapter.rank_pattern);
    require("alpha_pattern", asked.alpha_pattern == adapter.alpha_pattern);
    require("layers_to_transform", asked.layers_to_transform == adapter.layers_to_transform);
    require("serve_grid", asked.serve_grid == adapter.serve_grid);
}

/// What of an adapter's grid is said in the log.
std::string grid_words(spec::ServeGrid grid, bool ignored) {
    if (grid == spec::ServeGrid::none) return "";
    return cat(", through serve_grid ", name_of(grid),
               ignored ? ", which is ignored here: the weights are not those that it was trained through"
                       : ": base and adapter are rounded to it");
}

}  // namespace

std::string rope_scaling_of(const config::Config& config) {
    const std::string& asked = config.model.rope_scaling;
    const auto& adapter = config.model.adapter_name_or_path;
    if (!adapter) return asked == "{}" ? "" : asked;
    const std::string trained = formats::read_peft_config(formats::resolve_model_path(*adapter)).rope_scaling;
    if (asked == "{}") return trained;
    if (nlohmann::json::parse(asked) != nlohmann::json::parse(trained.empty() ? "{}" : trained))
        throw Error("adapter.contradicts",
                    cat("model.rope_scaling is ", asked, ", but the adapter ", *adapter, " was trained with ",
                        trained.empty() ? "config.json's own" : trained),
                    "Leave model.rope_scaling out: the adapter's own holds.");
    return asked;
}

spec::LoraSpec lora_spec(const config::LoadedConfig& loaded) {
    const config::LoraOptions& options = loaded.config.lora;
    spec::LoraSpec lora;
    lora.usual_targets = !loaded.is_given("lora.target_modules");
    if (options.r == config::auto_rank)
        throw Error("option.missing", "lora.r auto follows from a run's rows, and there are none here",
                    "Give a number, such as --lora.r 16.");
    lora.r = options.r;
    lora.lora_alpha = options.lora_alpha;
    lora.lora_dropout = options.lora_dropout;
    lora.use_rslora = options.use_rslora;
    lora.use_dora = options.use_dora;
    lora.target_modules = options.target_modules;
    lora.target_parameters = options.target_parameters;
    lora.modules_to_save = options.modules_to_save;
    lora.rank_pattern = options.rank_pattern;
    lora.alpha_pattern = options.alpha_pattern;
    lora.layers_to_transform = options.layers_to_transform.value_or(std::vector<int64_t>{});
    lora.serve_grid = options.serve_grid;
    lora.tower = options.vision ? spec::TowerTargets::all : spec::TowerTargets::none;
    return lora;
}

model::LoadRequest load_request(const config::LoadedConfig& loaded, at::Device device, bool trains,
                                std::shared_ptr<const spec::KernelTable> kernels) {
    const config::Config& config = loaded.config;
    if (const int gpus = config::DeviceMap(config.model).gpus();
        gpus > 1 && !(trains && config.distributed.pp_size == gpus))
        throw Error(
            "model.device-map",
            cat("model.device_map names ", gpus, " GPUs",
                trains ? cat(", which needs distributed.pp_size ", gpus, " and as many processes")
                       : ": the model is spread over GPUs in training alone"),
            trains ? "Leave launch out: unsloth-train starts a process a GPU." : "Name one GPU, \"cpu\" and \"disk\".");
    model::LoadRequest request;
    request.device = device;
    request.dtype = ops::scalar_type(config.model.dtype);
    request.load_in_4bit = config.model.load_in_4bit;
    request.load_in_8bit = config.model.load_in_8bit;
    request.precision = spec::PrecisionMap(config.model.precision);
    request.records = trains && config.hardware.cuda_graphs;
    request.kernels = kernels ? std::move(kernels) : kernel_table(config, device);
    if (request.dtype == at::kBFloat16) request.nf4_chooser = ops::nf4_gemm_chooser(request.kernels);
    if (trains) {  // codes are made for many tokens, and weights are stored dequantized in training alone
        request.coded = config.model.compute_dtype;
        request.mantissa_bits = config.hardware.weight_mantissa_bits;
    }
    request.offload_embedding =
        config.hardware.offload_embedding || config::DeviceMap(config.model).embedding_on_host(ops::gpu_number(device));
    request.finetuning_type = trains ? config.lora.finetuning_type : config::FinetuningType::lora;
    if (const auto& adapter = config.model.adapter_name_or_path)
        request.adapter = formats::resolve_model_path(*adapter).string();
    request.ignore_serve_grid = config.model.ignore_serve_grid;
    request.offload_folder = config.model.offload_folder;
    request.trains = trains;
    request.optim = config.training.optim;
    request.seed = static_cast<uint64_t>(config.training.seed);
    request.noise_alpha = config.training.neftune_noise_alpha;
    if (request.finetuning_type == config::FinetuningType::full) {
        if (request.adapter)
            throw Error("option.conflict", "finetuning_type full does not take an adapter_name_or_path",
                        "Merge the adapter first, or train a LoRA.");
        return request;
    }
    if (trains) request.lora = lora_spec(loaded);
    if (request.adapter) {
        const formats::PeftConfig adapter = formats::read_peft_config(*request.adapter);
        if (trains) check_against_adapter(loaded, *request.lora, adapter.lora);
        log::info("adapter ", *config.model.adapter_name_or_path, ": r ", adapter.lora.r, ", alpha ",
                  adapter.lora.lora_alpha, ", trained on ", adapter.base_model_name_or_path,
                  grid_words(adapter.lora.serve_grid, config.model.ignore_serve_grid));
        if (!loaded.is_given("lora.lora_dropout") || !trains) {
            if (request.lora) request.lora->lora_dropout = adapter.lora.lora_dropout;
        }
    }
    return request;
}

void size_for(model::ActivationSizes& sizes, const data::BatchLimits& limits) {
    sizes.tokens = limits.tokens;
    sizes.segments = limits.segments;
    sizes.keys = limits.keys;
    sizes.all_keys = limits.all_keys;
    sizes.sequences = limits.sequences;
    sizes.context_ranks = limits.context_ranks;
    sizes.longest = limits.longest;
    sizes.copies = limits.copies;
    sizes.head_rows = limits.labels;
    sizes.patches = limits.patches;
    sizes.image_tokens = limits.image_tokens;
}

int64_t head_chunk_rows(const spec::ModelSpec& spec, at::ScalarType dtype, int64_t rows) {
    const int64_t row_bytes = spec.vocab_size * static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t chunk = std::clamp<int64_t>(head_chunk_bytes / row_bytes / 128 * 128, 128, 8192);
    return std::max<int64_t>(1, std::min(chunk, rows));
}

bool teacher_is_file(const config::Config& config) {
    return std::filesystem::is_regular_file(config.distill.teacher.value());
}

CacheSize cache_for(int64_t rows, int64_t context) {
    return {rows * ops::pages_of(context) * ops::page_tokens, context, true};
}

namespace {

/// An image goes into a pass as a whole: it has no more patches than the pass has tokens of.
void limit_pass(model::ActivationSizes& sizes, int64_t tokens, const spec::ModelSpec& spec) {
    sizes.tokens = sizes.longest = tokens;
    if (sizes.patches == 0 || spec.vision->tiles) return;
    sizes.patches = std::min(sizes.patches, tokens * spec.vision->merge * spec.vision->merge);
    sizes.image_tokens = std::min(sizes.image_tokens, tokens);
}

}  // namespace

void shrink(model::ModelPlan& plan, const CacheSize& cache, int64_t bytes) {
    while (plan.total_bytes() > bytes) {
        model::LoadRequest less = plan.request();
        model::ActivationSizes& sizes = less.sizes;
        const int64_t fewest = std::max<int64_t>(2048, sizes.segments);
        if (cache.in_pieces && sizes.tokens > fewest)
            limit_pass(sizes, std::max(fewest, sizes.tokens / 2), plan.spec());
        else if (sizes.snapshots > 0)
            sizes.snapshots /= 2;
        else if (cache.shrinks && sizes.cache_tokens > cache.context)
            sizes.cache_tokens = std::max(cache.context, sizes.cache_tokens / 4 * 3);
        else if (less.tails_may_stay)  // else each pass copies the adapters next to the weights
            less.tails_may_stay = false;
        else
            return;
        plan = plan.with(std::move(less));
    }
}

}  // namespace unsloth::placement
