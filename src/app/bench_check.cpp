#include "app/bench_check.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "app/commands.h"
#include "app/doctor/findings.h"
#include "app/engine_loader.h"
#include "app/floors.h"
#include "app/machine/gpu_watch.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/shapes.h"

namespace unsloth::app {
namespace {

using Json = nlohmann::ordered_json;

/// What is said of a share: "78.1 %".
std::string percent(double share) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
    return text;
}

/// Floors of one shape say nothing of another.
void require_shape(const Floors& floors, const std::string& model) {
    if (floors.shape.empty() || model.empty()) return;
    const auto sizes = [](const spec::ModelSpec& s) {
        return std::tuple(s.model_type, s.hidden_size, s.intermediate_size, s.num_layers, s.num_heads, s.num_kv_heads,
                          s.head_dim, s.vocab_size);
    };
    if (sizes(formats::WeightFile::open(model).spec) != sizes(formats::builtin_shape(floors.shape)))
        throw Error("bench.not-comparable",
                    cat(model, " is no ", floors.shape, ", for which the floors of ", floors.file, " are"),
                    cat("unsloth-train init --shape ", floors.shape, " --quantize nf4 --out 8b makes one."));
}

struct Row {
    std::string name;
    CommandLine line;
};

/// The rows that are asked for, as command lines of bench: all are read before the first is run.
std::vector<Row> read_rows(const Floors& floors, const std::vector<std::string>& asked,
                           const std::vector<std::string>& arguments) {
    std::vector<std::string> names;
    for (const CheckedRow& row : floors.rows) names.push_back(row.name);
    for (const std::string& name : asked)
        if (std::ranges::find(names, name) == names.end()) {
            std::string known;
            for (const std::string& other : names) known += cat(known.empty() ? "" : ", ", other);
            throw Error("option.invalid-value",
                        cat("--rows: ", floors.file, " has no row '", name, "'; it has ", known),
                        did_you_mean(nearest(name, names)));
        }
    std::vector<Row> rows;
    for (const CheckedRow& row : floors.rows) {
        if (!asked.empty() && std::ranges::find(asked, row.name) == asked.end()) continue;
        std::vector<std::string> words{"bench"};
        words.insert(words.end(), row.arguments.begin(), row.arguments.end());
        words.insert(words.end(), arguments.begin() + 1, arguments.end());
        try {
            rows.push_back({row.name, parse_command_line(words)});
        } catch (const Error& failure) {
            throw Error(failure.id(), cat(floors.file, ", row ", row.name, ": ", failure.what()));
        }
        rows.back().line.bench.prints = false;
    }
    return rows;
}

class FloorCheck {
  public:
    FloorCheck(const Floors& floors, bool json) : floors_(floors), json_(json) {
        if (!json_) line("row", "measured", "ceiling", "", "share", "floor");
    }

    void run(const Row& row, engine_api::Engine& engine) {
        engine_api::BenchResult result;
        try {
            result = engine.bench(row.line.loaded, row.line.bench);
        } catch (const Error& failure) {  // a card may be too small for one row
            failed_.push_back({row.name, failure});
            const std::string reason = std::string(failure.what()).substr(0, std::string(failure.what()).find('\n'));
            if (json_)
                print(Json{{"bench", "check"}, {"row", row.name}, {"error", reason}, {"error_id", failure.id().name()}}
                          .dump(-1, ' ', false, Json::error_handler_t::replace) +
                      "\n");
            else
                print(cat(row.name, ": did not run: ", reason, "\n"));
            return;
        }
        card_ = result.card, pci_ = result.pci;
        std::ranges::transform(pci_, pci_.begin(), [](unsigned char c) { return std::tolower(c); });  // as NVML's here
        for (const std::string& product : result.untuned) untuned_.insert(product);
        for (const engine_api::BenchFigure& figure : result.figures) add(figure_name(row.name, figure.name), figure);
        require_measured(row.name);
    }

    /// Ends with what the command has to say of all.
    void judge(GpuWatch& watch) {
        if (card_.empty()) throw failed_.front().second;
        std::string below = below_;
        for (const auto& [row, failure] : failed_)
            if (has_floor(row)) below += cat(below.empty() ? "" : ", ", row, " (did not run)");
        if (!below.empty())
            throw Error("bench.below-floor", cat("below the floor on ", card_, ": ", below), seen(watch));
        if (held_ == 0) refuse_unknown_card();
        if (!json_) print(cat("all of ", held_, " figures with a floor on ", card_, " reach it\n"));
    }

  private:
    static void line(const std::string& row, const std::string& rate, const std::string& ceiling,
                     const std::string& unit, const std::string& share, const std::string& floor) {
        char text[256];
        std::snprintf(text, sizeof text, "%-32s %12s %12s %-8s %8s   %s\n", row.c_str(), rate.c_str(), ceiling.c_str(),
                      unit.c_str(), share.c_str(), floor.c_str());
        print(text);
    }

