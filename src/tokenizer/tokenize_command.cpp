#include "unsloth/tokenizer/tokenize_command.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "tokenizer/json_reader.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text_lines.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::tokenizer {
namespace {

struct Row {
    EncodedTurns turns;
    std::string text;
};

Row tokenize_row(const Tokenizer& tokenizer, const TokenizeOptions& options, const ChatTemplate& chat,
                 const std::string& line, const std::string& where) {
    Row out;
    // Of plain text the reader of JSON would speak of syntax. A file may begin with a byte order mark.
    if (std::string_view("{[\xEF").find(line[line.find_first_not_of(" \t\r")]) == std::string_view::npos)
        throw Error("data.prompt-shape", cat(where, ": expected a JSON object"),
                    R"(Each line is {"text": "…"} or {"messages": [{"role": "user", "content": "…"}]}.)");
    const auto document = parse_json(line, where);
    if (document.is_object() && document.contains("messages")) {
        // A template sees the order of keys. Not copied from `document`: a copy recurses, and a row may nest without
        // end.
        auto conversation = unsloth::parse_json<nlohmann::ordered_json>(line, where, row_rules);
        put_system_first(conversation);
        const Rendered rendered = chat.render(conversation);
        if (!rendered.left_out.empty())
            log::warning(where, ": the chat template ", chat.name(), " writes nothing of the row's ", rendered.left_out,
                         "; training refuses such a row");
        out.turns = encode_rendered(tokenizer, rendered);
        out.text = rendered.text;
        if (options.decode) out.text = tokenizer.decode(out.turns.ids, options.no_special);
        return out;
    }
    const JsonReader row(document, where);
    if (document.is_object() && row.has("text")) {
        out.text = row["text"].string();
        out.turns.ids = tokenizer.encode(out.text, !options.no_special);
    } else if (options.decode && document.is_object() && row.has("ids")) {
        for (const JsonReader& id : row["ids"].elements()) out.turns.ids.push_back(id.id());
    } else {
        row.refuse(options.decode ? "an object with text, messages or ids"
                                  : "an object with text or messages (ids only with --decode)");
    }
    if (options.decode) out.text = tokenizer.decode(out.turns.ids, options.no_special);
    return out;
}

void write_row(const Row& row, std::ostream& out) {
    nlohmann::ordered_json line;
    line["ids"] = row.turns.ids;
    line["text"] = row.text;
    line["trained"] = row.turns.trained;
    // ASCII: also for readers that end a line at U+2028 and the like.
    out << line.dump(-1, ' ', /*ensure_ascii=*/true) << '\n';
}

}  // namespace

void tokenize_stream(const Tokenizer& tokenizer, const TokenizeOptions& options, std::istream& in, std::ostream& out) {
    // An unknown name is an error even without messages.
    const ChatTemplate chat = ChatTemplate::choose(options.chat_template, tokenizer, options.chat_template_kwargs);
    if (chat.name() != options.chat_template) log::debug("chat template: ", chat.name());
    for_each_line(in, [&](const std::string& line, const std::string& where) {
        write_row(tokenize_row(tokenizer, options, chat, line, where), out);
    });
    out.flush();
    if (!out) throw Error("disk.cannot-write", "writing the tokenized rows failed");
}

void measure_encoding(const Tokenizer& tokenizer, bool add_special, int rounds, std::istream& in, std::ostream& out) {
    std::vector<std::string> texts;
    for_each_line(in, [&](const std::string& line, const std::string& where) {
        const auto row = parse_json(line, where);
        texts.push_back(JsonReader(row, where).at("text").string());
    });
    std::size_t bytes = 0, tokens = 0;
    for (const std::string& text : texts) bytes += text.size();
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        tokens = 0;
        for (const std::string& text : texts) tokens += tokenizer.encode(text, add_special).size();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const nlohmann::ordered_json result = {
        {"rows", texts.size()}, {"bytes", bytes}, {"tokens", tokens}, {"seconds", seconds}};
    out << result.dump() << '\n';
}

}  // namespace unsloth::tokenizer
