#include "ops/experts_cpu.h"

#include <cmath>

#include "ops/cpu_rows.h"
#include "unsloth/core/error.h"

namespace unsloth::ops::cpu {
namespace {

const float* optional_floats(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
const int32_t* optional_ints(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<int32_t>() : nullptr;
}

/// NaN is the largest.
bool is_larger(float a, float b) {
    return std::isnan(a) ? !std::isnan(b) : a > b;
}

void choose(const float* logits, int64_t experts, int64_t choices, int32_t* ids) {
    std::vector<bool> taken(static_cast<std::size_t>(experts));
    for (int64_t j = 0; j < choices; ++j) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; ++e)
            if (!taken[static_cast<std::size_t>(e)] && (best < 0 || is_larger(logits[e], logits[best]))) best = e;
        taken[static_cast<std::size_t>(best)] = true;
        ids[j] = static_cast<int32_t>(best);
    }
}

/// The expert of ids[i]; CheckError outside 0 .. experts - 1.
int64_t expert_at(const int32_t* ids, int64_t i, int64_t experts) {
    UNSLOTH_CHECK(ids[i] >= 0 && ids[i] < experts, "expert ", ids[i], " at place ", i, " is outside 0 .. ",
                  experts - 1);
    return ids[i];
}

int64_t place_at(const int32_t* places, int64_t i, int64_t rows) {
    UNSLOTH_CHECK(places[i] >= 0 && places[i] < rows, "place ", places[i], " of choice ", i, " is outside 0 .. ",
                  rows - 1);
    return places[i];
}

}  // namespace

void route(const Route& args) {
    const Rows logits(args.logits_TE);
    const int64_t experts = logits.columns(), choices = args.ids_Tk.size(1);
    at::parallel_for(0, logits.rows(), grain_size(choices * experts), [&](int64_t begin, int64_t end) {
        std::vector<double> powers(static_cast<std::size_t>(experts));
        std::vector<float> probabilities(powers.size());
        for (int64_t t = begin; t < end; ++t) {
            const float* const row = logits.read(t, nullptr);
            int32_t* const ids = args.ids_Tk.mutable_data_ptr<int32_t>() + t * choices;
            float* const weights = args.weights_Tk.mutable_data_ptr<float>() + t * choices;
            choose(row, experts, choices, ids);
            double of_all = 0, of_chosen = 0;
            for (int64_t e = 0; e < experts; ++e) {
                powers[static_cast<std::size_t>(e)] =
                    std::exp(static_cast<double>(row[e]) - static_cast<double>(row[ids[0]]));
                of_all += powers[static_cast<std::size_t>(e)];
            }
            for (int64_t j = 0; j < choices; ++j) of_chosen += powers[static_cast<std::size_t>(ids[j])];
            const double sum = args.weights == spec::RouterWeights::of_all ? of_all : of_chosen;
            for (int64_t j = 0; j < choices; ++j)
                weights[j] = static_cast<float>(powers[static_cast<std::size_t>(ids[j])] / sum);
            if (!args.probabilities_TE.defined()) continue;
            for (std::size_t e = 0; e < powers.size(); ++e) probabilities[e] = static_cast<float>(powers[e] / of_all);
            Rows(args.probabilities_TE).write(t, probabilities.data());
        }
    });
}

void route_backward(const RouteBackward& args) {
    const Rows out(args.dlogits_TE);
    const int64_t experts = out.columns(), choices = args.ids_Tk.size(1);
    const float* const slopes = optional_floats(args.slopes_E);
    const int32_t* const counted = optional_ints(args.counted_T);
    const bool of_all = args.weights == spec::RouterWeights::of_all;
    at::parallel_for(0, out.rows(), grain_size(4 * experts), [&](int64_t begin, int64_t end) {
        std::vector<double> by_p(static_cast<std::size_t>(experts)), gradient(by_p.size());
        std::vector<double> dweights(static_cast<std::size_t>(choices));
        std::vector<float> rounded(by_p.size());
        for (int64_t t = begin; t < end; ++t) {
            const int32_t* const ids = args.ids_Tk.const_data_ptr<int32_t>() + t * choices;
            const float* const weights = args.weights_Tk.const_data_ptr<float>() + t * choices;
            const float* const given = args.dweights_Tk.const_data_ptr<float>() + t * choices;
            for (int64_t j = 0; j < choices; ++j) {
                double& dweight = dweights[static_cast<std::size_t>(j)];
                dweight = static_cast<double>(given[j]);
                const int64_t e = expert_at(ids, j, experts);
                if (args.dweights_TE.defined())
                    dweight += static_cast<double>(Rows(args.dweights_TE).read(t, nullptr)[e]);
            }
            const bool balanced = slopes != nullptr && (counted == nullptr || counted[t] != 0);
            for (std::size_t e = 0; e < by_p.size(); ++e) by_p[e] = balanced ? static_cast<double>(slopes[e]) : 0.0;
            std::fill(gradient.begin(), gradient.end(), 0.0);
            double mean = 0;
            for (int64_t j = 0; j < choices; ++j)
                mean += static_cast<double>(weights[j]) * dweights[static_cast<std::size_t>(j)];
            for (int64_t j = 0; j < choices; ++j) {
                const auto e = static_cast<std::size_t>(ids[j]);
                const double dweight = dweights[static_cast<std::size_t>(j)];
                if (of_all)
                    by_p[e] += dweight;
                else
                    gradient[e] = static_cast<double>(weights[j]) * (dweight - mean);
            }
            if (of_all || balanced) {
                const float* const p = Rows(args.probabilities_TE).read(t, nullptr);
                double sum = 0;
                for (std::size_t e = 0; e < by_p.size(); ++e) sum += static_cast<double>(p[e]) * by_p[e];
                for (std::size_t e = 0; e < by_p.size(); ++e)
                    gradient[e] += static_cast<double>(p[e]) * (by_p[e] - sum);
            }
            for (std::size_t e = 0; e < by_p.size(); ++e) rounded[e] = static_cast<float>(gradient[e]);
            out.write(t, rounded.data());
        }
    });
}

