// `init`: a model folder with random weights.
#include <filesystem>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/random_model.h"
#include "unsloth/formats/result_folder.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::app {
namespace {

/// Removes `folder` again, with all that is in it, when it was made here and the model is not finished.
class NewFolder {
  public:
    explicit NewFolder(const std::string& folder) : folder_(folder) {
        made_ = !std::filesystem::exists(folder);
        Folder::made(folder).require();
    }
    NewFolder(const NewFolder&) = delete;
    NewFolder& operator=(const NewFolder&) = delete;
    ~NewFolder() {
        if (made_) remove_or_warn(folder_);
    }
    void keep() { made_ = false; }

  private:
    std::string folder_;
    bool made_ = false;
};

void refuse_to_replace(const std::string& folder) {
    if (!std::filesystem::is_directory(folder)) return;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().filename() == "config.json" || entry.path().extension() == ".safetensors")
            throw Error("output.exists",
                        cat("--out ", folder, " holds a model already: ", entry.path().filename().string(),
                            " would be replaced"),
                        "Name another folder, or remove that model first.");
    if (const auto held = formats::find_result(folder))
        throw Error("output.exists", cat("--out ", folder, " holds ", held->what, " already"), "Name another folder.");
}

formats::RandomModel random_model(const InitRequest& request) {
    formats::RandomModel model;
    const bool by_name = request.config_file.empty();
    model.original_config = by_name ? formats::builtin_config(request.shape) : read_file(request.config_file);
    model.spec = formats::parse_model_spec(model.original_config, by_name ? request.shape : request.config_file);
    if (request.layers > 0) {
        model.spec.num_layers = request.layers;
        model.spec.layers.resize(static_cast<std::size_t>(request.layers), model.spec.layers.back());
    }
    model.spec.dtype = request.dtype;
    model.nf4 = request.quantize == InitQuantize::nf4, model.mxfp4 = request.quantize == InitQuantize::mxfp4;
    model.seed = static_cast<uint64_t>(request.seed);
    return model;
}

}  // namespace

void run_init(const CommandLine& line) {
    const InitRequest& request = line.init;
    refuse_to_replace(request.out);
    const formats::RandomModel model = random_model(request);
    NewFolder folder(request.out);
    const std::size_t bytes = formats::write_random_model(model, request.out);
    if (!request.tokenizer.empty()) {
        const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(request.tokenizer);
        copy_files(tokenizer.files(), tokenizer.folder(), request.out);
    }
    folder.keep();
    log::info("random weights (seed ", request.seed, ") in ", request.out, ": ",
              human_size(static_cast<int64_t>(bytes)));
}

}  // namespace unsloth::app
