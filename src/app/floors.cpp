#include "app/floors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"

namespace unsloth::app {
namespace {

using Json = nlohmann::ordered_json;
using Reader = JsonReader<Json>;

constexpr const char* separator = ": ";

CheckedRow read_row(const std::string& name, const Reader& entry, const std::filesystem::path& folder) {
    CheckedRow row{name, {entry.at("bench").string()}};
    for (const auto& [key, value] : entry.value().items()) {
        if (key == "bench") continue;
        const Reader option = entry.at(key);
        option.require(value.is_primitive(), "a text, a number, true or false");
        const std::string text = value.is_string() ? option.string() : value.dump();
        row.arguments.push_back("--" + key);
        row.arguments.push_back(key == "config" ? (folder / text).lexically_normal().string() : text);
    }
    return row;
}

}  // namespace

std::string figure_name(const std::string& row, const std::string& figure) {
    return figure.empty() ? row : cat(row, separator, figure);
}

std::string row_of(const std::string& figure) {
    return figure.substr(0, figure.find(separator));
}

std::optional<double> Floors::of(const std::string& card, const std::string& figure) const {
    const auto found = cards.find(card);
    if (found == cards.end() || !found->second.contains(figure)) return std::nullopt;
    return found->second.at(figure);
}

Floors read_floors(const std::string& file) {
    const Json json = parse_json<Json>(read_file(file), file);
    const Reader top(json, file);
    top.only_keys({"about", "shape", "rows", "cards"});
    Floors floors{.file = file, .shape = top.string("shape").value_or("")};
    for (const auto& [name, entry] : top.at("rows").value().items()) {
        const Reader row = top["rows"].at(name);
        row.require(row_of(name) == name, "a row whose name has no colon");
        floors.rows.push_back(read_row(name, row, std::filesystem::path(file).parent_path()));
    }
    top["rows"].require(!floors.rows.empty(), "an object of rows");
    for (const auto& [card, entry] : top.at("cards").value().items()) {
        const Reader of_card = top["cards"].at(card);
        of_card.only_keys({"source", "floors"});
        for (const auto& [figure, share] : of_card.at("floors").value().items()) {
            const Reader floor = of_card["floors"].at(figure);
            floor.require(floor.number() >= 0, "a share from 0 on");
            if (std::ranges::find(floors.rows, row_of(figure), &CheckedRow::name) == floors.rows.end())
                throw Error("bench.bad-floors", cat(floor.where(), ": there is no row '", row_of(figure), "'"));
            floors.cards[card][figure] = floor.number();
        }
    }
    return floors;
}

}  // namespace unsloth::app
