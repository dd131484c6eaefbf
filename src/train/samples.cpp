#include "unsloth/train/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/row_file.h"
#include "unsloth/core/error.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/report/run.h"
#include "unsloth/session/generation.h"
#include "unsloth/session/session.h"

namespace unsloth::train {
namespace {

/// Of which a run's page shows pictures, and how many of each: half a megabyte at most.
constexpr std::size_t pictured_prompts = 8, pictured_images = 2;

}  // namespace

Samples::Samples(const config::Config& config, const session::OpenedModel& opened, const std::string& rows)
    : output_dir_(config.training.output_dir),
      max_new_tokens_(config.training.sample_max_new_tokens),
      tokenizer_(opened.tokenizer()),
      sight_(opened, config.data.image_max_pixels),
      prompts_(session::read_prompts(*config.training.sample_prompts,
                                     session::PromptEncoder(tokenizer_, config.data, rows, sight_))),
      stops_(session::stop_ids(tokenizer_, opened.file->spec)),
      longest_(session::longest_of(prompts_)) {
    if (room() > opened.file->spec.usable_positions())
        throw Error("model.too-many-positions",
                    cat("training.sample_prompts and sample_max_new_tokens take ", room(),
                        " positions, the model allows ", opened.file->spec.usable_positions()),
                    "Shorten the prompts, or set a lower sample_max_new_tokens.");
}

Samples::~Samples() = default;

placement::Answering Samples::needs() const {
    placement::Answering needs{1, longest_, room()};
    for (const session::SeenPrompt& prompt : prompts_) {
        needs.images = std::max(needs.images, prompt.image_count());
        needs.patches = std::max(needs.patches, prompt.patches());
    }
    return needs;
}

void Samples::answer(ops::Context& ctx, model::Model& model, int64_t step, double epoch, int64_t after_step) {
    const bool is_first = !rows_;
    if (!rows_) rows_ = std::make_unique<RowFile>(output_dir_, report::samples_file, std::min(after_step, step - 1));
    generate::Decoder decoder(ctx, model, {.rows = 1, .context = room()});  // the cache has room for one
    std::vector<generate::Request> requests;
    for (const session::SeenPrompt& prompt : prompts_)
        requests.push_back(
            {.prompt = prompt.ids, .max_new_tokens = max_new_tokens_, .stop_ids = stops_, .images = prompt.images});
    const std::vector<generate::Completion> answers = decoder.answer(std::move(requests));
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
        generate::require_finite(answers[i], cat("the answer to sample prompt ", i + 1));
        nlohmann::ordered_json row{{"step", step},
                                   {"epoch", epoch},
                                   {"number", i + 1},
                                   {"prompt", tokenizer_.decode(prompts_[i].ids, /*skip_special=*/true)},
                                   {"answer", tokenizer_.decode(answers[i].ids, /*skip_special=*/true)}};
        if (is_first && prompts_[i].images && i < pictured_prompts)
            row["images"] = sight_.thumbnails(prompts_[i].images->images, pictured_images);
        rows_->add(row);
    }
}

}  // namespace unsloth::train
