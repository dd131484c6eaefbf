#include "unsloth/data/encoder.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

EncodedRow row_of(tokenizer::EncodedTurns turns) {
    EncodedRow row;
    row.ids = std::move(turns.ids);
    for (const auto& [begin, end] : turns.trained)
        row.trained.emplace_back(static_cast<int32_t>(begin), static_cast<int32_t>(end));
    if (turns.merged_start) row.doubts |= static_cast<uint32_t>(RowDoubt::merged_start);
    return row;
}

bool names_template(const tokenizer::Tokenizer& tokenizer, std::string_view name) {
    const auto& all = tokenizer.chat_templates();
    return std::any_of(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
}

class TokenizerEncoder : public RowEncoder {
  public:
    TokenizerEncoder(const tokenizer::Tokenizer& tokenizer, std::string_view template_name, std::string_view kwargs)
        : tokenizer_(tokenizer),
          chat_template_(tokenizer::ChatTemplate::choose(template_name, tokenizer, kwargs)),
          alpaca_prompts_(template_name == "alpaca"),
          named_(template_name != "auto"),
          guessed_(template_name == "auto" && !names_template(tokenizer, "default")),
          passes_over_template_(template_name == "auto" && names_template(tokenizer, "default")) {
        if (template_name == "auto")
            log::info("chat template ", chat_template_.name(),
                      " for messages; the three-section prompt for Alpaca rows (data.template chooses another)");
    }

    EncodedRow text(std::string_view text) const override {
        const auto eos = tokenizer_.eos_id();
        if (!eos)
            throw Error("tokenizer.no-eos",
                        cat("the tokenizer in ", tokenizer_.folder().string(), " names no EOS token to end texts with"),
                        "Set eos_token in its tokenizer_config.json.");
        EncodedRow row;
        row.ids = tokenizer_.encode(text, true);
        const bool brings_end = tokenizer::written_end(tokenizer_, text).has_value();
        if (brings_end && tokenizer_.adds_eos()) row.ids.pop_back();
        if (!brings_end && !tokenizer_.adds_eos()) row.ids.push_back(*eos);
        const auto last = std::find_if(row.ids.rbegin(), row.ids.rend(), [&](int32_t id) { return stops(id); });
        row.trained.emplace_back(0, static_cast<int32_t>(row.ids.rend() - last));
        return examined(std::move(row));
    }

    InstructionForm instruction_form() const override {
        if (!named_) return InstructionForm::automatic;
        return alpaca_prompts_ ? InstructionForm::sections : InstructionForm::conversation;
    }

    EncodedRow alpaca(const AlpacaFields& fields) const override {
        const std::string prompt = tokenizer::alpaca_prompt(fields.instruction, fields.input, fields.system);
        EncodedRow row = row_of(tokenizer::encode_rendered(
            tokenizer_, tokenizer::build_prompt_completion(tokenizer_, prompt, fields.output)));
        if (passes_over_template_) row.doubts |= static_cast<uint32_t>(RowDoubt::plain_prompt);
        return examined(std::move(row));
    }

    EncodedRow prompt_completion(std::string_view prompt, std::string_view completion) const override {
        EncodedRow row = row_of(
            tokenizer::encode_rendered(tokenizer_, tokenizer::build_prompt_completion(tokenizer_, prompt, completion)));
        if (named_) row.doubts |= static_cast<uint32_t>(RowDoubt::unused_template);
        return examined(std::move(row));
    }

    std::size_t common_prompt(std::string_view a, std::string_view b) const override {
        return tokenizer::common_prompt(tokenizer_, a, b);
    }

    EncodedRow messages(const std::vector<tokenizer::Message>& turns) const override {
        return encoded(chat_template_.render(turns, false));
    }

    EncodedRow whole_conversation(const Conversation& conversation) const override {
        const auto tools = conversation.row->find("tools");
        if (tools != conversation.row->end() && !tools->is_array())
            throw Error("data.tool-calls", "the row's tools are no JSON array", "");
        return encoded(chat_template_.render(*conversation.row));
    }

    openai::DecisionPrompt decision(const openai::DecisionExample& example) const override {
        return openai::decision_prompt(tokenizer_, chat_template_, *example.messages, example.question, "question");
    }

    bool reads(std::string_view column) const override {
        return column == "chat_template_kwargs" || column == "add_generation_prompt" || chat_template_.reads(column);
    }

    std::string subject(RowDoubt doubt) const override {
        switch (doubt) {
            case RowDoubt::double_bos:
                return tokenizer_.bos_id() ? tokenizer_.token(*tokenizer_.bos_id()) : "";
            case RowDoubt::open_end:
            case RowDoubt::double_end:
                return stop_tokens();
            case RowDoubt::guessed_template:
            case RowDoubt::unread_reasoning:
            case RowDoubt::unused_template:
                return chat_template_.name();
            case RowDoubt::merged_start:
            case RowDoubt::plain_prompt:
            case RowDoubt::empty_answer:
            case RowDoubt::unread_system:
            case RowDoubt::unread_history:
            case RowDoubt::unread_tools:
            case RowDoubt::unread_media:
                break;
        }
        return {};
    }

  private:
    EncodedRow examined(EncodedRow row) const {
        const auto bos = tokenizer_.bos_id();
        if (bos && row.ids.size() > 1 && row.ids[0] == *bos && row.ids[1] == *bos)
            row.doubts |= static_cast<uint32_t>(RowDoubt::double_bos);
        if (row.trained.empty() || row.trained.back().second == 0) return row;
        const auto stops_at = [&](int32_t place) { return stops(row.ids[static_cast<std::size_t>(place)]); };
        if (!stops_at(row.trained.back().second - 1)) row.doubts |= static_cast<uint32_t>(RowDoubt::open_end);
        for (const auto& [begin, end] : row.trained)
            if (end > begin + 1 && stops_at(end - 1) &&
                row.ids[static_cast<std::size_t>(end - 1)] == row.ids[static_cast<std::size_t>(end - 2)])
                row.doubts |= static_cast<uint32_t>(RowDoubt::double_end);
        if ((row.doubts & static_cast<uint32_t>(RowDoubt::merged_start)) != 0) return row;  // it had a text
        for (const auto& [begin, end] : row.trained)
            if (end == begin + 1 && stops_at(begin)) row.doubts |= static_cast<uint32_t>(RowDoubt::empty_answer);
        return row;
    }

    EncodedRow encoded(const tokenizer::Rendered& rendered) const {
        tokenizer::require_whole(chat_template_, rendered);
        EncodedRow row = row_of(tokenizer::encode_rendered(tokenizer_, rendered));
        if (guessed_) row.doubts |= static_cast<uint32_t>(RowDoubt::guessed_template);
        if (rendered.passes_over_reasoning) row.doubts |= static_cast<uint32_t>(RowDoubt::unread_reasoning);
        return examined(std::move(row));
    }

    bool stops(int32_t id) const {
        const auto& ids = tokenizer_.stop_ids();
        return std::find(ids.begin(), ids.end(), id) != ids.end();
    }

    std::string stop_tokens() const {
        std::string names;
        for (const int32_t id : tokenizer_.stop_ids())
            if (id < tokenizer_.vocab_size()) names += cat(names.empty() ? "" : ", ", tokenizer_.token(id));
        return names;
    }

    tokenizer::Tokenizer tokenizer_;  // a copy shares the tables
    tokenizer::ChatTemplate chat_template_;
    bool alpaca_prompts_;        ///< the user named this form of instructions
    bool named_;                 ///< the user named the template of conversations
    bool guessed_;               ///< the user named none, and the model has none
    bool passes_over_template_;  ///< the model has one, which Alpaca rows do not go through
};

}  // namespace

