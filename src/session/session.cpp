#include "unsloth/session/session.h"

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
#include "unsloth/data/source.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/finite.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/weights/base_identity.h"

namespace unsloth::session {
bool settle_length(config::ModelOptions& model, const spec::ModelSpec& spec) {
    if (model.max_seq_length > 0) return false;
    model.max_seq_length = spec.usable_positions();
    return true;
}

void require_positions(const config::LoadedConfig& loaded, const spec::ModelSpec& spec) {
    const int64_t length = loaded.config.model.max_seq_length, positions = spec.usable_positions();
    if (length <= positions || loaded.config.data.packing || length == config::ModelOptions{}.max_seq_length) return;
    const bool linear =
        spec.ropes.front().type == spec::RopeSpec::Type::linear;  // what is scaled already is scaled further
    const auto factor = std::llround(static_cast<double>((length + positions - 1) / positions) *
                                     (linear ? spec.ropes.front().factor : 1.0));
    throw Error("model.too-many-positions",
                cat("model.max_seq_length is ", length, ", and the model has ", positions, " positions"),
                cat("Scale them, as with --rope_scaling '{\"rope_type\": \"linear\", \"factor\": ", factor,
                    ".0}', or take a max_seq_length of ", positions, " or less."));
}

namespace {

/// Says what is in the folder and takes no part here.
void note_parts_left_out(const formats::WeightFile& file) {
    int64_t guessing = 0, others = 0;
    for (const formats::TensorView* const tensor : file.tensors.others)
        ++(tensor->name.starts_with("mtp.") ? guessing : others);
    if (guessing > 0)
        log::info(guessing,
                  " tensors of layers that guess further tokens (mtp) are left out: they are neither run nor ",
                  "trained");
    if (others > 0 && !file.spec.vision)
        log::info(others, " tensors of ", file.spec.part_of,
                  "'s other parts are left out: this program runs its text "
                  "model alone");
}

}  // namespace

OpenedModel open_model(const config::Config& config) {
    if (config.model.path.empty())
        throw Error("option.missing", "model.path is missing",
                    "Set it in the config file, or with --model.path FOLDER.");
    OpenedModel opened;
    opened.rope_scaling = placement::rope_scaling_of(config);
    const auto& adapter = config.model.adapter_name_or_path;
    opened.file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(
        config.model.path, opened.rope_scaling, adapter ? formats::resolve_model_path(*adapter) : ""));
    note_parts_left_out(*opened.file);
    opened.tokenizer_folder = data::run_tokenizer_folder(config, opened.file->checkpoint.folder());
    return opened;
}

data::ModelLimits OpenedModel::limits() const {
    return {file->spec.embedding_rows(), file->spec.usable_positions(), file->spec.bos_token_id.value_or(-1),
            file->checkpoint.folder()};
}

tokenizer::Tokenizer OpenedModel::tokenizer() const {
    return data::load_run_tokenizer(tokenizer_folder, file->spec.embedding_rows());
}

std::vector<std::filesystem::path> OpenedModel::tokenizer_files() const {
    return tokenizer::Tokenizer::files_in(tokenizer_folder);
}

data::EncoderMaker encoder_maker(const OpenedModel& opened, const config::Config& config) {
    return data::run_encoder_maker(opened.tokenizer_folder, opened.file->spec.embedding_rows(), config.data);
}

data::Dataset read_rows(const OpenedModel& opened, const config::Config& config, const data::DatasetOptions& options) {
    std::unique_ptr<data::RowEncoder> encoder;  // rows of ids do without a tokenizer
    config::DataSource source{.path = config.data.train_file,
                              .format = options.format,
                              .split = config.data.train_split,
                              .columns = options.reader.columns};
    source.format = data::resolve(source, options.reader, options.skip_bad_rows).format;
    if (source.format != config::DataFormat::tokenized) encoder = encoder_maker(opened, config)({});
    return data::Dataset::load({source}, options, [&](const std::string&) { return encoder.get(); });
}