void order_by_expert(const at::Tensor& ids, const ExpertOrder& order) {
    const int64_t rows = ids.numel(), choices = ids.size(1), experts = order.ends_E.numel();
    const int32_t* const expert = ids.const_data_ptr<int32_t>();
    int32_t* const ends = order.ends_E.mutable_data_ptr<int32_t>();
    std::vector<int32_t> next(static_cast<std::size_t>(experts));
    for (int64_t i = 0; i < rows; ++i) ++next[static_cast<std::size_t>(expert_at(expert, i, experts))];
    int32_t end = 0;
    for (int64_t e = 0; e < experts; ++e) {
        const int32_t begin = end;
        ends[e] = end += std::exchange(next[static_cast<std::size_t>(e)], begin);
    }
    for (int64_t i = 0; i < rows; ++i) {
        const int32_t place = next[static_cast<std::size_t>(expert[i])]++;
        order.places_Tk.mutable_data_ptr<int32_t>()[i] = place;
        order.tokens_n.mutable_data_ptr<int32_t>()[place] = static_cast<int32_t>(i / choices);
    }
}

void combine(const Combine& args) {
    const Rows z(args.z_nD), y(args.y_TD), residual(args.residual_TD.defined() ? args.residual_TD : args.y_TD);
    const int64_t columns = y.columns(), choices = args.places_Tk.size(1);
    const int32_t* const places = args.places_Tk.const_data_ptr<int32_t>();
    const float* const weights = args.weights_Tk.const_data_ptr<float>();
    at::parallel_for(0, y.rows(), grain_size((choices + 1) * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(columns)), sum(scratch.size());
        for (int64_t t = begin; t < end; ++t) {
            std::fill(sum.begin(), sum.end(), 0.f);
            for (int64_t i = t * choices; i < (t + 1) * choices; ++i) {
                const float* const row = z.read(place_at(places, i, z.rows()), scratch.data());
                for (int64_t c = 0; c < columns; ++c) sum[static_cast<std::size_t>(c)] += weights[i] * row[c];
            }
            if (args.residual_TD.defined()) {
                const float* const row = residual.read(t, scratch.data());
                for (int64_t c = 0; c < columns; ++c) sum[static_cast<std::size_t>(c)] += row[c];
            }
            y.write(t, sum.data());
        }
    });
}

void weighted_rows_backward(const WeightedRows& args) {
    const Rows dy(args.dy), z(args.z), dz(args.dz);
    const int64_t columns = dy.columns(), choices = args.places.size(1);
    const int32_t* const places = args.places.const_data_ptr<int32_t>();
    const float* const weights = args.weights.const_data_ptr<float>();
    at::parallel_for(0, args.places.size(0), grain_size(2 * choices * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> dy_scratch(static_cast<std::size_t>(columns)), z_scratch(dy_scratch.size()),
            made(dy_scratch.size());
        for (int64_t i = begin * choices; i < end * choices; ++i) {
            const int64_t place = place_at(places, i, z.rows());
            const float* const of_y = dy.read(args.dy_by_place ? place : i / choices, dy_scratch.data());
            const float* const of_z = z.read(place, z_scratch.data());
            args.dweights.mutable_data_ptr<float>()[i] =
                lane_sum(columns, [&](int64_t c) { return of_z[c] * of_y[c]; });
            for (int64_t c = 0; c < columns; ++c) made[static_cast<std::size_t>(c)] = weights[i] * of_y[c];
            dz.write(place, made.data());
        }
    });
}

void router_load(const RouterLoad& args) {
    const Rows probabilities(args.probabilities_TE);
    const int64_t experts = probabilities.columns(), choices = args.ids_Tk.size(1);
    const int32_t* const ids = args.ids_Tk.const_data_ptr<int32_t>();
    const int32_t* const counted = optional_ints(args.counted_T);
    double* const counts = args.sums_2E.mutable_data_ptr<double>();
    double* const sums = counts + experts;
    for (int64_t t = 0; t < probabilities.rows(); ++t) {
        if (counted != nullptr && counted[t] == 0) continue;
        for (int64_t j = 0; j < choices; ++j) counts[expert_at(ids, t * choices + j, experts)] += 1;
        const float* const p = probabilities.read(t, nullptr);
        for (int64_t e = 0; e < experts; ++e) sums[e] += static_cast<double>(p[e]);
    }
}

void balance(const Balance& args, double loss_scale) {
    const int64_t experts = args.slopes_E.numel();
    const double* const counts = args.sums_2E.const_data_ptr<double>();
    const double* const sums = counts + experts;
    double chosen = 0, loss = 0;
    for (int64_t e = 0; e < experts; ++e) chosen += counts[e];
    const double tokens = chosen / static_cast<double>(args.choices);
    const double factor = chosen > 0 ? args.coefficient * static_cast<double>(experts) / (tokens * tokens) : 0.0;
    for (int64_t e = 0; e < experts; ++e) {
        loss += factor * counts[e] * sums[e];
        args.slopes_E.mutable_data_ptr<float>()[e] = static_cast<float>(factor * counts[e] * loss_scale);
    }
    *args.loss.mutable_data_ptr<float>() = static_cast<float>(loss);
}

}  // namespace unsloth::ops::cpu
