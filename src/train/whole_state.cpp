#include "train/whole_state.h"

#include <algorithm>
#include <optional>

#include "unsloth/core/error.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth::train {

using weights::ParameterSlice, weights::Parameters, weights::ParameterTable;

void WholeState::collect(const To& to, bool values_only) const {
    constexpr int64_t most_bytes = 16 << 20;  // at a time, through the device of the first rank
    const spec::Stage& stage = model_.pipeline().stage();
    const ParameterTable& all = model_.trained_by_all();
    const Parameters& parameters = *model_.parameters();
    const bool tied = model_.spec().tie_word_embeddings && model_.parts().network.full_finetuning;
    const int sharers = parameters.share().size, of_stage = group_.size() / stage.size;
    const bool splits_values = parameters.holding().has_copies();
    for (const SavedTensor& saved : saved_tensors) {
        const bool values = saved.member == &ops::AdamwState::params_P;
        if (values_only && !values) continue;
        const at::Tensor own = values ? parameters.values_P : parameters.state().*saved.member;
        const int64_t most = most_bytes / own.element_size();
        const std::string what = cat("what all stages train: ", saved.name);
        std::optional<at::Tensor> whole;  // asked for where some rank has such a tensor
        at::Tensor through;
        // A piece that `from` has, in its own tensor from `there` on.
        const auto pass_on = [&](int from, int64_t there, int64_t in_all, int64_t count) {
            if (group_.rank() != 0) {
                if (group_.rank() == from) group_.all().send(own.narrow(0, there, count).to(device_), 0, what);
                return;
            }
            if (!whole) whole = to(saved.name);
            const at::Tensor into = whole->defined() ? whole->narrow(0, in_all, count) : at::Tensor();
            if (from == 0) {
                if (into.defined()) into.copy_(own.narrow(0, there, count), /*non_blocking=*/true);
            } else {
                if (!through.defined()) through = at::empty({most}, own.options().device(device_));
                group_.all().receive(through.narrow(0, 0, count), from, what);
                if (into.defined()) into.copy_(through.narrow(0, 0, count), /*non_blocking=*/true);
            }
        };
        for (int number = 0; number < stage.size; ++number) {
            spec::Stage other = stage;
            other.rank = number;
            const ParameterTable table = all.of(other, tied);
            const std::vector<weights::CommonStretch> stretches =
                Parameters::common(all, table, optimizer_, saved.member);
            const bool one_has_all = values && !splits_values;
            for (int sharer = 0; sharer < (one_has_all ? 1 : sharers); ++sharer) {
                const ParameterSlice has = Parameters::state_slice(
                    table, optimizer_, one_has_all ? weights::Share{} : weights::Share{sharer, sharers}, saved.member);
                for (const weights::CommonStretch& stretch : stretches) {
                    const ParameterSlice part = has.with({stretch.own, stretch.own + stretch.elements});
                    for (int64_t at = part.begin; at < part.end; at += most)
                        pass_on(number * of_stage + sharer, at - has.begin, stretch.all + at - stretch.own,
                                std::min(most, part.end - at));
                }
            }
        }
    }
}

}  // namespace unsloth::train