config::LoadedConfig with_base(config::LoadedConfig loaded, const engine_api::NamedFolders& adapters) {
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

PassesPlan plan_passes(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens, int64_t segments,
                       int64_t head_rows, int64_t fewest_tokens, const placement::CacheSize& cache,
                       const engine_api::NamedFolders& adapters, const weights::AdapterSlots& slots,
                       const placement::MemoryBudget& reserved, const data::Dataset::ImageSizes& images) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
    placement::Recipe recipe{.work = placement::Work::passes,
                             .device = device,
                             .held = placement::held_memory(*opened.file, device),
                             .cache = cache,
                             .adapter_slots = slots,
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
    model::LoadRequest request = placement::make_request(loaded, opened.file->spec, recipe);
    const spec::ModelSpec& spec = opened.file->spec;
    placement::fit_to(request, spec,
                      {.tokens = tokens,
                       .segments = segments,
                       .longest = tokens,
                       .labels = head_rows,
                       .patches = images.patches,
                       .image_tokens = images.tokens});
    if (cache.in_8_bit && !ops::codes_keys(device, request.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim))
        throw Error("device.unsupported",
                    cat("--kv_cache_dtype fp8: this GPU's kernels read codes in bfloat16, of heads of 64 or 128 of "
                        "which up to 16 share keys; the model has ",
                        spec.num_heads, " heads of ", spec.head_dim, " on ", spec.num_kv_heads, ", in ",
                        c10::toString(request.dtype)),
                    "Leave --kv_cache_dtype at auto.");
    PassesPlan planned{model::ModelPlan(opened.file, request), {}};
    placement::Machine machine = placement::machine_of(device);
    machine.taken = reserved;
    planned.budget = placement::memory_budget(loaded.config, device, machine);
    placement::shrink(planned.plan, cache, planned.budget.device / 10 * 9);
    placement::choose_memory_use(loaded.config, planned.plan, /*micro_batches=*/1, machine);
    return planned;
}

LoadedModel load(const config::LoadedConfig& loaded, const OpenedModel& opened, const PassesPlan& planned) {
    const model::ModelPlan& plan = planned.plan;
    const model::LoadRequest& request = plan.request();
    placement::require_memory(plan, planned.budget);
    // Training names the place in its first step; a probability or a text would only be wrong.
    formats::require_finite(*opened.file, loaded.config.model.dtype);
    if (request.adapter) {
        const formats::Adapter adapter = formats::read_adapter(*request.adapter, opened.file->spec);
        formats::require_finite(adapter);
        formats::warn_of_other_base(adapter, *opened.file, loaded.config.model.path);
    }
    log::info("base ", loaded.config.model.path, ": ", plan.base_description(), ", compute ",
              name_of(loaded.config.model.dtype));
    LoadedModel result;
    result.ctx = placement::make_context(loaded.config, plan);
    if (const int64_t dequantized = plan.dequantized_linears(); request.sizes.cache_tokens > 0 && dequantized > 0)
        log::info("answers: ", dequantized, " quantized matrices are dequantized to ", c10::toString(request.dtype),
                  " for each token: products of few tokens read nested 4-bit weights of whole tiles of 64 alone, in "
                  "bfloat16, where hardware.kernels is not library");
    if (request.sizes.cache_tokens > 0 && plan.spec().delta)
        log::info("answers: layers with gated delta nets keep a state for each of ",
                  request.sizes.state_places() - request.sizes.snapshots, " sequences, and ", request.sizes.snapshots,
                  " snapshots of beginnings that several have, of ",
                  model::state_bytes(plan.spec(), request.dtype) >> 20, " MiB each");
    result.model = std::make_unique<model::Model>(*result.ctx, plan.load(*result.ctx));
    return result;
}

LoadedModel load_for_inference(const config::LoadedConfig& loaded, const OpenedModel& opened, int64_t tokens,
                               int64_t segments, int64_t head_rows, int64_t fewest_tokens,
                               const placement::CacheSize& cache, const engine_api::NamedFolders& adapters,
                               const weights::AdapterSlots& slots, const data::Dataset::ImageSizes& images) {
    return load(loaded, opened,
                plan_passes(loaded, opened, tokens, segments, head_rows, fewest_tokens, cache, adapters, slots,
                            /*reserved=*/{}, images));
}

}  // namespace unsloth::session
