// From a row's columns to token ids, labels and positions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/data/batch.h"
#include "unsloth/data/encoder.h"
#include "unsloth/data/segments.h"
#include "unsloth/data/vision.h"

namespace unsloth::data {

/// The column of a copy that augmentation made, saying of what: {"of": id of the row, "by": "synonym" | "swap" |
/// "delete" | "back_translation", "copy": its number, "seed"}. A row's id is its id column, else its number over all
/// files, from 0.
inline constexpr const char* provenance_column = "augmentation";

struct RowOptions {
    config::Objective objective = config::Objective::sft;  ///< what rows must hold: targets, pairs, verdicts
    bool train_on_prompt = false;
    bool train_on_last_turn_only = false;  ///< of a conversation's assistant turns, only the last is trained on
    int64_t max_seq_length = 0;            ///< longer rows are cut, split or dropped; 0: none is too long
    config::LongRows long_rows = config::LongRows::automatic;
    int64_t max_positions = 0;      ///< what the model allows; 0: not known
    int64_t vocab_size = 0;         ///< rows of the model's embedding; 0: not known
    int64_t max_prompt_length = 0;  ///< of preferences, see PreferenceOptions; below max_seq_length
    config::TruncationMode truncation_mode = config::TruncationMode::keep_end;
    int64_t bos_id = -1;  ///< the model's BOS token, that tokenised rows are examined for; -1: not known
    std::shared_ptr<const VisionRows> vision = {};  ///< null: the model reads text alone
    std::filesystem::path image_root = {};  ///< that images' paths are relative to; empty: the folder of the rows' file
    int64_t image_max_pixels = 0;           ///< as `vision` has it
    int64_t min_length = 0;                 ///< shorter rows, and pieces of rows, are dropped
};

struct FormattedRow {
    std::vector<int32_t> ids;
    std::vector<int32_t> labels;     ///< in place
    std::vector<int32_t> positions;  ///< empty: 0, 1, 2, ...
    Segments segments = {};          ///< empty: one
    bool truncated = false;
    int64_t targets = 0;                    ///< after truncation
    uint32_t doubts = 0;                    ///< RowDoubts
    bool too_long = false;                  ///< longer than max_seq_length, and not to be cut: to be split or dropped
    bool too_short = false;                 ///< shorter than min_length: to be dropped
    bool split = false;                     ///< a piece of a row
    int32_t piece = 0;                      ///< its number within the row
    bool desirable = false;                 ///< the verdict on the answer, where there is one
    OptionTokens options = {};              ///< of a decision
    std::vector<Image> images = {};         ///< without pixels
    std::vector<ImageSource> sources = {};  ///< of each image
};

/// The configuration's name of a format ("tokenized", "alpaca", "messages", ..., "auto").
std::string format_name(config::DataFormat format);

/// Recognises the format from a row's columns: tokenized {input_ids} (with it labels, position_ids, attention_mask,
/// completion_mask, assistant_masks and loss_mask), messages {messages}, sharegpt {conversations},
/// decision {input, question, answer or probabilities}, preference {chosen, rejected} or {preferred_output,
/// non_preferred_output} (of ids: tokenized, as {prompt, completion} of ids), alpaca {instruction, output},
/// prompt_completion {prompt, completion}, text {text}, in this order; `pairs`: preference before messages and
/// sharegpt, which then are a pair's prompt. BadRow names the columns found, and for shapes known elsewhere how to
/// rename them.
config::DataFormat detect_format(const nlohmann::ordered_json& row, bool pairs = false);

struct WeightedConversation;

/// Turns rows of one format into tokens. Immutable: all threads share one object.
class RowFormatter {
  public:
    /// `encoder` (not owned) may be null for tokenised rows only: input Error otherwise. Input Error for rows that the
    /// objective does not learn from.
    RowFormatter(config::DataFormat format, const RowOptions& options, const RowEncoder* encoder);
    /// BadRow for a missing column, a wrong type, an id outside the vocabulary, lengths that differ,
    /// positions that fall to something other than 0 or exceed what the model allows. Columns that the
    /// format does not know are ignored, or variables of a conversation's chat template where it reads them; of those
    /// that other formats read, the row has RowDoubts. Rows whose labels are all masked pass, with targets = 0.
    ///
    /// With an objective of pairs a row becomes two segments, the prompt with the chosen and with the rejected answer
    /// (see pair_of in src/data/preference.h for their forms): BadRow where the answers are equal, or where of one of
    /// them nothing is left to learn. With kto a row {prompt, completion, label} keeps its verdict (see judged_of there
    /// for its other forms). With decision a row is the prompt of its question and one more token, the label of the
    /// option that the answer names first of all: BadRow for one that is too long, for none of it may be cut.
    ///
    /// A conversation may have images (src/data/row_images.h says in which forms). Their paths are relative to
    /// `folder`, unless RowOptions::image_root names another. BadRow image.* for images that are not read, for numbers
    /// of images and places that differ, and where the model reads text alone. Answers that are compared or judged have
    /// none: their prompt may have some.
    FormattedRow format(const nlohmann::ordered_json& row, const std::filesystem::path& folder = {}) const;
    /// A row that is too long as rows of at most max_seq_length tokens. Each but the first begins with the token that
    /// the one before ends with, for its context, unless a segment begins there: so every token that is a target of
    /// the row is one of exactly one piece. Pieces without a target are dropped where others have some.
    void for_each_piece(const FormattedRow& row, const std::function<void(const FormattedRow&)>& use) const;
    bool splits() const;  ///< what becomes of rows that are too long; else they are cut or dropped

