// The file of `bench --check`: which benches it runs, and what share of its ceiling each figure must reach on a card.
//
//     {"shape": "llama-3.1-8b",
//      "rows": {"8x2048": {"bench": "step", "config": "../llama-8b/8x2048.json", "steps": 8}, …},
//      "cards": {"NVIDIA H200": {"source": "how they were measured", "floors": {"8x2048": 0.73, …}}, …}}
//
// A row's other keys are options of bench; its configuration is in the file's folder. A bench with several figures has
// floors by ROW: FIGURE ("operators: rope").
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::app {

struct CheckedRow {
    std::string name;
    std::vector<std::string> arguments;  ///< of bench: {"step", "--config", "configs/llama-8b/8x2048.json", …}
};

struct Floors {
    std::string file;
    std::string shape;  ///< of the model that they hold for, as `init --shape` names it; empty: of any
    std::vector<CheckedRow> rows;
    std::map<std::string, std::map<std::string, double>> cards;  ///< by the driver's name; shares by figures' names

    /// Of a figure of a row; nullopt: it has none on this card.
    std::optional<double> of(const std::string& card, const std::string& figure) const;
};

/// Input Error, naming file and key, for a text that is no such file, a floor that is no number from 0 on, or one of a
/// row that the file does not have.
Floors read_floors(const std::string& file);

/// "ROW: FIGURE", or the row's name for the only figure of a bench.
std::string figure_name(const std::string& row, const std::string& figure);
/// The row of such a name.
std::string row_of(const std::string& figure);

}  // namespace unsloth::app
