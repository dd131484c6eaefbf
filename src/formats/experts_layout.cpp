#include "formats/experts_layout.h"

#include <functional>
#include <map>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::formats {

int64_t ExpertsPart::values_of_each() const {
    return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

std::optional<ExpertsPart> experts_part(const spec::ModelSpec& spec, const spec::TensorRule& rule) {
    if (rule.id.expert < 0 || !spec.experts->transposed) return std::nullopt;
    const bool down = rule.id.projection == spec::Projection::down, up = rule.id.projection == spec::Projection::up;
    const bool bias = rule.role == spec::TensorRole::bias;
    const int64_t parts = down ? 1 : 2, columns = parts * spec.out_features(rule.id);
    ExpertsPart part;
    part.name = cat(rule.hf_name.substr(0, rule.hf_name.find(spec::path_of(rule.id))), "mlp.experts.",
                    down ? "down_proj" : "gate_up_proj", bias ? "_bias" : "");
    part.shape = {spec.experts->count};
    if (!bias) part.shape.push_back(spec.in_features(rule.id));
    part.shape.push_back(columns);
    part.first = up ? 1 : 0;
    part.row_stride = parts;
    part.col_stride = bias ? parts : columns;  // a bias is one row
    part.last = down || up;
    return part;
}

std::vector<StoredTensor> stored_tensors(const spec::ModelSpec& spec, const std::vector<spec::TensorRule>& table) {
    std::vector<StoredTensor> stored;
    std::map<std::string, std::size_t> of_experts;
    for (std::size_t i = 0; i < table.size(); ++i) {
        const auto part = experts_part(spec, table[i]);
        if (!part) {
            stored.push_back({table[i].hf_name, table[i].shape, {i}});
            continue;
        }
        const auto [at, fresh] = of_experts.try_emplace(part->name, stored.size());
        if (fresh) stored.push_back({part->name, part->shape, {}});
        stored[at->second].rules.push_back(i);
    }
    return stored;
}

void refuse_quantised_experts(const spec::ModelSpec& spec) {
    throw Error("model.unsupported",
                cat("a ", spec.model_type,
                    " folder has one tensor for all experts of a layer, which this program does not write in 4 or 8 "
                    "bit"),
                "Write bf16, and quantise while loading: model.load_in_4bit.");
}

}  // namespace unsloth::formats
