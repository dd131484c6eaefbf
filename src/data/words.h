// Texts with some of their words changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unsloth::data {

/// The random numbers of one copy of a row, one after another.
class AugmentRng {
  public:
    /// `use` tells kinds of copies apart.
    AugmentRng(uint64_t seed, uint64_t row, uint32_t copy, uint32_t use);
    double unit();                     ///< in [0, 1)
    std::size_t below(std::size_t n);  ///< 0 ... n - 1; n > 0

  private:
    uint32_t word();

    uint32_t key_[2];
    uint32_t next_ = 0;
};

/// A word that may be changed: bytes [begin, end) of its text.
struct Word {
    std::size_t begin = 0, end = 0;
    std::size_t line = 0;
    bool follows_punctuation = false;  ///< directly: an opening quote or bracket stands before it
};

/// The words that may be changed: letters alone, none but the first in upper case, between white space, line ends and
/// simple punctuation (quotes, round brackets, the marks that end clauses). What stands in code fences, between
/// backquotes on a line, in
/// {...}, [...] or <...> is none, nor is anything with a digit, an underscore, a hyphen or an apostrophe.
std::vector<Word> free_words(std::string_view text);

/// Synonyms by word, in lower case.
class Thesaurus {
  public:
    /// A JSON object {"word": ["synonym", ...], ...}, or JSON Lines of {"word", "synonyms"}; words in any case, none
    /// twice in an object. Input Error with file and key or line.
    static Thesaurus load(const std::filesystem::path& path);

    /// nullptr: none.
    const std::vector<std::string>* find(std::string_view word) const;
    std::size_t size() const { return synonyms_.size(); }

  private:
    void add(const std::string& word, const std::string& synonym);

    std::unordered_map<std::string, std::vector<std::string>> synonyms_;
};

/// Each free word that has synonyms becomes one of them with probability `rate`, each as likely; a capital in front
/// stays one.
std::string with_synonyms(std::string_view text, const Thesaurus& thesaurus, double rate, AugmentRng& draws);
/// Each free word changes places with another one of its line with probability `rate`; punctuation stays where it is.
std::string with_swaps(std::string_view text, double rate, AugmentRng& draws);
/// Each free word that no opening punctuation precedes goes with probability `rate`, with the blanks before it (those
/// behind it at the beginning of a line, where a word stays that stands alone or before punctuation). One word always
/// stays.
std::string with_deletions(std::string_view text, double rate, AugmentRng& draws);

}  // namespace unsloth::data
