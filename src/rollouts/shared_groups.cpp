#include "rollouts/shared_groups.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"

namespace unsloth::rollouts {
namespace {

using ShareJson = nlohmann::ordered_json;

/// One rank's scores as JSON: doubles keep all their digits.
ShareJson scores_json(const reward::Scored& own, const std::vector<std::size_t>& groups) {
    ShareJson scores = ShareJson::array(), metrics = ShareJson::array(), extra = ShareJson::array();
    for (const reward::Scores& of_all : own.scores) {
        ShareJson& list = scores.emplace_back(ShareJson::array());
        for (const auto& score : of_all) list.push_back(score ? ShareJson(*score) : ShareJson(nullptr));
    }
    for (const auto& [name, value] : own.metrics)
        metrics.push_back({name, value ? ShareJson(*value) : ShareJson(nullptr)});
    for (const auto& [name, values] : own.extra) extra.push_back({name, values});
    return {{"groups", groups}, {"scores", scores}, {"metrics", metrics}, {"extra", extra}};
}

class ScoreTable {
  public:
    ScoreTable(ScoredGroups& batch, std::size_t functions)
        : batch_(batch), each_(batch.groups.front().completions.size()), rows_(batch.groups.size() * each_) {
        batch.scores.assign(functions, reward::Scores(rows_));
    }

    void add(const ShareJson& of_rank) {
        const auto groups = of_rank.at("groups").get<std::vector<std::size_t>>();
        std::size_t place = 0;
        for (const std::size_t group : groups)
            for (std::size_t c = 0; c < each_; ++c, ++place) {
                const std::size_t row = group * each_ + c;
                for (std::size_t k = 0; k < batch_.scores.size(); ++k)
                    if (const ShareJson& score = of_rank.at("scores").at(k).at(place); !score.is_null())
                        batch_.scores[k][row] = score.get<double>();
                for (const ShareJson& column : of_rank.at("extra"))
                    extra(column.at(0).get<std::string>())[row] = column.at(1).at(place).dump();
            }
        // Of several ranks the first that logs a metric says its value.
        for (const ShareJson& metric : of_rank.at("metrics")) {
            const auto name = metric.at(0).get<std::string>();
            bool known = false;
            for (const auto& [other, value] : batch_.metrics) known = known || other == name;
            if (known) continue;
            batch_.metrics.emplace_back(
                name, metric.at(1).is_null() ? std::nullopt : std::optional(metric.at(1).get<double>()));
        }
    }

  private:
    std::vector<std::string>& extra(const std::string& name) {
        for (auto& [other, values] : batch_.extra)
            if (other == name) return values;
        return batch_.extra.emplace_back(name, std::vector<std::string>(rows_, "null")).second;
    }

    ScoredGroups& batch_;
    std::size_t each_, rows_;
};

}  // namespace

int agreed_signal(comm::Group* group, at::Device device, const std::string& what) {
    if (group == nullptr) return interrupt_requested();
    at::Tensor signal = at::zeros({64}, at::kFloat);  // how many ranks were sent each
    if (const int own = interrupt_requested(); own > 0 && own < 64) signal.mutable_data_ptr<float>()[own] = 1;
    signal = signal.to(device);
    group->all_reduce(signal, cat("the stop signals of ", what));
    signal = signal.cpu();
    group->check();
    for (const int stop : stop_signals)
        if (signal.const_data_ptr<float>()[stop] > 0) return stop;
    return 0;
}

void share_completions(ScoredGroups& batch, comm::Group* group, at::Device device, int64_t longest) {
    if (group == nullptr) return;
    const auto each = static_cast<int64_t>(batch.groups.front().completions.size());
    const int64_t rows = static_cast<int64_t>(batch.groups.size()) * each, width = 2 * longest + 2;
    // Ids below 2^24 are exact in fp32, and zeros are added to them. A row: length, whether it is truncated, ids, log
    // p.
    const at::Tensor values = at::zeros({rows, width}, at::kFloat);
    const auto row_at = [&](int64_t row) { return values.mutable_data_ptr<float>() + row * width; };
    const auto each_row = [&](const auto& use) {
        for (int64_t row = 0; row < rows; ++row)
            use(batch.groups[static_cast<std::size_t>(row / each)].completions[static_cast<std::size_t>(row % each)],
                row_at(row));
    };
    each_row([&](const GroupCompletion& one, float* to) {
        to[0] = static_cast<float>(one.ids.size());
        to[1] = one.truncated ? 1 : 0;
        for (std::size_t t = 0; t < one.ids.size(); ++t) {
            to[2 + t] = static_cast<float>(one.ids[t]);
            to[2 + static_cast<std::size_t>(longest) + t] = one.logprobs[t];
        }
    });
    const at::Tensor all = values.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    group->all_reduce(all, "the completions of a generation");
    values.copy_(all);
    group->check();
    each_row([&](GroupCompletion& one, const float* from) {
        const auto length = static_cast<std::size_t>(from[0]);
        UNSLOTH_CHECK(length > 0, "a completion that no rank sampled");
        one.truncated = from[1] > 0;
        one.ids.assign(from + 2, from + 2 + length);
        one.logprobs.assign(from + 2 + longest, from + 2 + longest + static_cast<std::ptrdiff_t>(length));
    });
}

void share_scores(ScoredGroups& batch, const reward::Scored& own, const std::vector<std::size_t>& groups,
                  std::size_t functions, comm::Group* group) {
    ScoreTable table(batch, functions);
    const ShareJson here = scores_json(own, groups);
    if (group == nullptr) return table.add(here);
    // ASCII: what is gathered loses control characters.
    for (const std::string& text :
         group->gather(here.dump(-1, ' ', /*ensure_ascii=*/true), "the scores of a generation"))
        table.add(ShareJson::parse(text));
}

}  // namespace unsloth::rollouts
