#include "train/references.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/progress.h"
#include "unsloth/train/step.h"

namespace unsloth::train {

objective::References score_references(model::Model& model, at::Device device, const data::EvalLoader& rows,
                                       model::PolicyScope scope, comm::Group* group) {
    int64_t ids = 0;
    for (int64_t i = 0; i < rows.dataset().size(); ++i) ids = std::max(ids, rows.dataset().row(i) + 1);
    objective::References references(ids);
    Progress progress("scoring the reference", rows.most_batches());
    for (int64_t i = 0; i < rows.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group, device, "the reference's log-probabilities"); signal != 0)
            throw Interrupted(signal, "stopped while the reference was scored; nothing was trained");
        progress.add();
        if (i >= rows.batches()) continue;  // ranks ask together, also those that have a batch less
        const data::Batch batch = rows.batch(i);
        references.set(batch, model.score(batch, {}, scope));
    }
    if (group != nullptr) {
        const at::Tensor all = references.values().to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
        group->all_reduce(all, "the reference's log-probabilities");
        references.values().copy_(all);
        group->check();
    }
    return references;
}

}  // namespace unsloth::train
