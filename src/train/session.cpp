#include "unsloth/train/session.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "unsloth/comm/peer_memory.h"
#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/numa.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/finite.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/train/kernels.h"
#include "unsloth/train/memory_use.h"
#include "unsloth/train/recipe.h"
#include "unsloth/weights/base_identity.h"

namespace unsloth::train {
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
    require("modules_to_save", sorted(asked.modules_to_save) == sorted(adapter.modules_to_save));
    require("rank_pattern", asked.rank_pattern == adapter.rank_pattern);
    require("alpha_pattern", asked.alpha_pattern == adapter.alpha_pattern);
    require("layers_to_transform", asked.layers_to_transform == adapter.layers_to_transform);
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

void require_positions(const config::LoadedConfig& loaded, const spec::ModelSpec& spec) {
    const int64_t length = loaded.config.model.max_seq_length, positions = spec.usable_positions();
    if (length <= positions || loaded.config.data.packing || length == config::ModelOptions{}.max_seq_length) return;
    const bool linear = spec.rope.type == spec::RopeSpec::Type::linear;  // what is scaled already is scaled further
    const auto factor =
        std::llround(static_cast<double>((length + positions - 1) / positions) * (linear ? spec.rope.factor : 1.0));
    throw Error("model.too-many-positions",
                cat("model.max_seq_length is ", length, ", and the model has ", positions, " positions"),
                cat("Scale them, as with --rope_scaling '{\"rope_type\": \"linear\", \"factor\": ", factor,
                    ".0}', or take a max_seq_length of ", positions, " or less."));
}

OpenedModel open_model(const config::Config& config) {
    if (config.model.path.empty())
        throw Error("option.missing", "model.path is missing",
                    "Set it in the config file, or with --model.path FOLDER.");
    OpenedModel opened;
    opened.rope_scaling = rope_scaling_of(config);
    const auto& adapter = config.model.adapter_name_or_path;
    opened.file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(
        config.model.path, opened.rope_scaling, adapter ? formats::resolve_model_path(*adapter) : ""));
    opened.tokenizer_folder = data::run_tokenizer_folder(config, opened.file->checkpoint.folder());
    return opened;
}

data::ModelLimits OpenedModel::limits() const {
    return {file->spec.vocab_size, file->spec.usable_positions(), file->spec.bos_token_id.value_or(-1)};
}

tokenizer::Tokenizer OpenedModel::tokenizer() const {
    return data::load_run_tokenizer(tokenizer_folder, file->spec.vocab_size);
}

std::vector<std::filesystem::path> OpenedModel::tokenizer_files() const {
    return tokenizer::Tokenizer::files_in(tokenizer_folder);
}

data::EncoderMaker encoder_maker(const OpenedModel& opened, const config::Config& config) {
    return data::run_encoder_maker(opened.tokenizer_folder, opened.file->spec.vocab_size, config.data);
}

spec::LoraSpec lora_spec(const config::LoraOptions& options) {
    spec::LoraSpec lora;
    lora.r = options.r;
    lora.lora_alpha = options.lora_alpha;
    lora.lora_dropout = options.lora_dropout;
    lora.use_rslora = options.use_rslora;
    lora.use_dora = options.use_dora;
    lora.target_modules = options.target_modules;
    lora.modules_to_save = options.modules_to_save;
    lora.rank_pattern = options.rank_pattern;
    lora.alpha_pattern = options.alpha_pattern;
    lora.layers_to_transform = options.layers_to_transform.value_or(std::vector<int64_t>{});
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
    if (trains) {  // codes are made for many tokens, and weights lie expanded in training alone
        request.coded = config.model.compute_dtype;
        request.mantissa_bits = config.hardware.weight_mantissa_bits;
    }
    request.offload_embedding =
        config.hardware.offload_embedding || config::DeviceMap(config.model).embedding_on_host(ops::gpu_number(device));
    request.finetuning_type = trains ? config.lora.finetuning_type : config::FinetuningType::lora;
    if (const auto& adapter = config.model.adapter_name_or_path)
        request.adapter = formats::resolve_model_path(*adapter).string();
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
    if (trains) request.lora = lora_spec(config.lora);
    if (request.adapter) {
        const formats::PeftConfig adapter = formats::read_peft_config(*request.adapter);
        if (trains) check_against_adapter(loaded, *request.lora, adapter.lora);
        log::info("adapter ", *config.model.adapter_name_or_path, ": r ", adapter.lora.r, ", alpha ",
                  adapter.lora.lora_alpha, ", trained on ", adapter.base_model_name_or_path);
        if (!loaded.is_given("lora.lora_dropout") || !trains) {
            if (request.lora) request.lora->lora_dropout = adapter.lora.lora_dropout;
        }
    }
    return request;
}

