// The functions that helpers have: which helper has which, and the calls for a batch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reward/keeper.h"
#include "reward/options.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {

/// How long one call with this number of rows may take.
Limits::Time timeout_of(const Entry& entry, const Limits& limits, std::size_t rows);

/// What became of the rows [first, last) of a function.
struct HostedPart {
    std::size_t function, first, last;
    Outcome outcome;
};

class Hosted {
  public:
    /// Of the entries, those that are Python functions or commands. Both arguments outlive the object.
    Hosted(const std::vector<Entry>& entries, const Settings& settings);

    /// Starts the helpers and loads the functions, if there are any. usage Error.
    void start();
    bool started() const { return plans_.empty() || keeper_ != nullptr; }
    /// After start(): columns without which a function cannot be called.
    const std::map<std::size_t, std::vector<std::string>>& required() const { return required_; }
    std::vector<HostedPart> score(const Batch& batch);
    /// Memory of all helpers; nullopt: there are none.
    std::optional<double> resident_gib();

  private:
    struct Function {
        std::vector<std::size_t> helpers;  ///< one a worker
        bool takes_ids = true, is_async = false;
    };

    HelperPlan plan_of(const std::vector<std::size_t>& functions) const;
    void read_ready(const std::vector<nlohmann::json>& ready);
    std::vector<std::size_t> cuts(std::size_t rows, int num_generations) const;
    Call call_of(const std::vector<std::size_t>& functions, std::size_t worker, std::size_t rows) const;

    const std::vector<Entry>& entries_;
    const Settings& settings_;
    std::map<std::size_t, Function> functions_;  ///< by entry
    std::map<std::size_t, std::vector<std::string>> required_;
    std::vector<HelperPlan> plans_;
    std::unique_ptr<Keeper> keeper_;
};

}  // namespace unsloth::reward
