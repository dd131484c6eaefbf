#include "unsloth/formats/serve_grid.h"

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {

spec::ServeGrid read_grid(const std::string& name, const std::string& source) {
    using spec::ServeGrid;
    for (const ServeGrid grid :
         {ServeGrid::none, ServeGrid::nf4, ServeGrid::q8_0, ServeGrid::q4_0, ServeGrid::mxfp4, ServeGrid::fp8})
        if (name == name_of(grid)) return grid;
    throw Error("adapter.bad-config", cat(source, ": serve_grid '", name, "' is not known to this version"),
                "Use the version that wrote it, or a newer one.");
}

spec::WeightType type_on_grid(spec::ServeGrid grid) {
    if (grid == spec::ServeGrid::nf4) return spec::WeightType::nf4;
    return grid == spec::ServeGrid::mxfp4 ? spec::WeightType::bf16 : spec::WeightType::f32;
}

std::string with_serve_grid(const std::string& config, spec::ServeGrid grid) {
    if (grid == spec::ServeGrid::none) return config;
    auto json = parse_json<OrderedJson>(config, "config.json");
    json[serve_grid_key] = name_of(grid);
    return json.dump(2) + "\n";
}

spec::ServeGrid grid_of_folder(const std::filesystem::path& folder) {
    const std::string source = (folder / "config.json").string();
    const auto json = parse_json<OrderedJson>(read_file(source), source);
    const auto name = JsonReader(json, source).string(serve_grid_key);
    return name ? read_grid(*name, source) : spec::ServeGrid::none;
}

}  // namespace unsloth::formats
