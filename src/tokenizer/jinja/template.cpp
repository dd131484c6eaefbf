#include "tokenizer/jinja/template.h"

#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

Template Template::compile(std::string_view source, std::string name) {
    Template made;
    made.name_ = std::move(name);
    made.source_ = source;
    if (unicode::valid_prefix(source) != source.size())
        throw input_error(
            cat("chat template ", made.name_, ": not valid UTF-8 at byte ", unicode::valid_prefix(source)));
    try {
        made.program_ = std::make_shared<const Program>(parse(source));
    } catch (const Failure& failure) {
        made.explain(failure.what(), failure.line);
    }
    return made;
}

RenderedTemplate Template::render(const Variables& variables, int64_t steps) const {
    Evaluator evaluator(*program_, steps);
    RenderedTemplate out;
    try {
        out.text = evaluator.run(variables);
    } catch (const Failure& failure) {
        explain(failure.what(), failure.line);
    }
    out.generations = evaluator.generations();
    out.generation_within_value = evaluator.generation_within_value();
    return out;
}

bool Template::has_generation() const {
    return program_->has_generation;
}

void Template::explain(const char* message, int line) const {
    std::string advice;
    const std::vector<std::string_view> lines = text::split(source_, "\n", -1, false);
    if (line > 0 && static_cast<std::size_t>(line) <= lines.size()) {
        constexpr std::size_t longest = 160;
        const std::string_view shown = text::strip(lines[static_cast<std::size_t>(line - 1)], text::Side::both);
        advice = cat("template line ", line, ": ", shown.substr(0, text::byte_of(shown, longest)),
                     text::length(shown) > longest ? " …" : "");
    }
    throw input_error(cat("chat template ", name_, ", line ", line, ": ", message), advice);
}

}  // namespace unsloth::tokenizer::jinja