EncodedRow RowEncoder::whole_conversation(const Conversation& conversation) const {
    if (!conversation.uses_tools) return messages(conversation.turns);
    throw Error("template.omits-content", "the row uses tools, which this chat template does not render",
                "Remove tools, tool_calls and messages of role tool, or write them into the contents.");
}

openai::DecisionPrompt RowEncoder::decision(const openai::DecisionExample&) const {
    throw Error("template.omits-content", "rows of decisions need a chat template and a tokenizer", "");
}

InstructionForm RowEncoder::instruction_form() const {
    return InstructionForm::automatic;
}

bool RowEncoder::reads(std::string_view) const {
    return false;
}

std::string RowEncoder::subject(RowDoubt) const {
    return {};
}

std::string encoder_fingerprint(const std::filesystem::path& tokenizer_folder, const std::string& template_name,
                                const std::string& kwargs) {
    std::vector<std::filesystem::path> files;
    for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                             "added_tokens.json", "vocab.json", "merges.txt", "config.json", "generation_config.json",
                             "chat_template.jinja", "chat_template.json"})
        files.push_back(tokenizer_folder / name);
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(tokenizer_folder / "additional_chat_templates", none))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    files.emplace_back(template_name);  // a template may be a file of its own
    ContentHash hash;
    hash.add_field(template_name);
    hash.add_field(kwargs);
    bool dated = template_name.find("strftime_now") != std::string::npos;  // the template itself, or a path
    for (const std::filesystem::path& file : files) {
        if (!std::filesystem::is_regular_file(file, none)) continue;
        const MappedFile map(file);
        const std::string_view content(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
        hash.add_field(file.filename().string());
        hash.add_field(content);
        const std::string extension = file.extension().string();
        const bool may_hold_template = extension == ".jinja" ||
                                       file.filename().string().find("template") != std::string::npos ||
                                       file.filename() == "tokenizer_config.json" || file == template_name;
        dated |= may_hold_template && content.find("strftime_now") != std::string_view::npos;
    }
    if (dated) {
        const std::time_t now = std::time(nullptr);
        char day[16];
        std::strftime(day, sizeof day, "%Y-%m-%d", std::localtime(&now));
        hash.add_field(day);
    }
    return hash.hex();
}

std::unique_ptr<RowEncoder> make_row_encoder(const tokenizer::Tokenizer& tokenizer, std::string_view template_name,
                                             std::string_view kwargs) {
    return std::make_unique<TokenizerEncoder>(tokenizer, template_name, kwargs);
}

}  // namespace unsloth::data
