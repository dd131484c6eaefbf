// Prompts, and what ends their answers: of `generate`, and of a run's sampled prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/generate/chunked_prefill.h"
#include "unsloth/session/session.h"
#include "unsloth/session/sight.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::session {

/// What a row names, and where it is written.
struct NamedAt {
    std::string name;  ///< empty: nothing
    std::string where;
};

/// Files that the user names in a command may be anywhere: the root of their absolute paths.
inline constexpr const char* anywhere = "/";
std::vector<std::string> absolute(std::vector<std::string> files);

/// How prompts become ids.
class PromptEncoder {
  public:
    /// `rows`: the format of the rows that the model was trained on, as data.format has it; empty: not known. Where
    /// data.template is auto, prompts are put as these rows were. Without `sight`, prompts with images are refused.
    PromptEncoder(const tokenizer::Tokenizer& tokenizer, const config::DataOptions& data, const std::string& rows,
                  Sight sight = {});

    /// A user's message to the template that data.template names, or the rows had; without either, to the model's own,
    /// and as it is where the model has none.
    /// `images`: paths of files, which stand before the text or where it says <image>; where the text is taken as it
    /// is, it has the model's own token for each. Input Errors image.*.
    SeenPrompt prompt(const std::string& text, const std::vector<std::string>& images = {}) const;
    SeenPrompt text(const std::string& text, const std::vector<std::string>& images = {}) const;
    /// `row` has "messages", and perhaps more that a template reads. Paths of images are below data.image_root, or
    /// `folder` where that is empty.
    SeenPrompt seen_messages(const nlohmann::ordered_json& row, const std::filesystem::path& folder) const;
    /// The same without images; input Error image.text-model for a row with some.
    Prompt messages(const nlohmann::ordered_json& row) const;

    /// Of conversations.
    const tokenizer::ChatTemplate& chat_template() const { return chat_; }
    /// No source named that template: neither the configuration, the model nor the run.
    bool guessed() const { return guessed_; }
    /// Whether prompt() is text().
    bool raw() const { return raw_; }

  private:
    const tokenizer::Tokenizer& tokenizer_;
    tokenizer::ChatTemplate chat_;
    bool guessed_, raw_;
    std::string image_root_;
    Sight sight_;

    Prompt render(nlohmann::ordered_json row) const;
};

/// JSON Lines of {"text"}, {"prompt"} or {"messages"}; anything that does not begin with an object is one text.
/// The latter two may have "images". `adapters` (may be nullptr) gets what each names as its "adapter". Input Error,
/// with the line. The file "-" is standard input.
std::vector<SeenPrompt> read_prompts(const std::filesystem::path& file, const PromptEncoder& encoder,
                                     std::vector<NamedAt>* adapters = nullptr);
/// Tokens of the longest; input Error where one has none.
int64_t longest_of(const std::vector<SeenPrompt>& prompts);

/// The ids that end an answer.
std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec);

/// How long passes of generation take: by the rates of the device's card, or on the CPU by those that it observes.
std::shared_ptr<generate::StepLatencyModel> step_latency_model(at::Device device, const config::Config& config,
                                                               const OpenedModel& opened);

}  // namespace unsloth::session
