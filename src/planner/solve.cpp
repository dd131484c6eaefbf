#include "unsloth/planner/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::planner {
namespace {

constexpr int64_t most_nodes = 200'000;  // of a search: a tenth of a second

bool offloads(const spec::LayerPlan& plan) {
    return plan.activations_at == spec::Place::host;
}
bool streams(const spec::LayerPlan& plan) {
    return plan.weights_at != spec::Place::device;
}

class Search {
  public:
    Search(const Problem& problem, double tolerance) : problem_(problem), tolerance_(tolerance) {
        UNSLOTH_CHECK(problem.options.size() <= 64 && problem.layers > 0, problem.options.size(), " options, ",
                      problem.layers, " layers");
        device_ = static_cast<double>(problem.budget.device - problem.least_shared.device);
        host_ = static_cast<double>(problem.budget.host - problem.least_shared.host);
        for (std::size_t i = 0; i < problem.options.size(); ++i) {
            const LayerOption& option = problem.options[i];
            options_.push_back({i, static_cast<double>(option.bytes.device), static_cast<double>(option.bytes.host),
                                option.time.both(), 0});
        }
        choose_prices();
        std::stable_sort(options_.begin(), options_.end(),
                         [](const Option& a, const Option& b) { return a.priced < b.priced; });
        find_least();
    }

    std::optional<Solution> run() {
        counts_.assign(options_.size(), 0);
        try_pairs();
        descend(0, problem_.layers, 0, 0, 0, 0);
        return best_;
    }

  private:
    struct Option {
        std::size_t index = 0;
        double device = 0, host = 0;
        double time = 0;
        double priced = 0;  ///< time and bytes at the prices
    };

    /// What a byte costs in the bound, in ms; at least 0.
    struct Prices {
        double device = 0, host = 0;
        double of(const Option& option) const { return option.time + device * option.device + host * option.host; }
    };

    /// Prices that make the Lagrangian bound large, by subgradients: each is moved by what the cheapest option is above
    /// or below what there is, in steps that grow smaller.
    void choose_prices() {
        const auto layers = static_cast<double>(problem_.layers);
        double time = 0, bytes = 1;
        for (const Option& option : options_) {
            time = std::max(time, option.time);
            bytes = std::max({bytes, std::abs(option.device), std::abs(option.host)});
        }
        Prices prices;
        double most = -std::numeric_limits<double>::infinity();
        constexpr int rounds = 3000;
        for (int round = 0; round < rounds; ++round) {
            const auto cheapest = std::min_element(options_.begin(), options_.end(), [&](const auto& a, const auto& b) {
                return prices.of(a) < prices.of(b);
            });
            const double bound = layers * prices.of(*cheapest) - prices.device * device_ - prices.host * host_;
            if (bound > most) {
                most = bound;
                prices_ = prices;
            }
            const double rate = time / bytes / (1 + round / 20.0);
            prices.device = std::max(0.0, prices.device + rate * (cheapest->device - device_ / layers) / bytes);
            prices.host = std::max(0.0, prices.host + rate * (cheapest->host - host_ / layers) / bytes);
        }
        for (Option& option : options_) option.priced = prices_.of(option);
    }

    /// What a layer takes at least in one of the options from i on.
    struct Least {
        double device = std::numeric_limits<double>::infinity();
        double host = device, time = device, priced = device;
    };
    void find_least() {
        least_.assign(options_.size() + 1, {});
        for (std::size_t i = options_.size(); i-- > 0;) {
            const Least& after = least_[i + 1];
            const Option& option = options_[i];
            least_[i] = {std::min(after.device, option.device), std::min(after.host, option.host),
                         std::min(after.time, option.time), std::min(after.priced, option.priced)};
        }
    }

