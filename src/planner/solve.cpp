#include "unsloth/planner/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

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
        descend(0, problem_.layers, {}, 0);
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
        bool operator==(const Prices&) const = default;
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
            const Option* cheapest = nullptr;
            double least = std::numeric_limits<double>::infinity();
            for (const Option& option : options_)
                if (const double priced = prices.of(option); priced < least) least = priced, cheapest = &option;
            const double bound = layers * least - prices.device * device_ - prices.host * host_;
            if (bound > most) {
                most = bound;
                prices_ = prices;
            }
            const double rate = time / bytes / (1 + round / 20.0);
            const Prices before = prices;
            prices.device = std::max(0.0, prices.device + rate * (cheapest->device - device_ / layers) / bytes);
            prices.host = std::max(0.0, prices.host + rate * (cheapest->host - host_ / layers) / bytes);
            if (prices == before) break;  // nor will they later
        }
        for (Option& option : options_) option.priced = prices_.of(option);
    }

    /// Of layers whose options are chosen; bytes are whole numbers.
    struct Sum {
        double time = 0, device = 0, host = 0;
        uint64_t used = 0;
        Sum with(double layers, const Option& option) const {
            if (layers == 0) return *this;
            return {time + layers * option.time, device + layers * option.device, host + layers * option.host,
                    used | uint64_t{1} << option.index};
        }
    };

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
        const int64_t all = problem_.layers;
        for (std::size_t a = 0; a < options_.size(); ++a)
            for (std::size_t b = a; b < options_.size(); ++b) {
                Range range{a == b ? all : 1, a == b ? all : all - 1};
                const auto keep = [&](double of_a, double of_b, double most) {
                    range.keep(static_cast<double>(all) * of_b, of_a - of_b, most);
                };
                keep(options_[a].device, options_[b].device, device_);
                keep(options_[a].host, options_[b].host, host_);
                if (best_) keep(options_[a].time, options_[b].time, best_->ms);
                for (int64_t n = range.low; n <= range.high; ++n) {
                    const Sum sum =
                        Sum{}.with(static_cast<double>(n), options_[a]).with(static_cast<double>(all - n), options_[b]);
                    if (sum.device > device_ || sum.host > host_) continue;
                    counts_[a] = n;
                    if (a != b) counts_[b] = all - n;
                    finish(sum);
                    counts_[a] = counts_[b] = 0;
                }
            }
    }

    /// Layers [low, high] that may have an option: at least those that a linear bound leaves.
    struct Range {
        int64_t low, high;
        /// Of a + n * b <= most.
        void keep(double a, double b, double most) {
            constexpr double slack = 1;  // the search looks again
            const double end = (most - a) / b;
            if (!std::isfinite(end)) return;
            if (b > 0 && end + slack < static_cast<double>(high))
                high = static_cast<int64_t>(std::max(-1.0, end + slack));
            if (b < 0 && end - slack > static_cast<double>(low))
                low = static_cast<int64_t>(std::min(end - slack, static_cast<double>(high) + 1));
        }
    };

    /// Those of up to `left` layers that are worth a look.
    Range range(const Option& option, const Least& after, double left, const Sum& before, double priced) const {
        Range range{0, static_cast<int64_t>(left)};
        const auto keep = [&](double sum, double own, double least, double most) {
            range.keep(sum + left * least, own - least, most);
        };
        keep(before.device, option.device, after.device, device_);
        keep(before.host, option.host, after.host, host_);
        if (!best_) return range;
        const double most = best_->ms * (1 - tolerance_);
        keep(before.time, option.time, after.time, most);
        keep(priced - prices_.device * device_ - prices_.host * host_, option.priced, after.priced, most);
        return range;
    }

    /// Whether `nodes` more nodes are too many.
    bool tires(int64_t nodes) {
        nodes_ += nodes;
        return nodes_ > (best_ ? most_nodes : 10 * most_nodes);
    }

    void descend(std::size_t i, int64_t left, const Sum& before, double priced) {
        if (left == 0) return finish(before);
        if (i == options_.size()) return;
        const Option& option = options_[i];
        const Least& after = least_[i + 1];
        const bool last = i + 1 == options_.size();
        const Range worth = last ? Range{left, left} : range(option, after, static_cast<double>(left), before, priced);
        if (worth.high < left && tires(left - std::max<int64_t>(worth.high, worth.low - 1))) return;
        for (int64_t n = worth.high; n >= worth.low; --n) {
            if (tires(1)) return;
            const double times = static_cast<double>(n), rest = static_cast<double>(left - n);
            const auto at_least = [&](double sum, double least) { return rest > 0 ? sum + rest * least : sum; };
            const Sum sum = before.with(times, option);
            const double with_priced = priced + times * option.priced;
            if (at_least(sum.device, after.device) > device_ || at_least(sum.host, after.host) > host_) continue;
            if (best_) {
                const double bound =
                    std::max(at_least(sum.time, after.time),
                             at_least(with_priced, after.priced) - prices_.device * device_ - prices_.host * host_);
                if (bound >= best_->ms * (1 - tolerance_)) continue;
            }
            counts_[i] = n;
            descend(i + 1, left - n, sum, with_priced);
            counts_[i] = 0;
        }
        if (!last) tires(worth.low);
    }

    void finish(const Sum& sum) {
        if (best_ && sum.time >= best_->ms) return;
        const spec::MemoryNeed& shared = shared_by(sum.used);
        if (static_cast<int64_t>(sum.device) + shared.device > problem_.budget.device ||
            static_cast<int64_t>(sum.host) + shared.host > problem_.budget.host)
            return;
        std::vector<int64_t> counts(options_.size(), 0);
        for (std::size_t i = 0; i < options_.size(); ++i) counts[options_[i].index] = counts_[i];
        best_ = Solution{std::move(counts), sum.time};
    }

    const spec::MemoryNeed& shared_by(uint64_t used) {
        if (last_ == nullptr || last_->first != used) {
            const auto [at, fresh] = shared_.try_emplace(used);
            if (fresh) at->second = problem_.shared(used);
            last_ = &*at;
        }
        return last_->second;
    }

    const Problem& problem_;
    double tolerance_, device_, host_;
    std::vector<Option> options_;
    Prices prices_;
    std::vector<Least> least_;
    std::vector<int64_t> counts_;                            ///< in the search's order
    std::unordered_map<uint64_t, spec::MemoryNeed> shared_;  ///< by the options that are used
    const std::pair<const uint64_t, spec::MemoryNeed>* last_ = nullptr;
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
