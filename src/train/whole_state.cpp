#include "train/whole_state.h"

#include <algorithm>
#include <optional>

#include "unsloth/core/error.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth::train {

void WholeState::collect(const To& to, bool values_only) const {
    constexpr int64_t most_bytes = 16 << 20;  // at a time, through the device of the first rank
    const spec::Stage& stage = model_.pipeline().stage();
    const weights::ParameterTable& all = model_.trained_by_all();
    const weights::Parameters& parameters = *model_.parameters();
    comm::Communicator& ranks = *model_.pipeline().mesh()->pp();
    for (const SavedTensor& saved : saved_tensors) {
        const bool values = saved.member == &ops::AdamwState::params_P;
        if (values_only && !values) continue;
        const at::Tensor own = values ? parameters.values_P : parameters.state().*saved.member;
        const int64_t most = most_bytes / own.element_size();
        const std::string what = cat("what all stages train: ", saved.name);
        std::optional<at::Tensor> whole;  // asked for where some rank has such a tensor
        at::Tensor through;
        for (int rank = 0; rank < stage.size; ++rank) {
            if (!stage.first() && rank != stage.rank) continue;
            spec::Stage of_rank = stage;
            of_rank.rank = rank;
            const bool tied = model_.spec().tie_word_embeddings && model_.parts().network.full_finetuning;
            for (const weights::CommonStretch& stretch :
                 weights::Parameters::common(all, all.of(of_rank, tied), optimizer_, saved.member))
                for (int64_t at = 0; at < stretch.elements; at += most) {
                    const int64_t count = std::min(most, stretch.elements - at);
                    if (!stage.first()) {
                        ranks.send(own.narrow(0, stretch.own + at, count), 0, what);
                        continue;
                    }
                    if (!whole) whole = to(saved.name);
                    const at::Tensor into = whole->defined() ? whole->narrow(0, stretch.all + at, count) : at::Tensor();
                    if (rank == 0) {
                        if (into.defined()) into.copy_(own.narrow(0, stretch.own + at, count), /*non_blocking=*/true);
                    } else {
                        if (!through.defined()) through = at::empty({most}, own.options());
                        ranks.receive(through.narrow(0, 0, count), rank, what);
                        if (into.defined()) into.copy_(through.narrow(0, 0, count), /*non_blocking=*/true);
                    }
                }
        }
    }
}

}  // namespace unsloth::train
