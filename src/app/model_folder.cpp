#include "app/model_folder.h"

#include <chrono>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::app {
namespace fs = std::filesystem;

void copy_companions(const fs::path& base, const fs::path& adapter, const fs::path& to) {
    copy_files(tokenizer::Tokenizer::files_in(base), base, to);
    if (!adapter.empty() && tokenizer::Tokenizer::exists(adapter))
        copy_files(tokenizer::Tokenizer::files_in(adapter), adapter, to);
    if (const fs::path file = adapter / formats::decision_calibration_file; !adapter.empty() && fs::exists(file))
        copy_files({file}, adapter, to);
}

void write_weights(const formats::MergedModel& model, const StagedFolder& staged,
                   const formats::ModelWriteOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const formats::WrittenModel written = formats::write_model(model, staged.path(), options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log::info(human_size(static_cast<int64_t>(written.tensor_bytes)), " in ", written.files,
              written.files == 1 ? " file" : " files", ", ",
              name_of(formats::resolve_weight_type(options.type, model.spec())), ": ", three_digits(seconds), " s, ",
              three_digits(static_cast<double>(written.tensor_bytes) / 1e9 / seconds), " GB/s; memory held at most ",
              human_size(static_cast<int64_t>(process_memory().peak)));
    for (const std::string& what : written.unknown_to_transformers)
        log::warning("transformers cannot load this folder: ", what, ". This program can");
}

}  // namespace unsloth::app
