// Regular expressions as tokenizer.json means them (Oniguruma's Ruby syntax, Unicode 16.0), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace unsloth::tokenizer {

/// A compiled pattern; matching is safe from any thread.
class Regex {
  public:
    /// Accepts what means the same to Oniguruma and PCRE2, and translates what tokenizers use besides: sets within
    /// sets, \w and \b, scripts, {n,m}+ (a repetition of the repetition). Anything else is an input Error that names
    /// the construct and `where` (file and key).
    Regex(std::string_view source, const std::string& where);
    /// As the file has it.
    const std::string& source() const { return source_; }

    /// Finds the first match at or behind `from` in valid UTF-8. False when there is none.
    /// Input Error when the pattern takes too many steps.
    bool search(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;

  private:
    std::shared_ptr<pcre2_real_code_8> code_;
    bool compiled_to_machine_code_ = false;
    std::string source_, where_;
};

}  // namespace unsloth::tokenizer
