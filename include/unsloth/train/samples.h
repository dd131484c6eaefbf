// A run's completions of a few prompts during training: training.sample_prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/model/model.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/session/session.h"
#include "unsloth/session/sight.h"

namespace unsloth::train {

class RowFile;

class Samples {
  public:
    /// Reads the prompts; `rows`: the format of the training rows. Input Error for a file that is none; usage Error
    /// where a prompt and its answer take more positions than the model has.
    Samples(const config::Config& config, const session::OpenedModel& opened, const std::string& rows);
    ~Samples();

    /// Prompts are answered one after another.
    placement::Answering needs() const;
    /// Answers with the model as it is and adds {"step", "epoch", "number", "prompt", "answer"} to
    /// output_dir/samples.jsonl for each; the first time also "images", a few thumbnails, of a prompt with images.
    /// `after_step`: the step that the run began with. The model's plan has what needs() says.
    void answer(ops::Context& ctx, model::Model& model, int64_t step, double epoch, int64_t after_step);

  private:
    int64_t room() const { return longest_ + max_new_tokens_; }

    std::string output_dir_;
    int64_t max_new_tokens_;
    tokenizer::Tokenizer tokenizer_;
    session::Sight sight_;
    std::vector<session::SeenPrompt> prompts_;
    std::vector<int32_t> stops_;
    int64_t longest_ = 0;
    std::unique_ptr<RowFile> rows_;  ///< nullptr: nothing was answered yet
};

}  // namespace unsloth::train
