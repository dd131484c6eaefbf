#include "unsloth/rollouts/prompt_rows.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/seen_prompt.h"
#include "unsloth/data/source.h"
#include "unsloth/data/training_data.h"
#include "unsloth/session/generation.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::rollouts {
namespace {

using RowJson = nlohmann::ordered_json;

class PromptReader {
  public:
    PromptReader(const config::DataOptions& data, const tokenizer::Tokenizer& tokenizer, int64_t longest)
        : encoder_(tokenizer, data, "messages"), longest_(longest) {}

    PromptRow read(RowJson row, int64_t number) const {
        const char* const key = row.contains("prompt") ? "prompt" : "messages";
        if (!row.contains(key))
            throw data::BadRow{"data.no-prompt", "there is neither \"prompt\" nor \"messages\"", columns_advice()};
        const RowJson prompt = row[key];
        if (data::shows_images(row))
            throw data::BadRow{"image.text-model", "the row has images, and reinforcement learning reads text alone",
                               "Remove the images, and columns images and image, or set data.skip_invalid."};
        PromptRow read{.row = number, .prompt = prompt.dump()};
        if (prompt.is_string())
            read.ids = encoder_.text(prompt.get<std::string>()).ids;
        else
            read.ids = of_messages(row, prompt);
        row.erase(key);
        read.columns = row.dump();
        if (read.ids.empty()) throw data::BadRow{"data.no-prompt", "the prompt has no tokens", ""};
        if (static_cast<int64_t>(read.ids.size()) > longest_)
            throw data::BadRow{
                "data.row-too-long",
                cat("the prompt has ", read.ids.size(), " tokens, and ", longest_,
                    " are left of model.max_seq_length next to grpo.max_completion_length"),
                "Raise model.max_seq_length, lower grpo.max_completion_length, or set data.skip_invalid."};
        return read;
    }

  private:
    static std::string columns_advice() {
        return "Rows are {\"prompt\": \"…\", …} or {\"messages\": […], …}; data.columns renames columns.";
    }
    std::vector<int32_t> of_messages(const RowJson& row, const RowJson& messages) const {
        if (!messages.is_array() || messages.empty() || !messages.back().is_object())
            throw data::BadRow{"data.prompt-shape", "the prompt is neither a text nor a list of messages",
                               columns_advice()};
        if (messages.back().value("role", "") == "assistant")
            throw data::BadRow{"data.prompt-shape",
                               "its last message is the assistant's, which leaves nothing to complete",
                               "Keep the expected answer in a column of its own."};
        RowJson whole = row;
        whole["messages"] = messages;
        try {
            return encoder_.messages(std::move(whole));
        } catch (const Error& error) {
            throw data::BadRow{error.id(), error.what(), ""};
        }
    }

    session::PromptEncoder encoder_;
    int64_t longest_;
};

}  // namespace

std::vector<PromptRow> read_prompt_rows(const config::DataOptions& data, std::span<const config::DataSource> sources,
                                        const tokenizer::Tokenizer& tokenizer, int64_t longest) {
    const PromptReader reader(data, tokenizer, longest);
    std::vector<data::SourceFiles> files;
    for (const config::DataSource& source : sources) files.push_back(data::with_files(source));
    data::SourceReader source(files, {data.text_unit, data.invalid_utf8, data.columns, false});
    std::vector<PromptRow> rows;
    int64_t skipped = 0;
    std::string first_skipped;
    for (data::SourceReader::Part part = source.next(); !part.chunk.empty(); part = source.next())
        for (std::size_t i = 0; i < part.chunk.size(); ++i) {
            const data::RawRow raw = part.chunk.row(i);
            try {
                RowJson row = part.file->parse(raw);
                rows.push_back(reader.read(std::move(row), part.first_id + raw.index));
            } catch (const data::BadRow& bad) {
                const std::string where = cat(part.file->place(raw.line), ": ", bad.message);
                if (!data.skip_bad_rows) throw Error(bad.id, where, bad.advice);
                if (skipped++ == 0) first_skipped = where;
            }
        }
    if (skipped > 0)
        log::warning("skipped ", skipped,
                     " rows that cannot be completed (data.skip_invalid), the first: ", first_skipped);
    if (rows.empty()) throw Error("data.no-usable-rows", "none of the rows of prompts can be used");
    return rows;
}

}  // namespace unsloth::rollouts
