// What layers, neurons and inputs of a model are worth on a file of rows.
//
// Sources: Men et al., "ShortGPT" (arXiv 2403.03853), section 3.2, for block influence; Muralidharan et al., "Compact
// Language Models via Pruning and Knowledge Distillation" (Minitron, arXiv 2407.14679), section 2.2, for neurons by
// their activations, with its aggregates (sequence: mean, batch: L2); Sun et al., Wanda (arXiv 2306.11695), for inputs'
// norms.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "commands/calibration_memory.h"
#include "commands/expert_saliency.h"
#include "commands/rows_in_fp64.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/data/batch.h"
#include "unsloth/memory/plan.h"
#include "unsloth/train/run_record.h"

namespace unsloth::commands {
namespace {

using engine_api::Calibration;

/// Sees the modules of each pass, and adds up what was asked for on the device.
class ModuleSums {
  public:
    ModuleSums(const engine_api::CalibrationRequest& request, const spec::ModelSpec& spec)
        : request_(request),
          spec_(spec),
          cosines_(static_cast<std::size_t>(spec.num_layers)),
          neurons_(cosines_.size()),
          inputs_(cosines_.size()) {}

    void begin(const data::Batch& batch) {
        batch_ = &batch;
        tokens_ += batch.tokens();
        forget_rows();
    }

    void see(const std::string& module, const at::Tensor& output) {
        if (module == "model.embed_tokens") below_ = output;
        constexpr std::string_view prefix = "model.layers.";
        if (!module.starts_with(prefix)) return;
        std::size_t layer = 0;
        const char* const end = module.data() + module.size();
        const std::string_view rest(std::from_chars(module.data() + prefix.size(), end, layer).ptr, end);
        if (rest.empty()) return see_layer(layer, output);
        const std::string_view name = rest.substr(1);
        if (request_.neurons && name == model::down_input) see_neurons(output);
        if (!request_.inputs) return;
        if (name == model::input_name(spec_, model::Group::qkv)) see_input(layer, engine_api::LinearInput::qkv, output);
        if (name == model::o_input) see_input(layer, engine_api::LinearInput::o, output);
        if (name == model::input_name(spec_, model::Group::gate_up))
            see_input(layer, engine_api::LinearInput::gate_up, output);
        if (name == model::down_input) see_input(layer, engine_api::LinearInput::down, output);
    }

    void report(Calibration& to) const {
        for (std::size_t layer = 0; layer < cosines_.size(); ++layer) {
            if (request_.influence)
                to.influence.push_back(1 - cosines_[layer].item<double>() / static_cast<double>(tokens_));
            if (request_.neurons) to.neurons.push_back(values_of<double>(neurons_[layer].sqrt()));
            if (!request_.inputs) continue;
            auto& norms = to.inputs.emplace_back();
            for (std::size_t input = 0; input < engine_api::linear_inputs; ++input)
                norms[input] = values_of<float>(inputs_[layer][input].sqrt().to(at::kFloat));
        }
    }

  private:
    static void add(at::Tensor& sum, const at::Tensor& term) { sum.defined() ? sum += term : sum = term.clone(); }
    template <class Value>
    static std::vector<Value> values_of(const at::Tensor& sums) {
        const at::Tensor here = sums.cpu().contiguous();
        return {here.data_ptr<Value>(), here.data_ptr<Value>() + here.numel()};
    }

    void forget_rows() { row_sums_.reset(), seen_rows_ = 0; }

    /// Two buffers take turns as layers' inputs and outputs, so that below_ still holds the input.
    void see_layer(std::size_t layer, const at::Tensor& output) {
        UNSLOTH_CHECK(below_.data_ptr() != output.data_ptr(), "layer ", layer, " overwrote its input");
        if (request_.influence)
            each_rows(output, [&](const at::Tensor& y_TD, int64_t begin) {
                const at::Tensor x_TD = below_.narrow(0, begin, y_TD.size(0)).to(at::kDouble);
                const at::Tensor norms_T = at::linalg_vector_norm(x_TD, 2, {1}) * at::linalg_vector_norm(y_TD, 2, {1});
                add(cosines_[layer], (x_TD.mul_(y_TD).sum(1) / norms_T.clamp_min(1e-30)).sum());
            });
        if (request_.neurons) {
            add(neurons_[layer], row_sums_.square_().sum(0));
            forget_rows();
        }
        below_ = output;
    }

    /// Each row's mean so far of |activation|; the pass brings some tokens at a time.
    void see_neurons(const at::Tensor& a_TF) {
        const std::vector<int32_t>& starts = batch_->segments;
        const auto rows = static_cast<int64_t>(starts.size()) - 1;
        if (!row_sums_.defined())
            row_sums_ = at::zeros({rows, a_TF.size(1)}, at::TensorOptions(at::kDouble).device(a_TF.device()));
        each_rows(a_TF, [&](const at::Tensor& some, int64_t begin) {
            const int64_t first = seen_rows_ + begin, last = first + some.size(0);
            some.abs_();
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t start = starts[static_cast<std::size_t>(row)],
                              stop = starts[static_cast<std::size_t>(row) + 1];
                const int64_t from = std::max(first, start), to = std::min(last, stop);
                if (from >= to) continue;
                row_sums_[row] += some.narrow(0, from - first, to - from).sum(0) / static_cast<double>(stop - start);
            }
        });
        seen_rows_ += a_TF.size(0);
    }