std::shared_ptr<memory::HeldMemory> held_memory(const formats::WeightFile& file, at::Device device) {
    if (!device.is_cuda()) return nullptr;
    return std::make_shared<memory::HeldMemory>(weights::base_identity(file, device));
}

void size_for(model::ActivationSizes& sizes, const data::BatchLimits& limits) {
    sizes.tokens = limits.tokens;
    sizes.segments = limits.segments;
    sizes.keys = limits.keys;
    sizes.all_keys = limits.all_keys;
    sizes.longest = limits.longest;
    sizes.head_rows = limits.labels;
}

int64_t head_chunk_rows(const spec::ModelSpec& spec, at::ScalarType dtype, int64_t rows) {
    const int64_t row_bytes = spec.vocab_size * static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t chunk = std::clamp<int64_t>(head_chunk_bytes / row_bytes / 128 * 128, 128, 8192);
    return std::max<int64_t>(1, std::min(chunk, rows));
}

int64_t bucket_bytes(const config::Config& config, const comm::Group* group) {
    constexpr int64_t between_machines = 25;  // torch's DDP has the same
    const int64_t asked = config.distributed.ddp_bucket_cap_mb;
    if (asked >= 0) return asked << 20;
    const bool one_machine = group == nullptr || static_cast<int>(group->ranks_here().size()) == group->size();
    return one_machine ? 0 : between_machines << 20;
}

weights::LoadShare load_share(comm::Group* group, const model::ModelPlan& plan) {
    const model::LoadRequest& request = plan.request();
    const bool peers = request.peers.size > 1;
    if (group == nullptr || (request.device.is_cpu() && !peers)) return {};
    const bool cut = !request.tp.alone() || !request.pp.alone();
    if (cut && !peers) return {};  // each reads a part of its own
    const std::string own = plan.resident_fingerprint();
    const auto node = request.device.is_cuda() ? numa_node_of(ops::pci_address(request.device)) : std::nullopt;
    const std::vector<std::string> all = group->gather(cat(own, " ", node.value_or(-1)), "the comparison of plans");
    comm::Communicator& ranks = peers ? *request.peer_ranks : group->here();
    bool alike = true;
    std::set<int> nodes;
    for (const int rank : ranks.ranks()) {
        const std::string& text = all[static_cast<std::size_t>(rank)];
        alike = alike && text.substr(0, own.size()) ==
                             all[static_cast<std::size_t>(ranks.ranks().front())].substr(0, own.size());
        nodes.insert(std::stoi(text.substr(own.size())));
    }
    if (!alike && peers)
        throw Error("rank.peer-memory",
                    "the ranks of this machine plan their memory differently, and cannot hold a base together",
                    "Set distributed.zero_stage below 3.");
    if (!alike) {
        log::info("the ranks of this machine plan their memory differently: each reads the whole model");
        return {};
    }
    weights::LoadShare share{ranks.rank(), ranks.size(), [&ranks](const at::Tensor& values, int reader) {
                                 ranks.broadcast(values, reader, "the model's weights");
                             }};
    if (!nodes.contains(-1)) share.nodes = nodes;
    share.share_memory = [group, &ranks, device = request.device](int64_t bytes) {
        const std::vector<at::Tensor> here = comm::share_memory(*group, device, bytes);
        std::vector<at::Tensor> theirs;
        for (std::size_t place = 0; place < here.size(); ++place)
            if (std::binary_search(ranks.ranks().begin(), ranks.ranks().end(), group->ranks_here()[place]))
                theirs.push_back(here[place]);
        return theirs;
    };
    return share;
}

std::unique_ptr<ops::Context> make_context(const config::Config& config, const model::ModelPlan& plan) {
    auto ctx = std::make_unique<ops::Context>(plan.request().device, plan.request().kernels);
    ctx->deterministic = config.training.deterministic;
    return ctx;
}

CacheSize cache_for(int64_t rows, int64_t context) {
    return {rows * ops::pages_of(context) * ops::page_tokens, context, true};
}

void shrink(model::ModelPlan& plan, const CacheSize& cache, int64_t bytes) {
    while (plan.total_bytes() > bytes) {
        model::LoadRequest less = plan.request();
        model::ActivationSizes& sizes = less.sizes;
        const int64_t fewest = std::max<int64_t>(2048, sizes.segments);
        if (cache.in_pieces && sizes.tokens > fewest)
            sizes.tokens = sizes.longest = std::max(fewest, sizes.tokens / 2);
        else if (less.margins_may_stay)
            less.margins_may_stay = false;
        else if (cache.shrinks && sizes.cache_tokens > cache.context)
            sizes.cache_tokens = std::max(cache.context, sizes.cache_tokens / 4 * 3);
        else
            return;
        plan = plan.with(std::move(less));
    }
}

