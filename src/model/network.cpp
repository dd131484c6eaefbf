#include "unsloth/model/network.h"

#include "unsloth/ops/rows.h"

namespace unsloth::model {

const weights::Parameter* Network::trained(spec::TensorRole role) const {
    if (parameters == nullptr) return nullptr;
    const weights::ParameterTable& table = parameters->table();
    const weights::Parameter* found = table.find(role, {}, weights::Parameter::Kind::base);
    // A tied model that is trained as a whole has one matrix at both ends.
    if (found == nullptr && role == spec::TensorRole::lm_head && full_finetuning)
        found = table.find(spec::TensorRole::embed_tokens, {}, weights::Parameter::Kind::base);
    return found;
}

void Network::refresh(ops::Context& ctx) {
    weight_provider->refresh(ctx);
    if (vision && parameters != nullptr) vision->refresh(*parameters);
    if (parameters == nullptr || embedding_and_head_version == parameters->version) return;
    const auto refresh_vector = [&](spec::TensorRole role, at::Tensor& copy) {
        if (const weights::Parameter* master = trained(role)) copy = parameters->value(*master);
    };
    const auto refresh_copy = [&](spec::TensorRole role, weights::StoredWeight& weight) {
        const weights::Parameter* master = trained(role);
        if (master == nullptr || (role == spec::TensorRole::lm_head && !pp.stage().last())) return;
        at::Tensor& copy = std::get<at::Tensor>(weight);  // trained values are not held in another type
        const at::Tensor value = parameters->value(*master);
        const auto* const embedding = std::get_if<at::Tensor>(&embedding_and_head.embed_VD);
        const bool tied = role == spec::TensorRole::lm_head && embedding != nullptr && copy.is_same(*embedding);
        if (copy.scalar_type() == value.scalar_type()) {
            copy = value;  // it is read where it is
        } else if (!tied) {
            ops::copy_2d(ctx, value, copy);
        }
    };
    refresh_copy(spec::TensorRole::embed_tokens, embedding_and_head.embed_VD);
    refresh_copy(spec::TensorRole::lm_head, embedding_and_head.lm_head_VD);
    refresh_vector(spec::TensorRole::final_norm, embedding_and_head.final_norm_D);
    embedding_and_head_version = parameters->version;
}

}  // namespace unsloth::model
