// model.precision: the type that each weight matrix of a model is held in, by the names of modules.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/spec/tensor_table.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::spec {

class PrecisionMap {
  public:
    PrecisionMap() = default;
    /// {name, type}: default (the layers' projections), model.embed_tokens, lm_head, model.layers, model.layers.N or
    /// N-M, and parts of such layers (.self_attn, .mlp, .mlp.up_proj, …). usage Error, with the nearest known ones, for
    /// another name or type, and for a name that is there twice.
    explicit PrecisionMap(const std::vector<std::pair<std::string, std::string>>& entries);

    bool empty() const { return entries_.empty(); }
    /// usage Error for layers that the model has not, for a matrix that two ranges name alike, and for tied embeddings
    /// in two types.
    void check(const ModelSpec& model) const;
    /// What the longest name that fits this tensor says; `automatic` where none does. Of tied embeddings lm_head is a
    /// name, too.
    WeightType of(const TensorRule& rule, const ModelSpec& model) const;
    WeightType of_default() const;
    bool names_embeddings() const;
    bool names_head() const;
    bool operator==(const PrecisionMap&) const = default;

  private:
    struct Entry {
        enum class Part : uint8_t { all, layers, embedding, head } part = Part::all;
        std::string key;
        int64_t first = 0, last = INT64_MAX;  ///< of layers
        std::string below;                    ///< "self_attn", "mlp.up_proj", …; empty: the whole layer
        WeightType type = WeightType::automatic;
        int rank(const TensorRule& rule, bool tied) const;
        bool operator==(const Entry&) const = default;
    };
    static Entry read_key(const std::string& key);
    const Entry* entry_of(const TensorRule& rule, bool tied) const;

    std::vector<Entry> entries_;
};

}  // namespace unsloth::spec
