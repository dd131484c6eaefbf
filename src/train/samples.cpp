#include "unsloth/train/samples.h"

#include <nlohmann/json.hpp>

#include "train/generation.h"
#include "train/row_file.h"
#include "unsloth/core/error.h"
#include "unsloth/report/run.h"

namespace unsloth::train {

Samples::Samples(const config::Config& config, const OpenedModel& opened)
    : file_((std::filesystem::path(config.training.output_dir) / report::samples_file).string()),
      max_new_tokens_(config.training.sample_max_new_tokens),
      tokenizer_(opened.tokenizer()),
      prompts_(read_prompts(*config.training.sample_prompts, tokenizer_, config.data)),
      stops_(stop_ids(tokenizer_, opened.file->spec)),
      longest_(longest_of(prompts_)) {
    if (room() > opened.file->spec.max_position_embeddings)
        throw usage_error(cat("training.sample_prompts and sample_max_new_tokens take ", room(),
                              " positions, the model allows ", opened.file->spec.max_position_embeddings),
                          "Shorten the prompts, or set a lower sample_max_new_tokens.");
}

Samples::~Samples() = default;

void Samples::answer(model::Model& model, int64_t step, double epoch, int64_t after_step) {
    if (!rows_) rows_ = std::make_unique<RowFile>(file_, after_step);
    for (const Prompt& prompt : prompts_) {
        const std::vector<int32_t> ids = continue_prompt(model, prompt, max_new_tokens_, stops_);
        rows_->add({{"step", step},
                    {"epoch", epoch},
                    {"prompt", tokenizer_.decode(prompt, /*skip_special=*/true)},
                    {"answer", tokenizer_.decode(ids, /*skip_special=*/true)}});
    }
}

}  // namespace unsloth::train
