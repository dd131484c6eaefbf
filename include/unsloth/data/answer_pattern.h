// What counts of a generated answer: a regular expression on untrusted texts.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace unsloth::data {

class AnswerPattern {
  public:
    /// PCRE2's syntax. Usage Error, naming `option`, where it is none.
    AnswerPattern(const std::string& expression, const std::string& option);

    struct Found {
        std::optional<std::string> text;  ///< the first group of the last match, or all of it where there is no group
        bool gave_up = false;             ///< the search took too many steps, and was ended
    };
    /// Ends for every pattern and text: a search that tries too many ways is given up. `text` need not be UTF-8.
    Found find_last(const std::string& text) const;

  private:
    struct Code;
    std::shared_ptr<const Code> code_;
};

}  // namespace unsloth::data
