// `merge` and `quantize`: model folders made from others, a few rows of a tensor at a time. Only the comparison of
// logits needs the engine.

#include "app/as_trained.h"
#include "app/commands.h"
#include "app/engine_loader.h"
#include "app/model_folder.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/staged_folder.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/formats/serve_grid.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

/// How the values that an adapter is added to came about.
enum class Values { plain, four_bit, eight_bit };

const char* words_for(Values values) {
    return values == Values::plain      ? "16/32-bit weights"
           : values == Values::four_bit ? "4-bit weights"
                                        : "8-bit weights";
}

/// Says what the adapter is merged into, and whether those are the values that it was trained on.
void describe_values(const MergeRequest& request, const formats::WeightFile& base, const formats::PeftConfig& adapter) {
    const bool as_named = !request.precision.empty();
    const bool file_4bit = base.tensors.quantised_linears() > 0, file_8bit = base.tensors.int8_linears() > 0;
    const Values into = file_4bit || (request.load_in_4bit && !file_8bit) ? Values::four_bit
                        : file_8bit                                       ? Values::eight_bit
                                                                          : Values::plain;
    const char* const how = file_4bit                  ? ", dequantised"
                            : into == Values::four_bit ? ", quantised now as load_in_4bit does, and dequantised"
                            : file_8bit                ? ", dequantised"
                                                       : "";
    log::info("merging ", request.adapter, " (r ", adapter.lora.r, ", alpha ", adapter.lora.lora_alpha,
              adapter.lora.use_rslora ? ", rsLoRA" : "", adapter.lora.use_dora ? ", DoRA" : "", ") into ",
              base.checkpoint.folder().string(), ": ",
              as_named ? "weights rounded as --precision says" : words_for(into), as_named ? "" : how);
    if (formats::trained_with_precision(formats::resolve_model_path(request.adapter)) != as_named)
        log::warning("the adapter was trained ", as_named ? "without" : "with", " model.precision, and is merged ",
                     as_named ? "with" : "without", " --precision: other values than it learned to correct");
    Values trained = Values::plain;
    std::string was = "in 16/32 bit", advice;
    switch (formats::trained_on(formats::resolve_model_path(request.adapter), adapter)) {
        case formats::TrainedOn::plain:
            break;
        case formats::TrainedOn::file_4bit:
            trained = Values::four_bit;
            was = "in 4 bit";
            break;
        case formats::TrainedOn::file_8bit:
            trained = Values::eight_bit;
            was = "in 8 bit";
            break;
        case formats::TrainedOn::quantised_while_loading:
            trained = Values::four_bit;
            was = "quantised to 4 bit while loading";
            advice = ". With --load_in_4bit it is merged into those that it was trained on";
            break;
        case formats::TrainedOn::quantised_to_8bit_while_loading:
            trained = Values::eight_bit;
            was = "quantised to 8 bit while loading";
            advice = ". With --precision {\"default\": \"int8\"} it is merged into those that it was trained on";
            break;
        case formats::TrainedOn::unknown:
            trained = into;
            log::info("the adapter was trained on ", adapter.base_model_name_or_path,
                      ", which is not here: whether that was quantised is not known");
            break;
    }
    if (trained != into && !as_named)
        log::warning("the adapter was trained on ", adapter.base_model_name_or_path, " ", was, ", and is merged into ",
                     words_for(into), ": other values than it learned to correct", advice);
    if (base.spec.tie_word_embeddings && !adapter.lora.modules_to_save.empty())
        log::warning(
            "embed_tokens and lm_head are tied in the base, and the adapter trained copies of them (modules_to_save): "
            "in the merged model they are not tied any more");
}

/// What the projections are rounded to, and whether that is what the adapter was trained through.
spec::ServeGrid choose_grid(const MergeRequest& request, const formats::PeftConfig& adapter) {
    const spec::ServeGrid trained = adapter.lora.serve_grid, grid = request.grid.value_or(trained);
    if (grid != trained)
        log::warning("the adapter was trained ",
                     trained == spec::ServeGrid::none ? "without a grid" : cat("through serve_grid ", name_of(trained)),
                     ", and is merged with --grid ", name_of(grid), ": other weights than it was trained through");
    if (grid == spec::ServeGrid::none) return grid;
    if (request.dtype == spec::WeightType::nf4 && grid != spec::ServeGrid::nf4)
        throw Error("option.conflict", cat("--dtype nf4 would round the values of --grid ", name_of(grid), " again"),
                    "Leave --dtype out.");
    log::info("projections are rounded to ", name_of(grid), ", written as ", name_of(formats::type_on_grid(grid)));
    return grid;
}

/// How far rounding to this type may move the logits, relative to their spread.
double tolerance_of(spec::WeightType type) {
    switch (type) {
        case spec::WeightType::f32:
            return 1e-4;
        case spec::WeightType::f16:
            return 1e-2;
        case spec::WeightType::bf16:
            return 5e-2;
        default:
            return 0.7;
    }
}

