// Each field of a peer's file in turn is taken out: what is written, noted or lost must change by that, or it must be
// known why the field does nothing. tests/golden/options/miniatures.json has files as the peers' users write them.
#include <algorithm>
#include <map>

#include "tests/config/support.h"
#include "unsloth/import/import.h"

namespace unsloth::testing {
namespace {

import::ImportedConfig import_miniature(const Json& miniature) {
    static const std::map<std::string, import::PeerProgram> programs = {
        {"axolotl", import::PeerProgram::axolotl},
        {"llamafactory", import::PeerProgram::llama_factory},
        {"trl", import::PeerProgram::trl},
        {"swift", import::PeerProgram::swift}};
    const ScratchFolder folder;
    if (miniature.contains("sets")) {
        const std::string sets = miniature["fields"].value("dataset_dir", "data");
        std::filesystem::create_directory(folder.path() / sets);
        folder.write(sets + "/dataset_info.json", miniature["sets"].dump());
    }
    return import::import_config(folder.write("theirs.json", miniature["fields"].dump()),
                                 programs.at(miniature["program"]));
}

/// All members of objects below, "datasets[0].path", each with the place where it stands.
void collect_members(const Json& value, const Json::json_pointer& at, const std::string& name,
                     std::vector<std::pair<std::string, Json::json_pointer>>& members) {
    if (value.is_array()) {
        for (std::size_t i = 0; i < value.size(); ++i)
            collect_members(value[i], at / i, name + "[" + std::to_string(i) + "]", members);
    } else if (value.is_object()) {
        for (const auto& [key, member] : value.items()) {
            const std::string path = name.empty() ? key : name + "." + key;
            members.emplace_back(path, at / key);
            collect_members(member, at / key, path, members);
        }
    }
}

/// What a user sees: not the count of fields, which changes with each.
std::string printed(const import::ImportedConfig& imported) {
    std::string text = imported.json;
    for (const std::string& note : imported.notes) text += "note: " + note + "\n";
    for (const std::string& loss : imported.aside) text += "aside: " + loss + "\n";
    for (const std::string& loss : imported.losses) text += "not carried over: " + loss + "\n";
    return text;
}

TEST(ImportAblation, NoFieldOfAPeersFileVanishes) {
    std::ifstream file(test::golden("options/miniatures.json"));
    const Json miniatures = Json::parse(file);
    std::map<std::string, int> by_program;
    std::size_t fields = 0, idle = 0;
    for (const Json& miniature : miniatures) {
        SCOPED_TRACE(miniature["program"].get<std::string>() + ": " + miniature["what"].get<std::string>());
        ++by_program[miniature["program"]];
        const std::string whole = printed(import_miniature(miniature));
        std::vector<std::pair<std::string, Json::json_pointer>> members;
        collect_members(miniature["fields"], Json::json_pointer("/fields"), "", members);
        if (miniature.contains("sets"))
            collect_members(miniature["sets"], Json::json_pointer("/sets"), "sets", members);
        std::vector<std::string> names;
        for (const auto& [name, at] : members) {
            names.push_back(name);
            Json without = miniature;
            without[at.parent_pointer()].erase(at.back());
            const bool expected = !miniature["does_nothing"].contains(name);
            EXPECT_EQ(printed(import_miniature(without)) != whole, expected)
                << name << (expected ? " vanishes without a word" : " does something after all") << "\n"
                << whole;
            ++fields;
        }
        for (const auto& [name, reason] : miniature["does_nothing"].items()) {
            EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name << " is not in the file";
            EXPECT_FALSE(reason.get<std::string>().empty());
            ++idle;
        }
    }
    EXPECT_GE(by_program["axolotl"], 5);
    EXPECT_GE(by_program["llamafactory"], 3);
    EXPECT_GE(by_program["trl"], 3);
    EXPECT_GE(by_program["swift"], 3);
    EXPECT_GT(fields, 250u);
    EXPECT_LT(20 * idle, fields) << "the list of fields that do nothing is to be short";
}

}  // namespace
}  // namespace unsloth::testing
