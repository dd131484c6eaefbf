#include "tokenizer/jinja/template.h"

#include <algorithm>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/memory_budget.h"
#include "unsloth/core/utf8.h"

namespace unsloth::tokenizer::jinja {

Template Template::compile(std::string_view source, std::string name) {
    Template made;
    made.name_ = std::move(name);
    made.source_ = source;
    if (const std::size_t valid = first_invalid_utf8(source); valid != source.size())
        throw Error("template.failed", cat("chat template ", made.name_, ": not valid UTF-8 at byte ", valid));
    try {
        made.program_ = std::make_shared<const Program>(parse(source));
    } catch (const Failure& failure) {
        made.explain(failure);
    }
    return made;
}

RenderedTemplate Template::render(const Variables& variables, int64_t steps) const {
    const MemoryBound bound;
    Rendering rendering;
    const Frame frame{rendering, std::make_shared<Scope>(nullptr)};
    struct AtEnd {
        Rendering& rendering;
        ~AtEnd() {
            for (const auto& space : rendering.namespaces) space->clear();
        }
    } const at_end{rendering};
    const auto& names = program_->names;
    for (const auto& [name, value] : variables) {
        const auto found = std::find(names.begin(), names.end(), name);
        if (found != names.end()) frame.scope->set(static_cast<int>(found - names.begin()), value);
    }
    try {
        const Budget budget(steps);
        run(program_->body, frame);
    } catch (const Failure& failure) {
        explain(failure);
    }
    return {std::move(rendering.output), std::move(rendering.generations), rendering.generation_within_value};
}

bool Template::has_generation() const {
    return program_->has_generation;
}

void Template::explain(const Failure& failure) const {
    const int line = failure.line;
    std::string advice;
    const std::vector<std::string_view> lines = text::split(source_, "\n", -1);
    if (line > 0 && static_cast<std::size_t>(line) <= lines.size()) {
        constexpr std::size_t longest = 160;
        const std::string_view shown = text::strip(lines[static_cast<std::size_t>(line - 1)], text::Side::both);
        advice = cat("template line ", line, ": ", shown.substr(0, text::byte_of(shown, longest)),
                     text::length(shown) > longest ? " …" : "");
    }
    throw Error("template.failed",
                cat("chat template ", name_, ", line ", line,
                    failure.column > 0 ? cat(", column ", failure.column) : "", ": ", failure.what()),
                advice);
}

}  // namespace unsloth::tokenizer::jinja
