#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/report/plot.h"

namespace unsloth::report {

std::vector<std::pair<std::string, std::vector<std::string>>> differing_options(const std::vector<Run>& runs) {
    using Json = nlohmann::ordered_json;
    std::vector<std::pair<std::string, std::vector<std::string>>> all;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const Json config = Json::parse(runs[i].config, nullptr, false);
        if (!config.is_object()) continue;
        for (const auto& [section, options] : config.items()) {
            if (!options.is_object()) continue;
            for (const auto& [key, value] : options.items()) {
                const std::string name = section + "." + key;
                auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == name; });
                if (found == all.end()) found = all.emplace(all.end(), name, std::vector<std::string>(runs.size()));
                found->second[i] = value.dump(-1, ' ', false, Json::error_handler_t::replace);
            }
        }
    }
    std::erase_if(all, [](const auto& one) {
        return one.first == "training.output_dir" ||
               std::all_of(one.second.begin(), one.second.end(),
                           [&](const auto& v) { return v == one.second.front(); });
    });
    return all;
}

}  // namespace unsloth::report
