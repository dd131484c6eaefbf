#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
#include "app/paths.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/folder_contents.h"
#include "unsloth/formats/gguf_export.h"
#include "unsloth/formats/serve_grid.h"
#include "unsloth/tokenizer/tokenizer.h"
#include "unsloth/tokenizer/vocabulary.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

formats::GgufFileType type_of(spec::DType dtype) {
    if (dtype == spec::DType::f16) return formats::GgufFileType::f16;
    return dtype == spec::DType::bf16 ? formats::GgufFileType::bf16 : formats::GgufFileType::f32;
}

std::optional<formats::GgufFileType> type_of(spec::ServeGrid grid) {
    if (grid == spec::ServeGrid::q8_0) return formats::GgufFileType::q8_0;
    if (grid == spec::ServeGrid::q4_0) return formats::GgufFileType::q4_0;
    if (grid == spec::ServeGrid::mxfp4) return formats::GgufFileType::mxfp4;
    return std::nullopt;
}

formats::GgufFileType type_of(ExportType type, spec::DType otherwise) {
    switch (type) {
        case ExportType::automatic:
            return type_of(otherwise);
        case ExportType::f32:
            return formats::GgufFileType::f32;
        case ExportType::f16:
            return formats::GgufFileType::f16;
        case ExportType::bf16:
            return formats::GgufFileType::bf16;
        case ExportType::q8_0:
            return formats::GgufFileType::q8_0;
        case ExportType::q4_0:
            return formats::GgufFileType::q4_0;
        case ExportType::mxfp4:
            return formats::GgufFileType::mxfp4;
        case ExportType::q4_k_m:
            return formats::GgufFileType::q4_k_m;
        case ExportType::q5_k_m:
            return formats::GgufFileType::q5_k_m;
        case ExportType::q6_k:
            return formats::GgufFileType::q6_k;
    }
    UNSLOTH_CHECK(false, "type ", static_cast<int>(type));
    return formats::GgufFileType::f32;
}

/// A model on a grid that GGUF has is written as it is, where no other type is named.
void take_grid(const formats::WeightFile& model, ExportType asked, formats::GgufExportOptions& options) {
    const std::optional<formats::GgufFileType> type = type_of(formats::grid_of_folder(model.checkpoint.folder()));
    if (!type) return;
    if (asked == ExportType::automatic || options.type == *type) {
        options.type = *type;
        options.others = type_of(model.spec.dtype);
        log::info("projections are on a grid (merge --grid): written as they are, and nothing else is quantised");
    } else {
        log::warning("the model's projections are on another grid (merge --grid): --type rounds them again");
    }
}

fs::path folder_of(const std::string& path, formats::ModelFiles files) {
    const fs::path place = formats::resolve_model_path(path, files);
    return fs::is_directory(place) ? place : place.parent_path();
}

formats::GgufReport export_model(const ExportRequest& request) {
    const fs::path folder = folder_of(request.model, formats::ModelFiles::all);
    if (fs::exists(folder / "adapter_config.json") && !fs::exists(folder / "config.json"))
        throw Error("model.is-an-adapter", cat(request.model, " is an adapter, not a model"),
                    "Give it with --model.adapter_name_or_path.");
    const formats::WeightFile model = formats::WeightFile::open(request.model);
    const fs::path tokenizer = request.tokenizer.empty() ? model.checkpoint.folder()
                                                         : formats::resolve_model_path(
                                                               request.tokenizer, formats::ModelFiles::all_but_weights);
    if (!tokenizer::Tokenizer::exists(tokenizer))
        throw formats::missing_in(tokenizer, "tokenizer.json or tokenizer.model, which a GGUF file needs",
                                  formats::Sought::tokenizer, tokenizer.string());
    const spec::Vocabulary vocabulary = tokenizer::read_vocabulary(tokenizer, request.pre);
    if (model.tensors.quantised_linears() > 0)
        log::info("the base's ", model.tensors.quantised_linears(), " 4-bit weights are dequantised");
    formats::GgufExportOptions options{type_of(request.type, model.spec.dtype),
                                       own_name(fs::exists(request.model) ? folder : fs::path(request.model)),
                                       static_cast<int>(request.threads)};
    take_grid(model, request.type, options);
    return formats::export_model_gguf(model, vocabulary, request.out, options);
}

formats::GgufReport export_adapter(const ExportRequest& request) {
    const fs::path folder = formats::resolve_model_path(request.adapter);
    if (!fs::is_directory(folder)) throw Error("adapter.not-a-folder", cat(request.adapter, " is no folder"));
    std::string base = request.model;
    if (base.empty()) base = formats::read_peft_config(folder).base_model_name_or_path;
    if (base.empty())
        throw Error("option.missing", "adapter_config.json names no base model",
                    "Give its folder with --model.path: config.json is enough.");
    const spec::ModelSpec spec = formats::read_model_spec(folder_of(base, formats::ModelFiles::all_but_weights));
    const formats::Adapter adapter = formats::read_adapter(folder, spec);
    if (adapter.config.lora.serve_grid != spec::ServeGrid::none && !request.ignore_serve_grid)
        throw Error("export.unsupported",
                    cat(request.adapter, " was trained through serve_grid ", name_of(adapter.config.lora.serve_grid),
                        ", and llama.cpp would add it to other weights"),
                    "Merge it (merge --grid), and export the merged model; or set --ignore_serve_grid.");
    const auto& tensors = adapter.file.tensors();
    const spec::DType own = tensors.empty() ? spec::DType::f32 : tensors.front().dtype;
    const formats::GgufExportOptions options{type_of(request.type, own), own_name(request.adapter),
                                             static_cast<int>(request.threads)};
    return formats::export_adapter_gguf(adapter, spec, request.out, options);
}

std::string report_text(const ExportRequest& request, const formats::GgufReport& report) {
    std::string text = cat(request.out, "\n");
    char line[160];
    for (const auto& [name, type] : report.types) {
        std::snprintf(line, sizeof line, "  %-5s %5lld tensors %15lld weights %9.1f MiB   relative error (rms) %.2e\n",
                      name.c_str(), static_cast<long long>(type.tensors), static_cast<long long>(type.elements),
                      static_cast<double>(type.bytes) / (1 << 20), type.relative_error());
        text += line;
    }
    std::snprintf(line, sizeof line, "  %.1f MiB in %.1f s, %.2f GB/s of fp32\n",
                  static_cast<double>(report.file_bytes) / (1 << 20), report.seconds,
                  static_cast<double>(report.source_bytes) / 1e9 / std::max(report.seconds, 1e-9));
    return text + line;
}

}  // namespace

void run_export(const CommandLine& line) {
    const ExportRequest& request = line.exporting;
    install_interrupt_handlers("Stopping");
    const formats::GgufReport report = request.adapter.empty() ? export_model(request) : export_adapter(request);
    print(report_text(request, report));
}

}  // namespace unsloth::app
