#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/gguf_export.h"
#include "unsloth/tokenizer/tokenizer.h"
#include "unsloth/tokenizer/vocabulary.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

GgufFileType type_of(DType dtype) {
    if (dtype == DType::f16) return GgufFileType::f16;
    return dtype == DType::bf16 ? GgufFileType::bf16 : GgufFileType::f32;
}

GgufFileType type_of(ExportType type, DType otherwise) {
    switch (type) {
        case ExportType::automatic:
            return type_of(otherwise);
        case ExportType::f32:
            return GgufFileType::f32;
        case ExportType::f16:
            return GgufFileType::f16;
        case ExportType::bf16:
            return GgufFileType::bf16;
        case ExportType::q8_0:
            return GgufFileType::q8_0;
        case ExportType::q4_0:
            return GgufFileType::q4_0;
        case ExportType::q4_k_m:
            return GgufFileType::q4_k_m;
        case ExportType::q5_k_m:
            return GgufFileType::q5_k_m;
        case ExportType::q6_k:
            return GgufFileType::q6_k;
    }
    UNSLOTH_CHECK(false, "type ", static_cast<int>(type));
    return GgufFileType::f32;
}

/// The folder's own name, whether or not the path ends with a slash.
std::string name_of(const fs::path& folder) {
    const fs::path whole = fs::absolute(folder).lexically_normal();
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

fs::path folder_of(const std::string& path, ModelFiles files) {
    const fs::path place = resolve_model_path(path, files);
    return fs::is_directory(place) ? place : place.parent_path();
}

GgufReport export_model(const ExportRequest& request) {
    const fs::path folder = folder_of(request.model, ModelFiles::all);
    if (fs::exists(folder / "adapter_config.json") && !fs::exists(folder / "config.json"))
        throw usage_error(cat(request.model, " is an adapter, not a model"), "Give it with --adapter.");
    const WeightFile model = WeightFile::open(request.model);
    const fs::path tokenizer = request.tokenizer.empty()
                                   ? model.checkpoint.folder()
                                   : resolve_model_path(request.tokenizer, ModelFiles::all_but_weights);
    if (!Tokenizer::exists(tokenizer))
        throw input_error(
            cat(tokenizer.string(), " holds neither tokenizer.json nor tokenizer.model, and a GGUF file needs one"),
            "Copy the base model's tokenizer files there, or name their folder with --tokenizer.");
    const Vocabulary vocabulary = read_vocabulary(tokenizer, request.pre);
    if (model.tensors.quantised_linears() > 0)
        log::info("the base's ", model.tensors.quantised_linears(), " 4-bit weights are dequantised");
    const GgufExportOptions options{type_of(request.type, model.spec.dtype),
                                    name_of(fs::exists(request.model) ? folder : fs::path(request.model)),
                                    static_cast<int>(request.threads)};
    return export_model_gguf(model, vocabulary, request.out, options);
}

GgufReport export_adapter(const ExportRequest& request) {
    const fs::path folder = resolve_model_path(request.adapter);
    if (!fs::is_directory(folder)) throw input_error(cat(request.adapter, " is no folder"));
    std::string base = request.base;
    if (base.empty()) base = read_peft_config(folder).base_model_name_or_path;
    if (base.empty())
        throw usage_error("adapter_config.json names no base model",
                          "Give its folder with --base: config.json is enough.");
    const ModelSpec spec = read_model_spec(folder_of(base, ModelFiles::all_but_weights));
    const Adapter adapter = read_adapter(folder, spec);
    const auto& tensors = adapter.file.tensors();
    const DType own = tensors.empty() ? DType::f32 : tensors.front().dtype;
    const GgufExportOptions options{type_of(request.type, own), name_of(request.adapter),
                                    static_cast<int>(request.threads)};
    return export_adapter_gguf(adapter, spec, request.out, options);
}

std::string report_text(const ExportRequest& request, const GgufReport& report) {
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
    const GgufReport report = request.model.empty() ? export_adapter(request) : export_model(request);
    print(report_text(request, report));
}

}  // namespace unsloth::app