    /// The best of two options alone, so that the search begins with something to beat.
    void try_pairs() {
        for (std::size_t a = 0; a < options_.size(); ++a)
            for (std::size_t b = a; b < options_.size(); ++b)
                for (int64_t n = a == b ? problem_.layers : 1; n <= problem_.layers - (a == b ? 0 : 1); ++n) {
                    const auto with_a = static_cast<double>(n), with_b = static_cast<double>(problem_.layers - n);
                    if (with_a * options_[a].device + with_b * options_[b].device > device_) continue;
                    if (with_a * options_[a].host + with_b * options_[b].host > host_) continue;
                    counts_[a] = n;
                    if (a != b) counts_[b] = problem_.layers - n;
                    finish(with_a * options_[a].time + with_b * options_[b].time);
                    counts_[a] = counts_[b] = 0;
                }
    }

    void descend(std::size_t i, int64_t left, double time, double device, double host, double priced) {
        if (left == 0) return finish(time);
        if (i == options_.size()) return;
        const Option& option = options_[i];
        const Least& after = least_[i + 1];
        const bool last = i + 1 == options_.size();
        for (int64_t n = left; n >= (last ? left : 0); --n) {
            if (++nodes_ > (best_ ? most_nodes : 10 * most_nodes)) return;
            const auto times = static_cast<double>(n), rest = static_cast<double>(left - n);
            const auto at_least = [&](double sum, double least) { return rest > 0 ? sum + rest * least : sum; };
            const double with = device + times * option.device, with_host = host + times * option.host,
                         with_priced = priced + times * option.priced;
            if (at_least(with, after.device) > device_ || at_least(with_host, after.host) > host_) continue;
            const double sum = time + times * option.time;
            if (best_) {
                const double bound =
                    std::max(at_least(sum, after.time),
                             at_least(with_priced, after.priced) - prices_.device * device_ - prices_.host * host_);
                if (bound >= best_->ms * (1 - tolerance_)) continue;
            }
            counts_[i] = n;
            descend(i + 1, left - n, sum, with, with_host, with_priced);
            counts_[i] = 0;
        }
    }

    void finish(double ms) {
        if (best_ && ms >= best_->ms) return;
        std::vector<int64_t> counts(options_.size(), 0);
        spec::MemoryNeed need;
        uint64_t used = 0;
        for (std::size_t i = 0; i < options_.size(); ++i) {
            const std::size_t index = options_[i].index;
            counts[index] = counts_[i];
            need.device += counts_[i] * problem_.options[index].bytes.device;
            need.host += counts_[i] * problem_.options[index].bytes.host;
            if (counts_[i] > 0) used |= uint64_t{1} << index;
        }
        const spec::MemoryNeed shared = problem_.shared(used);
        if (need.device + shared.device > problem_.budget.device || need.host + shared.host > problem_.budget.host)
            return;
        best_ = Solution{std::move(counts), ms};
    }

    const Problem& problem_;
    double tolerance_, device_, host_;
    std::vector<Option> options_;
    Prices prices_;
    std::vector<Least> least_;
    std::vector<int64_t> counts_;  ///< in the search's order
    std::optional<Solution> best_;
    int64_t nodes_ = 0;
};

}  // namespace

std::optional<Solution> solve(const Problem& problem, double tolerance) {
    return Search(problem, tolerance).run();
}

double layers_ms(const std::vector<LayerOption>& options, const std::vector<int64_t>& counts) {
    double ms = 0;
    for (std::size_t i = 0; i < options.size(); ++i) ms += static_cast<double>(counts[i]) * options[i].time.both();
    return ms;
}

std::vector<spec::LayerPlan> arrange(const std::vector<LayerOption>& options, const std::vector<int64_t>& counts) {
    std::vector<spec::LayerPlan> layers;
    const auto place = [&](bool out, bool in) {
        for (std::size_t i = 0; i < options.size(); ++i)
            if (offloads(options[i].plan) == out && streams(options[i].plan) == in)
                layers.insert(layers.end(), static_cast<std::size_t>(counts[i]), options[i].plan);
    };
    place(true, false);
    place(true, true);
    place(false, false);
    place(false, true);
    return layers;
}

}  // namespace unsloth::planner
