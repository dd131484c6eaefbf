// Texts that a model may write, as an automaton over bytes: JSON of a schema, a regular expression, one of several
// texts. What it accepts is a part of what the description allows: each such text is valid, not each valid one is
// accepted (properties come in the schema's order, white space is short).
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace unsloth::grammar {

/// A description that is wrong, too large, or has something that is not supported; the message names it.
class Refused : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Part {
    enum class Kind : uint8_t {
        literal,      ///< the text itself
        json_schema,  ///< a value of this schema, written as JSON
        json_object,  ///< any object
        regex,        ///< a text that matches as a whole
        without,      ///< any text in which this one, which is not empty, does not occur
    };
    Kind kind = Kind::literal;
    std::string text = {};
};

/// Any number of `lead`, each one of them, begin, one of the alternatives (where it repeats: more of them with
/// `between`), end.
struct Pattern {
    std::vector<std::vector<Part>> alternatives;
    std::vector<std::vector<Part>> lead = {};
    std::string begin = {}, between = {}, end = {};
    bool repeats = false;

    std::string key() const;  ///< equal for equal patterns only
};

struct Nodes;

/// Immutable: any thread may read it.
class Grammar {
  public:
    /// Refused for what is not supported. Time and memory are bounded for any pattern.
    explicit Grammar(const Pattern& pattern);
    ~Grammar();
    const Nodes& nodes() const { return *nodes_; }

  private:
    std::unique_ptr<const Nodes> nodes_;
};

}  // namespace unsloth::grammar
