#include "app/paths.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/open_file.h"
#include "unsloth/core/temporary.h"
#include "unsloth/data/source.h"
#include "unsloth/data/training_data.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/peft.h"
#include "unsloth/tokenizer/chat.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

bool same_place(const std::string& one, const std::string& other) {
    std::error_code failed;
    return fs::equivalent(one, other, failed) ||
           fs::absolute(one).lexically_normal() == fs::absolute(other).lexically_normal();
}

/// A file that is there and can be read is left alone: it may be a pipe.
void require_readable(const std::string& file) {
    if (!file.empty() && ::access(file.c_str(), R_OK) != 0) (void)open_to_read(file);
}

void require_rows(const config::DataSource& source) {
    std::error_code failed;
    if (source.path.empty() || fs::is_directory(source.path, failed)) return;
    for (const fs::path& file : data::with_files(source).files) require_readable(file.string());
}

}  // namespace

std::string own_name(const fs::path& folder) {
    const fs::path whole = fs::absolute(folder).lexically_normal();
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void require_outputs(const CommandLine& line) {
    std::vector<NamedPath> taken = line.inputs;
    for (const NamedPath& output : line.outputs) {
        for (const NamedPath& other : taken)
            if (same_place(output.path, other.path))
                throw Error("output.same-file",
                            cat(output.option, " ", output.path, " is the file that ", other.option, " names"),
                            "Name another file for the output.");
        taken.push_back(output);
        require_creatable(output.path);
        // What writes a GGUF file refuses it by itself, and has no --force.
        if (line.command != Command::exporting) refuse_existing(output.path, line.force, output.option);
    }
}

void refuse_existing(const std::string& file, bool force, const std::string& option) {
    std::error_code missing;
    if (!force && fs::is_regular_file(file, missing) && fs::file_size(file, missing) > 0)
        throw Error("output.exists", cat(file, " exists"),
                    cat("Give --force to replace it, or another name with ", option, "."));
}

void require_templates(const config::Config& config) {
    tokenizer::require_template_syntax(config.data.template_name);
    for (const config::DataSource& source : config.data.datasets)
        tokenizer::require_template_syntax(source.template_name);
}

void require_inputs(const CommandLine& line) {
    const config::Config& config = line.loaded.config;
    if (!config.model.path.empty()) (void)formats::Checkpoint::open(config.model.path);
    if (const auto& adapter = config.model.adapter_name_or_path)
        (void)formats::read_peft_config(formats::resolve_model_path(*adapter));
    for (const auto& [name, folder] : line.generate.adapters.folders)
        (void)formats::read_peft_config(formats::resolve_model_path(folder));
    require_templates(config);
    for (const config::DataSource& source : data::training_sources(config.data)) require_rows(source);
    for (const config::DataSource& source : data::evaluation_sources(config.data)) require_rows(source);
    const std::string prompts = line.generate.file == "-" ? "" : line.generate.file;
    for (const std::string& file :
         {prompts, line.replay.file, line.serve.api_key_file, line.serve.tls_cert, line.serve.tls_key})
        require_readable(file);
    require_readable(config.training.sample_prompts.value_or(""));
    std::error_code failed;
    if (const std::string& root = line.serve.adapter_root; !root.empty() && !fs::is_directory(root, failed))
        throw Error("option.invalid-value", cat("--adapter_root ", root, ": there is no such folder"),
                    "Create it, or name the folder that clients may load adapters from.");
}

}  // namespace unsloth::app
