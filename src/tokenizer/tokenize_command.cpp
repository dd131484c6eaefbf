#include "unsloth/tokenizer/tokenize_command.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "tokenizer/json_reader.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
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
    const auto document = parse_json_line(line, where);
    if (document.is_object() && document.contains("messages")) {
        // A template sees the order of keys. Not copied from `document`: a copy recurses, and a row may nest without
        // end.
        const Rendered rendered = chat.render(parse_ordered(line));
        out.turns = encode_rendered(tokenizer, rendered);
        out.text = rendered.text;
        if (options.decode) out.text = tokenizer.decode(out.turns.ids, options.no_special);
        return out;
    }
    const JsonReader row(document, where);
    if (row.has("text")) {
        out.text = row.at("text").string();
        out.turns.ids = tokenizer.encode(out.text, !options.no_special);
    } else if (options.decode && row.has("ids")) {
        const JsonReader ids = row.at("ids");
        for (std::size_t i = 0; i < ids.size(); ++i) out.turns.ids.push_back(ids.at(i).id());
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
    out << line.dump() << '\n';
}

bool blank(const std::string& line) {
    return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

void tokenize_stream(const Tokenizer& tokenizer, const TokenizeOptions& options, std::istream& in, std::ostream& out) {
    // An unknown name is an error even without messages.
    const ChatTemplate chat = ChatTemplate::choose(options.chat_template, tokenizer, options.chat_template_kwargs);
    if (chat.name() != options.chat_template) log::debug("chat template: ", chat.name());
    std::string line;
    for (std::size_t number = 1; std::getline(in, line); ++number) {
        if (blank(line)) continue;
        const std::string where = cat("line ", number);
        try {
            write_row(tokenize_row(tokenizer, options, chat, line, where), out);
        } catch (const Error& error) {
            const std::string message = error.what();
            throw Error(error.kind(), message.rfind(where, 0) == 0 ? message : cat(where, ": ", message));
        }
    }
    out.flush();
    if (!out) throw runtime_failure("writing the tokenized rows failed");
}

}  // namespace unsloth::tokenizer
