// Several findings in one error: the first few of each kind, and how many there are.
#pragma once

#include <string>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::formats {

class ProblemList {
  public:
    void add(const std::string& problem) {
        if (++count_ <= shown) text_.append("\n  ").append(problem);
    }
    bool empty() const { return count_ == 0; }
    /// "HEADLINE (7 tensors):" and the first five, one a line.
    std::string text(const std::string& headline) const {
        return cat(headline, " (", count_, count_ == 1 ? " tensor" : " tensors",
                   count_ > shown ? ", the first five" : "", "):", text_);
    }

  private:
    static constexpr int shown = 5;
    int count_ = 0;
    std::string text_;
};

/// Collects "missing", "unknown" and "unusable" tensors, and throws one input Error for all of them.
struct TensorProblems {
    ProblemList missing, unknown, unusable;

    bool empty() const { return missing.empty() && unknown.empty() && unusable.empty(); }
    void throw_if_any(const std::string& source, const std::string& advice) const {
        if (empty()) return;
        const auto part = [](const char* headline, const ProblemList& list) {
            return list.empty() ? std::string() : cat("\n", list.text(headline));
        };
        throw Error("checkpoint.wrong-tensors",
                    cat(source, ":", part("tensors of a wrong type or shape", unusable),
                        part("missing tensors", missing), part("unknown tensors", unknown)),
                    advice);
    }
};

}  // namespace unsloth::formats