/// With the grid that the adapter was trained through both models have the same weights.
void verify(const MergeRequest& request, const std::string& base, spec::WeightType type, spec::ServeGrid trained,
            spec::ServeGrid grid, StagedFolder& staged) {
    engine_api::CompareRequest compare;
    compare.base = base;
    compare.adapter = request.adapter;
    compare.base_in_4bit = request.load_in_4bit;
    compare.base_precision = request.precision;
    compare.ignore_serve_grid = grid != trained;
    compare.merged = staged.path().string();
    compare.texts = request.verify;
    compare.device = request.device;
    const bool exact = grid == trained && grid != spec::ServeGrid::none;
    if (exact) type = spec::WeightType::f32;
    if (!exact && grid != spec::ServeGrid::none) type = spec::WeightType::nf4;
    const double tolerance = request.tolerance.value_or(tolerance_of(type));
    engine_api::LogitComparison found;
    try {
        found = load_engine()->compare_logits(compare);
    } catch (const Interrupted&) {
        throw;
    } catch (const Error& error) {
        throw Error(error.id(),
                    cat("the merged model could not be verified (it stays in ", staged.keep_as("unverified").string(),
                        "): ", error.what()),
                    "--no_verify leaves the comparison out.");
    } catch (...) {
        log::error("the merged model could not be verified; it stays in ", staged.keep_as("unverified").string());
        throw;
    }
    log::info("logits of the merged model against base and adapter, ", found.tokens, " tokens of ", found.rows,
              " rows: relative difference ", three_digits(found.relative), " (at most ", three_digits(tolerance),
              "), largest ", three_digits(found.max_abs), ", mean ", three_digits(found.mean_abs), ", KL divergence ",
              three_digits(found.mean_kl), ", same most likely token ", three_digits(100 * found.top1), " %");
    if (found.relative <= tolerance) return;
    throw Error("numerics.merge-differs",
                cat("the merged model differs from base and adapter: the logits' relative difference is ",
                    three_digits(found.relative), ", more than ", three_digits(tolerance)),
                cat("The output was not given its name; it stays in ", staged.keep_as("unverified").string()));
}

}  // namespace

void run_merge(const CommandLine& line) {
    install_interrupt_handlers("Stopping");
    MergeRequest request = line.merge;
    StagedFolder staged(request.out);
    take_from_run(request, line.loaded.given);
    const fs::path adapter_folder = formats::resolve_model_path(request.adapter);
    const formats::PeftConfig trained = formats::read_peft_config(adapter_folder);
    const std::string base_path = request.base.empty() ? trained.base_model_name_or_path : request.base;
    const formats::WeightFile base = formats::WeightFile::open(base_path, trained.rope_scaling, adapter_folder);
    const formats::Adapter adapter = formats::read_adapter(adapter_folder, base.spec);
    formats::warn_of_other_base(adapter, base, base_path);
    describe_values(request, base, adapter.config);
    const spec::ServeGrid grid = choose_grid(request, adapter.config);
    const formats::MergedModel model(
        base, &adapter, {.load_in_4bit = request.load_in_4bit, .precision = spec::PrecisionMap(request.precision)},
        grid);
    log::info(model.changed_tensors() + static_cast<int64_t>(base.stand_in_tensors().size()), " of ",
              model.tensors().size() + model.others(/*keeps_4bit=*/false).size(), " tensors change");
    formats::ModelWriteOptions options{.type = request.dtype,
                                       .shard_bytes = static_cast<std::size_t>(request.max_shard_bytes)};
    if (grid != spec::ServeGrid::none) options.linears = formats::type_on_grid(grid);
    write_weights(model, staged, options);
    copy_companions(base.checkpoint.folder(), adapter_folder, staged.path());
    pass_on_run(adapter_folder, staged.path());
    if (!request.no_verify)
        verify(request, base_path, formats::resolve_weight_type(request.dtype, base.spec),
               adapter.config.lora.serve_grid, grid, staged);
    stop_if_interrupted();
    staged.commit();
    log::info("merged model in ", staged.target().string());
}

void run_quantize(const CommandLine& line) {
    install_interrupt_handlers("Stopping");
    const QuantizeRequest& request = line.quantize;
    StagedFolder staged(request.out);
    const formats::WeightFile base = formats::WeightFile::open(request.model);
    if (const int64_t quantised = base.tensors.quantised_linears() + base.tensors.int8_linears(); quantised > 0)
        throw Error("model.already-quantized", cat(request.model, ": ", quantised, " linears are quantised already"),
                    "Quantise the 16-bit model.");
    const formats::MergedModel model(base, nullptr);
    const spec::PrecisionMap precision(request.precision);
    precision.check(base.spec);
    const spec::WeightType by_default = precision.of_default();
    write_weights(model, staged,
                  {.type = by_default != spec::WeightType::automatic ? by_default : request.type,
                   .shard_bytes = static_cast<std::size_t>(request.max_shard_bytes),
                   .precision = precision});
    copy_companions(base.checkpoint.folder(), {}, staged.path());
    pass_on_run(base.checkpoint.folder(), staged.path());
    stop_if_interrupted();
    staged.commit();
    log::info("quantised model in ", staged.target().string());
}

}  // namespace unsloth::app