    void see_input(std::size_t layer, engine_api::LinearInput input, const at::Tensor& x_TC) {
        each_rows(x_TC, [&](const at::Tensor& some, int64_t) {
            add(inputs_[layer][static_cast<std::size_t>(input)], some.square_().sum(0));
        });
    }

    const engine_api::CalibrationRequest& request_;
    const spec::ModelSpec& spec_;
    const data::Batch* batch_ = nullptr;
    int64_t tokens_ = 0, seen_rows_ = 0;  ///< the latter: tokens of this layer's MLP in this pass
    at::Tensor below_, row_sums_;         ///< [T, D] and [rows, F]
    std::vector<at::Tensor> cosines_;     ///< sums over tokens
    std::vector<at::Tensor> neurons_;     ///< [F], squares
    std::vector<std::array<at::Tensor, engine_api::linear_inputs>> inputs_;  ///< squares of columns
};

/// Greedy: again and again the layer without which the loss is lowest.
void scan(model::Model& model, const CalibrationRows& rows, int64_t removals, Calibration& to) {
    const int64_t layers = model.spec().num_layers;
    log::info("scan: ", removals, " layers, ", removals * (2 * layers - removals + 1) / 2, " losses over ",
              rows.rows().stats().tokens, " tokens each");
    model.left_out.assign(static_cast<std::size_t>(layers), false);
    for (int64_t k = 0; k < removals; ++k) {
        const auto start = std::chrono::steady_clock::now();
        Calibration::Removal removal{-1, std::numeric_limits<double>::infinity(), {}};
        for (int64_t layer = 0; layer < layers; ++layer) {
            if (model.left_out[static_cast<std::size_t>(layer)]) continue;
            model.left_out[static_cast<std::size_t>(layer)] = true;
            const double loss = rows.loss(model, [](const data::Batch&) {});
            model.left_out[static_cast<std::size_t>(layer)] = false;
            removal.candidates.emplace_back(layer, loss);
            if (loss < removal.loss) removal.layer = layer, removal.loss = loss;
        }
        if (removal.layer < 0)
            throw Error("numerics.not-finite", "scan: without any one of the layers the loss is not finite",
                        session::overflow_advice);
        model.left_out[static_cast<std::size_t>(removal.layer)] = true;
        log::info("scan: layer ", removal.layer, " is removed, ", k + 1, " of ", removals, ", loss ", removal.loss,
                  ", ", train::seconds_since(start), " s");
        to.scan.push_back(std::move(removal));
    }
    model.left_out.clear();
}

/// All passes that were asked for.
void measure(model::Model& model, const CalibrationRows& rows, const engine_api::CalibrationRequest& request,
             Calibration& found) {
    found.rows = rows.rows().size(), found.tokens = rows.rows().stats().tokens;
    ModuleSums sums(request, model.spec());
    const bool watched = request.influence || request.neurons || request.inputs;
    if (watched)
        model.on_module = [&](const std::string& module, const at::Tensor& output) { sums.see(module, output); };
    const auto start = std::chrono::steady_clock::now();
    found.loss = rows.loss(model, [&](const data::Batch& batch) { sums.begin(batch); });
    model.on_module = nullptr;
    if (!std::isfinite(found.loss))
        throw Error("numerics.not-finite", "the rows' loss is not finite", session::overflow_advice);
    if (watched) sums.report(found);
    const double seconds = train::seconds_since(start);
    log::info(found.rows, " rows, ", found.tokens, " tokens in ", rows.batches(), " batches: loss ", found.loss, ", ",
              seconds, " s, ", std::llround(static_cast<double>(found.tokens) / seconds), " tokens/s");
    const int64_t layers = model.spec().num_layers, removals = request.scan_layers;
    if (removals > 0) scan(model, rows, removals, found);
    if (request.experts > 0) found.experts = choose_experts(model, rows, request.experts);
    const int64_t passes = 1 + removals * (2 * layers - removals + 1) / 2 + (request.experts > 0 ? experts_passes : 0);
    found.passed_tokens = passes * found.tokens;
}

}  // namespace

Calibration calibrate(const config::LoadedConfig& given, const engine_api::CalibrationRequest& request) {
    const auto start = std::chrono::steady_clock::now();
    config::LoadedConfig loaded = given;
    loaded.config.data.train_file = request.file;
    loaded.config.data.train_split.clear();
    loaded.config.training.objective = config::Objective::sft;
    const session::OpenedModel opened = session::open_model(loaded.config);
    (void)session::settle_length(loaded.config.model, opened.file->spec);
    const CalibrationRows rows(loaded.config, opened);
    const MeasuringMemory memory = measuring_memory(request, opened.file->spec, rows, loaded.config.model.dtype);
    const session::PassesPlan planned = plan_measuring(loaded, opened, rows, memory);
    tell_plan(planned, memory, rows);
    memory::reset_peak(planned.plan.request().device);
    const session::LoadedModel loaded_model = session::load(loaded, opened, planned);
    model::Model& model = *loaded_model.model;
    Calibration found;
    found.read_seconds = train::seconds_since(start);
    measure(model, rows, request, found);
    found.pass_seconds = train::seconds_since(start) - found.read_seconds;
    found.planned_bytes = planned_bytes(planned, memory);
    found.taken_bytes = tell_use(planned, memory);
    return found;
}

}  // namespace unsloth::commands
