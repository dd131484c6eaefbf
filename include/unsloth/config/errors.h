// The errors of a configuration, gathered so that a user reads all of them at once.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::config {

/// Names of options ("lora.r") or of whole sections ("lora").
using Names = std::vector<std::string>;

class Errors {
  public:
    /// Keeps an error that leaves open what `doubtful` was meant to be.
    void add(const Error& error, const Names& doubtful = {});

    /// Runs `work` and keeps the usage Error that it throws.
    template <class Work>
    void collect(const Names& doubtful, const Work& work) {
        try {
            work();
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::usage) throw;
            add(error, doubtful);
        }
    }

    /// The same for a check of what `options` say together. It is skipped when one of them is in doubt: what it would
    /// find may follow from an error that is reported already.
    template <class Work>
    void check(const Names& options, const Work& work) {
        if (!in_doubt(options)) collect({}, work);
    }

    /// Throws a usage Error that says all that was kept; returns when there is nothing.
    void raise() const;

  private:
    bool in_doubt(const Names& options) const;

    std::vector<Error> errors_;
    std::set<std::string> doubtful_;
};

}  // namespace unsloth::config
