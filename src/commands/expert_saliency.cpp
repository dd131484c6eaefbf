// Legend: E experts, k choices of each of T tokens, n = T k rows of outputs.
#include "commands/expert_saliency.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "commands/rows_in_fp64.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/pruning.h"
#include "unsloth/train/run_record.h"

namespace unsloth::commands {
namespace {

using Experts = engine_api::Calibration::Experts;

/// L2 norms of rows, on the host.
at::Tensor norms_of(const at::Tensor& outputs_nD) {
    const at::Tensor norms_n = at::empty({outputs_nD.size(0)}, at::kDouble);
    each_rows(outputs_nD, [&](const at::Tensor& rows, int64_t begin) {
        norms_n.narrow(0, begin, rows.size(0)).copy_(at::linalg_vector_norm(rows, 2, {1}));
    });
    return norms_n;
}

/// Sums over the tokens of one layer's experts.
class ExpertSums {
  public:
    explicit ExpertSums(int64_t experts) : sums_(static_cast<std::size_t>(experts)), tokens_(sums_.size()) {}

    /// Adds on the host, in the order of the tokens: the same sums in each run.
    void add(const model::ExpertOutputs& outputs) {
        const at::Tensor norms_n = norms_of(outputs.outputs_nD), ids_Tk = outputs.ids_Tk.cpu(),
                         weights_Tk = outputs.weights_Tk.cpu(), places_Tk = outputs.places_Tk.cpu();
        const auto* const norms = norms_n.const_data_ptr<double>();
        const auto* const ids = ids_Tk.const_data_ptr<int32_t>();
        const auto* const weights = weights_Tk.const_data_ptr<float>();
        const auto* const places = places_Tk.const_data_ptr<int32_t>();
        for (int64_t i = 0; i < ids_Tk.numel(); ++i) {
            const auto expert = static_cast<std::size_t>(ids[i]);
            sums_[expert] += static_cast<double>(weights[i]) * norms[places[i]];
            ++tokens_[expert];
        }
    }

    Experts choose(int64_t remain, int layer) const {
        Experts found{.saliency = sums_, .tokens = tokens_, .kept = {}};
        std::vector<double> ranks;
        for (std::size_t expert = 0; expert < sums_.size(); ++expert) {
            if (!std::isfinite(sums_[expert]))
                throw Error("numerics.not-finite",
                            cat("layer ", layer, ": the outputs of expert ", expert, " are not finite"),
                            session::overflow_advice);
            if (tokens_[expert] > 0) found.saliency[expert] /= static_cast<double>(tokens_[expert]);
            ranks.push_back(tokens_[expert] > 0 ? found.saliency[expert] : -1);
        }
        found.kept = formats::places_of_largest(ranks, remain);
        return found;
    }

  private:
    std::vector<double> sums_;
    std::vector<int64_t> tokens_;
};

/// What is added to a router's logits so that it chooses among the kept experts.
at::Tensor allow_kept(const Experts& experts, at::Device device) {
    at::Tensor added_E = at::full({static_cast<int64_t>(experts.tokens.size())},
                                  -std::numeric_limits<double>::infinity(), at::TensorOptions(at::kFloat));
    for (const int64_t expert : experts.kept) added_E[expert].zero_();
    return added_E.to(device);
}

}  // namespace

std::vector<Experts> choose_experts(model::Model& model, const CalibrationRows& rows, int64_t remain) {
    const auto start = std::chrono::steady_clock::now();
    const spec::ModelSpec& spec = model.spec();
    std::vector<Experts> all(static_cast<std::size_t>(spec.num_layers));
    std::vector<at::Tensor> streams(rows.batches());  // before the layer, in host memory
    model::ExpertsProbe& probe = model.experts_probe;
    probe.added_to_logits.resize(all.size());
    for (int layer = 0; layer < static_cast<int>(spec.num_layers); ++layer) {
        if (spec.has_experts(layer)) {
            ExpertSums sums(spec.experts->count);
            probe.see = [&](int, const model::ExpertOutputs& outputs) { sums.add(outputs); };
            at::Device device = at::kCPU;
            for (std::size_t i = 0; i < streams.size(); ++i)
                device = model.forward_layer(rows.batch(i), layer, streams[i]).device();
            probe.see = nullptr;
            const auto place = static_cast<std::size_t>(layer);
            all[place] = sums.choose(remain, layer);
            probe.added_to_logits[place] = allow_kept(all[place], device);
            log::debug("layer ", layer, ": experts chosen, ", train::seconds_since(start), " s");
        }
        if (layer + 1 == spec.num_layers) break;  // what it gives is measured nowhere
        for (std::size_t i = 0; i < streams.size(); ++i)
            streams[i] = model.forward_layer(rows.batch(i), layer, streams[i])
                             .to(at::kCPU, model.dtype(), /*non_blocking=*/false, /*copy=*/true);
    }
    probe = {};
    log::info("experts of ", spec.num_layers, " layers measured in ", train::seconds_since(start), " s");
    return all;
}

}  // namespace unsloth::commands