    void add(const std::string& name, const engine_api::BenchFigure& figure) {
        const std::optional<double> floor = floors_.of(card_, name);
        const bool below = floor && !(figure.share >= *floor);  // a share that is no number is below
        const double ceiling = figure.rate / figure.share;
        if (floor) ++held_;
        if (below)
            below_ += cat(below_.empty() ? "" : ", ", name, " (", percent(figure.share), " of its ceiling, floor ",
                          percent(*floor), ")");
        shares_.emplace_back(name, figure.share);
        if (json_) {
            print(Json{{"bench", "check"},
                       {"row", name},
                       {"card", card_},
                       {"rate", figure.rate},
                       {"unit", figure.unit},
                       {"ceiling", ceiling},
                       {"share", figure.share},
                       {"floor", floor ? Json(*floor) : Json()},
                       {"below", floor ? Json(below) : Json()}}
                      .dump() +
                  "\n");
            return;
        }
        const auto rounded = [](double value) {
            char text[32];
            std::snprintf(text, sizeof text, "%.1f", value);
            return std::string(text);
        };
        line(name, rounded(figure.rate), rounded(ceiling), figure.unit, percent(figure.share),
             floor ? percent(*floor) + (below ? "  BELOW" : "") : "no floor for this card");
    }

    /// A floor of a figure that its bench does not have would hold nothing.
    void require_measured(const std::string& row) const {
        const auto floors = floors_.cards.find(card_);
        if (floors == floors_.cards.end()) return;
        for (const auto& [figure, floor] : floors->second)
            if (row_of(figure) == row &&
                std::ranges::none_of(shares_, [&](const auto& measured) { return measured.first == figure; }))
                throw Error("bench.bad-floors", cat(floors_.file, ": ", card_, " has a floor of '", figure,
                                                    "', and the row has no such figure"));
    }

    bool has_floor(const std::string& row) const {
        const auto floors = floors_.cards.find(card_);
        return floors != floors_.cards.end() &&
               std::ranges::any_of(floors->second, [&](const auto& floor) { return row_of(floor.first) == row; });
    }

    [[noreturn]] void refuse_unknown_card() const {
        constexpr double margin = 0.97;
        std::string cards;
        for (const auto& [card, floors] : floors_.cards) cards += cat(cards.empty() ? "" : ", ", card);
        Json floors = Json::object();
        for (const auto& [name, share] : shares_) floors[name] = std::floor(1000 * margin * share) / 1000;
        throw Error(
            "bench.not-comparable",
            cat("nothing was checked: none of these rows has a floor for ", card_, " in ", floors_.file, " (it has ",
                cards.empty() ? "no card" : cards, ")"),
            cat("97 % of what they reached would be: ", Json{{card_, {{"source", ""}, {"floors", floors}}}}.dump()));
    }

    /// What this program can see of a reason.
    std::string seen(GpuWatch& watch) const {
        constexpr double busy = 0.1;
        std::string text;
        const std::vector<NvmlGpu> gpus = watch.end();
        for (std::size_t i = 0; i < gpus.size(); ++i) {
            const NvmlGpu &gpu = gpus[i], &before = watch.before()[i];
            if (gpu.pci != pci_) continue;
            const std::string health = judge_health(gpu, "").value;
            text += cat("The card: ", health.substr(0, health.find('\n')), ".");
            if (static_cast<double>(before.memory_used) > busy * static_cast<double>(before.memory_total))
                text += cat(" Before the first row ", human_size(before.memory_used),
                            " of its memory were in use: another process is on it.");
        }
        std::string products;
        for (const std::string& product : untuned_) products += cat(products.empty() ? "" : ", ", product);
        if (!products.empty())
            text += cat(text.empty() ? "" : " ", "Products without measured kernels here: ", products,
                        " (unsloth-train tune).");
        return text.empty() ? "This program sees no reason: unsloth-train doctor looks at the machine, and the commit "
                              "that last passed tells whether it is the code."
                            : text;
    }

    const Floors& floors_;
    bool json_;
    std::string card_, pci_, below_;
    int64_t held_ = 0;  ///< figures with a floor
    std::set<std::string> untuned_;
    std::vector<std::pair<std::string, double>> shares_;
    std::vector<std::pair<std::string, Error>> failed_;
};

}  // namespace

void check_floors(const CommandLine& line, const std::vector<std::string>& arguments) {
    if (line.loaded.is_given("what"))
        throw Error("option.conflict", "bench takes --check or what to measure, not both");
    if (!line.config_file.empty())
        throw Error("option.conflict", "bench --check takes its rows' configurations, and no --config",
                    cat("They are named in ", line.bench.floors, "; options of theirs may be given."));
    if (!line.loaded.is_given("floors") && !std::filesystem::exists(line.bench.floors))
        throw Error("bench.not-comparable", cat("bench --check: there is no ", line.bench.floors, " in this folder"),
                    "Run it in the project's folder (share/ of a package), or give --floors FILE.");
    const Floors floors = read_floors(line.bench.floors);
    const std::vector<Row> rows = read_rows(floors, line.bench.rows, arguments);
    require_shape(floors, line.loaded.config.model.path);
    GpuWatch watch(std::chrono::seconds(1));  // before the engine takes memory
    const auto engine = load_engine(line.loaded.config);
    FloorCheck check(floors, line.bench.json);
    for (const Row& row : rows) check.run(row, *engine);
    check.judge(watch);
}

}  // namespace unsloth::app
