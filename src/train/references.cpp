#include "train/references.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/progress.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

/// Merges the values of all ranks, each with zeros where it has none, on every rank.
void share(comm::Group* group, at::Device device, const at::Tensor& values) {
    if (group == nullptr) return;
    const at::Tensor all = values.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    group->all_reduce(all, "the reference's log-probabilities");
    values.copy_(all);
    group->check();
}

/// Fills `references` where rank 0 has kept values.
bool find_kept(objective::References& references, at::Device device, comm::Group* group, const ReferenceCache& cache) {
    const at::Tensor& values = references.values();
    const at::Tensor found = at::zeros({1}, at::kFloat);
    if (group == nullptr || group->rank() == 0)
        if (const auto kept = data::kept_values(cache.files, cache.key, static_cast<std::size_t>(values.numel()))) {
            std::copy(kept->begin(), kept->end(), values.mutable_data_ptr<float>());
            found.fill_(1);
        }
    share(group, device, found);
    if (found.item<float>() == 0) return false;
    share(group, device, values);
    return true;
}

}  // namespace

objective::References score_references(model::Model& model, at::Device device, const data::EvalLoader& rows,
                                       model::PolicyScope scope, comm::Group* group, ReferenceCache cache) {
    int64_t ids = 0;
    for (int64_t i = 0; i < rows.dataset().size(); ++i) ids = std::max(ids, rows.dataset().row(i) + 1);
    objective::References references(ids);
    if (!cache.files.folder.empty()) {
        ContentHash hash;
        hash.add_field(cache.key);
        hash.add_field(rows.dataset().fingerprint());
        cache.key = hash.hex();
        if (find_kept(references, device, group, cache)) return references;
    }
    Progress progress("scoring the reference", rows.most_batches());
    for (int64_t i = 0; i < rows.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group, device, "the reference's log-probabilities"); signal != 0)
            throw Interrupted(signal, "stopped while the reference was scored; nothing was trained");
        progress.add();
        if (i >= rows.batches()) {  // ranks ask, and walk, together, also those that have a batch less
            model.score({}, {}, scope);
            continue;
        }
        const data::Batch batch = rows.batch(i);
        const at::Tensor losses = model.score(batch, {}, scope);
        if (model.speaks()) references.set(batch, losses);  // of ranks that share the model
    }
    share(group, device, references.values());
    if (group == nullptr || group->rank() == 0)
        data::keep_values(
            cache.files, cache.key,
            {references.values().const_data_ptr<float>(), static_cast<std::size_t>(references.values().numel())});
    return references;
}

}  // namespace unsloth::train
