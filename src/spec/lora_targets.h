// How PEFT's target_modules, rank_pattern and alpha_pattern choose modules by their paths.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/module_pattern.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/lora_spec.h"

namespace unsloth::spec {

/// "q_proj, k_proj, …": of the model's linears.
inline std::string names_of(const ModelSpec& model) {
    std::string names;
    for (const Projection p : model.linears) names += cat(names.empty() ? "" : ", ", name_of(p));
    return names;
}

/// rank_pattern or alpha_pattern: the value of the first key that matches a module path.
template <class Value>
class Patterns {
  public:
    Patterns(const std::string& option, const std::vector<std::pair<std::string, Value>>& entries) {
        for (const auto& [key, value] : entries)
            rules_.emplace_back(ModulePattern(R"((.*\.)?()" + key + ")$", option, key), value);
    }

    Value value_for(const std::string& module, Value otherwise) const {
        const std::size_t first = first_match(module, 0);
        return first < rules_.size() ? rules_[first].second : otherwise;
    }

    /// The first rule from `from` on that matches; their number where none does.
    std::size_t first_match(const std::string& module, std::size_t from) const {
        while (from < rules_.size() && !rules_[from].first.matches(module)) ++from;
        return from;
    }

  private:
    std::vector<std::pair<ModulePattern, Value>> rules_;
};

/// Which modules PEFT would give an adapter: a listed name matches a whole path, or the end of one at a dot.
class Targets {
  public:
    Targets(const LoraSpec& lora, const ModelSpec& model)
        : lora_(lora), model_(model), used_(lora.target_modules.size(), false) {
        if (lora.target_is_regex) {
            if (lora.target_modules.size() != 1 || !lora.layers_to_transform.empty())
                throw Error(
                    "option.conflict",
                    "lora.target_modules: a regular expression is given alone, without lora.layers_to_transform");
            expression_.emplace(lora.target_modules[0], "lora.target_modules", lora.target_modules[0]);
        }
    }

    bool contains(const std::string& module, int64_t layer) {
        if (lora_.target_is_regex) {
            const bool found = expression_->matches(module);
            if (found) used_[0] = true;
            return found;
        }
        bool found = false;
        for (std::size_t i = 0; i < lora_.target_modules.size(); ++i) {
            const std::string& target = lora_.target_modules[i];
            if (module == target) {  // a full path is taken whatever layers_to_transform says
                used_[i] = true;
                found = true;
            } else if (module.ends_with("." + target)) {
                used_[i] = true;
                found = found || is_transformed(layer);
            }
        }
        return found;
    }

    void refuse_unused() const {
        for (std::size_t i = 0; i < used_.size(); ++i) {
            if (used_[i]) continue;
            throw Error("adapter.no-such-target",
                        cat("lora.target_modules: '", lora_.target_modules[i], "' matches no module of this model"),
                        cat("Targets are ", names_of(model_), "."));
        }
    }

  private:
    bool is_transformed(int64_t layer) const {
        const auto& layers = lora_.layers_to_transform;
        return layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
    }

    const LoraSpec& lora_;
    const ModelSpec& model_;
    std::vector<bool> used_;
    std::optional<ModulePattern> expression_;  ///< in the place of a list
};

inline LoraModule make_module(const LoraSpec& lora, int64_t r, double alpha, const std::string& path) {
    if (r < 1)
        throw Error("option.out-of-range",
                    cat("lora.rank_pattern gives ", path, " the rank ", r, "; a rank is at least 1"));
    if (!std::isfinite(alpha))
        throw Error("option.out-of-range", cat("lora.alpha_pattern gives ", path, " an alpha that is not finite"));
    const auto rank = static_cast<double>(r);
    return {r, alpha, alpha / (lora.use_rslora ? std::sqrt(rank) : rank), lora.use_dora};
}

}  // namespace unsloth::spec
