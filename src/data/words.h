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
    bool follows_punctuation = false;  ///< directly: an opening quote or bracket precedes it
};

/// The words that may be changed: letters alone, none but the first in upper case, between white space, line ends and
/// simple punctuation (quotes, round brackets, the marks that end clauses). No word counts within code fences, between
/// backquotes on a line, or in {...}, [...] or <...>. Nor does a word with a digit, an underscore, a hyphen or an
/// apostrophe.
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
/// Deletes each free word with probability `rate`, unless opening punctuation precedes it, and the blanks before it. At
/// the beginning of a line it deletes the blanks after the word, and a word that is alone or before punctuation stays.
/// One word always stays.
std::string with_deletions(std::string_view text, double rate, AugmentRng& draws);

}  // namespace unsloth::data
