// A compiled chat template: Jinja as transformers runs it (jinja2's ImmutableSandboxedEnvironment with
// trim_blocks and lstrip_blocks, loop controls, {% generation %}, its own tojson, raise_exception and
// strftime_now).
//
// What published templates use is here, and its text is equal byte for byte. The rest of Jinja (recursive loops,
// {% with %}, divisions, fractions, rare filters, tests and methods) is refused by its name with the template's line
// where it is reached, and so are integers beyond 127 bits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

struct Program;

using Variables = std::map<std::string, Value>;

struct RenderedTemplate {
    std::string text;
    /// Byte ranges that {% generation %} blocks wrote.
    std::vector<std::pair<std::size_t, std::size_t>> generations;
    /// One of them was rendered into a value (by a macro or {% set %} block): its place is not known.
    bool generation_within_value = false;
};

/// Immutable; render() may run on several threads at once.
class Template {
  public:
    /// No rendering takes longer (about two seconds).
    static constexpr int64_t most_steps = 50'000'000;

    /// `name` is for messages. Input Error with name, line and column for a template that Jinja would refuse.
    static Template compile(std::string_view source, std::string name);
    /// Input Error with name, line and column for what the template raises, and when it takes too long, nests too
    /// deep or writes too much. `steps` is how long "too long" is.
    RenderedTemplate render(const Variables& variables, int64_t steps = most_steps) const;
    bool has_generation() const;
    const std::string& name() const { return name_; }

  private:
    [[noreturn]] void explain(const Failure& failure) const;
    std::string name_;
    std::string source_;
    std::shared_ptr<const Program> program_;
};

}  // namespace unsloth::tokenizer::jinja