  private:
    FormattedRow with_images(nlohmann::ordered_json row, const std::filesystem::path& folder) const;
    FormattedRow supervised(const nlohmann::ordered_json& row) const;
    EncodedRow conversation(const nlohmann::ordered_json& row, std::vector<bool>& in_loss) const;
    FormattedRow pair(const nlohmann::ordered_json& row, const std::filesystem::path& folder) const;
    std::pair<FormattedRow, FormattedRow> both_answers(const nlohmann::ordered_json& row,
                                                       const std::filesystem::path& folder) const;
    FormattedRow joined(const std::pair<FormattedRow, FormattedRow>& answers) const;
    FormattedRow judged(const nlohmann::ordered_json& row, const std::filesystem::path& folder) const;
    FormattedRow decision(const nlohmann::ordered_json& row) const;
    FormattedRow answer(const nlohmann::ordered_json& row, const std::filesystem::path& folder = {}) const;
    FormattedRow instructed(const nlohmann::ordered_json& row, const char* column) const;
    bool takes_sections(const nlohmann::ordered_json& row) const;
    FormattedRow tokenized(const nlohmann::ordered_json& row) const;
    std::function<bool(std::string_view)> reads() const;  ///< see RowEncoder::reads
    void require_encoder() const;
    EncodedRow encode_instruction(const nlohmann::ordered_json& row, std::vector<bool>& in_loss) const;
    EncodedRow encode_prompt_completion(const nlohmann::ordered_json& row, std::vector<bool>& in_loss) const;
    EncodedRow encode_conversation(WeightedConversation row, std::vector<bool>& in_loss) const;
    FormattedRow encoded(EncodedRow row, const std::vector<bool>& in_loss = {}) const;
    void check_all_ids(FormattedRow& row, bool from_tokenizer) const;
    RowFormatter without_bounds() const;  ///< of lengths
    void shorten_prompts(std::initializer_list<FormattedRow*> answers) const;
    void finish(FormattedRow& row) const;
    void check_reach(const FormattedRow& row) const;
    void cut_images(FormattedRow& row) const;
    void check_kind() const;

    config::DataFormat format_;
    RowOptions options_;
    const RowEncoder* encoder_;
};

}  // namespace unsloth::data