config::LoadedConfig with_base(config::LoadedConfig loaded, const config::NamedFolders& adapters) {
    config::ModelOptions& model = loaded.config.model;
    const auto config_of = [](const std::string& folder) {
        return formats::read_peft_config(formats::resolve_model_path(folder));
    };
    const auto scaling = [](const std::string& text) { return nlohmann::json::parse(text.empty() ? "{}" : text); };
    for (const auto& [name, folder] : adapters.folders) {
        const std::string trained = config_of(folder).rope_scaling;
        if (model.rope_scaling == "{}" && name == adapters.folders.front().first && !trained.empty())
            model.rope_scaling = trained;
        if (scaling(model.rope_scaling) != scaling(trained))
            throw Error("adapter.contradicts",
                        cat("adapter ", name, " was trained with rope_scaling ",
                            trained.empty() ? "of config.json" : trained, ", others have ", model.rope_scaling),
                        "Answer its rows in a call of their own.");
    }
    if (!model.path.empty() || (!model.adapter_name_or_path && adapters.folders.empty())) return loaded;
    const std::string folder =
        model.adapter_name_or_path ? *model.adapter_name_or_path : adapters.folders.front().second;
    model.path = config_of(folder).base_model_name_or_path;
    if (model.path.empty())
        throw Error("adapter.bad-config", cat(folder, ": adapter_config.json does not name the base"),
                    "Give it with --model.path.");
    log::info("the adapter's base: ", model.path);
    return loaded;
}

LoadedModel load_for_inference(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens,
                               int64_t segments, int64_t head_rows, int64_t fewest_tokens, const CacheSize& cache,
                               const config::NamedFolders& adapters) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    LoadedModel result;
    Recipe recipe{.work = Work::passes,
                  .device = device,
                  .held = held_memory(*opened.file, device),
                  .cache = cache,
                  .fewest_tokens = fewest_tokens};
    for (const auto& [name, folder] : adapters.folders) {
        const weights::NamedAdapter named{name, formats::resolve_model_path(folder).string()};
        const formats::Adapter adapter = formats::read_adapter(named.folder, opened.file->spec);
        formats::require_finite(adapter);
        formats::warn_of_other_base(adapter, *opened.file, loaded.config.model.path);
        log::info("adapter ", name, " (", folder, "): r ", adapter.config.lora.r, ", alpha ",
                  adapter.config.lora.lora_alpha, ", trained on ", adapter.config.base_model_name_or_path);
        recipe.adapters.push_back(named);
    }
    model::LoadRequest request = make_request(loaded, recipe);
    // Training names the place in its first step; a probability or a text would only be wrong.
    formats::require_finite(*opened.file, loaded.config.model.dtype);
    if (request.adapter) {
        const formats::Adapter adapter = formats::read_adapter(*request.adapter, opened.file->spec);
        formats::require_finite(adapter);
        formats::warn_of_other_base(adapter, *opened.file, loaded.config.model.path);
    }
    const spec::ModelSpec& spec = opened.file->spec;
    fit_to(request, spec, {.tokens = tokens, .segments = segments, .longest = tokens, .labels = head_rows});
    if (cache.in_8_bit && !ops::codes_keys(device, request.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim))
        throw Error("device.unsupported",
                    cat("--kv_cache_dtype fp8: this GPU's kernels read codes in bfloat16, of heads of 64 or 128 of "
                        "which up to 16 share keys; the model has ",
                        spec.num_heads, " heads of ", spec.head_dim, " on ", spec.num_kv_heads, ", in ",
                        c10::toString(request.dtype)),
                    "Leave --kv_cache_dtype at auto.");
    model::ModelPlan plan(opened.file, request);
    const MemoryBudget budget = memory_budget(loaded.config, device);
    shrink(plan, cache, budget.device / 10 * 9);
    choose_memory_use(loaded.config, plan);
    require_memory(plan, budget);
    log::info("base ", loaded.config.model.path, ": ", plan.base_description(), ", compute ",
              name_of(loaded.config.model.dtype));
    result.ctx = make_context(loaded.config, plan);
    if (const int64_t expanded = plan.expanded_linears(); cache.tokens > 0 && expanded > 0)
        log::info("answers: ", expanded, " quantised matrices are expanded to ", c10::toString(request.dtype),
                  " for each token: products of few tokens read nested 4-bit weights of whole tiles of 64 alone, in "
                  "bfloat16, where hardware.kernels is not library");
    result.model = std::make_unique<model::Model>(*result.ctx, plan.load(*result.ctx));
    return result;
}

}  // namespace unsloth::train
