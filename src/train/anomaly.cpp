#include "unsloth/train/anomaly.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/train/json_number.h"

namespace unsloth::train {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const RankView& view) {
    Json json{{"rank", view.rank}, {"place", nullptr}, {"layer", nullptr}, {"rows", view.rows}};
    if (!view.place.empty()) json["place"] = view.place;
    if (view.layer) json["layer"] = *view.layer;
    return json;
}

RankView view_of(const JsonReader<Json>& json) {
    RankView view{json["rank"].integer(), json.string("place").value_or(""), json.integer("layer"), {}};
    for (const auto& row : json["rows"].elements()) view.rows.push_back(row.integer());
    return view;
}

int64_t from_1(const JsonReader<Json>& json, const char* key) {
    const int64_t value = json[key].integer();
    json[key].require(value >= 1, "an integer from 1");
    return value;
}

constexpr const char* kinds[] = {"not_finite", "spike"};

}  // namespace

std::string view_text(const RankView& view) {
    return json_of(view).dump();
}

RankView parse_view(const std::string& text) {
    const Json json = Json::parse(text);
    return view_of(JsonReader<Json>(json, "another rank's view"));
}

std::string config_hash(const std::string& text) {
    ContentHash hash;
    hash.add(text);
    return hash.hex();
}

std::filesystem::path write_anomaly(const std::filesystem::path& output_dir, const Anomaly& anomaly) {
    Json json{{"kind", kinds[static_cast<int>(anomaly.kind)]},
              {"step", anomaly.step},
              {"epoch", number(anomaly.epoch)},
              {"loss", number(anomaly.loss)},
              {"grad_norm", number(anomaly.grad_norm)},
              {"loss_limit", number(anomaly.limits.loss)},
              {"grad_norm_limit", number(anomaly.limits.grad_norm)},
              {"learning_rate", anomaly.learning_rate},
              {"loss_scale", anomaly.loss_scale},
              {"seed", anomaly.seed},
              {"world_size", anomaly.world_size},
              {"gradient_accumulation_steps", anomaly.gradient_accumulation_steps},
              {"config", anomaly.config},
              {"ranks", Json::array()}};
    for (const RankView& view : anomaly.ranks) json["ranks"].push_back(json_of(view));
    const Folder folder = Folder::made(output_dir).require().made_below(anomalies_folder).require();
    const std::string name = cat("step-", anomaly.step, ".json");
    write_file_atomically(folder, name, json.dump(2) + "\n");
    return folder / name;
}

Anomaly read_anomaly(const std::filesystem::path& file) {
    constexpr const char* advice =
        "A run whose step was not finite, or a spike, writes such files: RUN/anomalies/step-N.json.";
    if (std::filesystem::is_directory(file))
        throw Error("disk.not-a-file", cat(file.string(), ": is a folder"), advice);
    const Json json = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw Error("json.wrong-value", cat(file.string(), ": not a JSON object"), advice);
    const JsonReader<Json> reader(json, file.string());
    Anomaly anomaly;
    const std::string& kind = reader["kind"].string();
    reader["kind"].require(kind == kinds[0] || kind == kinds[1], "not_finite or spike");
    anomaly.kind = kind == kinds[0] ? Anomaly::Kind::not_finite : Anomaly::Kind::spike;
    anomaly.step = from_1(reader, "step");
    anomaly.epoch = reader.number("epoch").value_or(NAN);
    anomaly.loss = reader.number("loss").value_or(NAN);
    anomaly.grad_norm = reader.number("grad_norm").value_or(NAN);
    anomaly.limits = {static_cast<float>(reader.number("loss_limit").value_or(INFINITY)),
                      static_cast<float>(reader.number("grad_norm_limit").value_or(INFINITY))};
    anomaly.learning_rate = reader["learning_rate"].number();
    anomaly.loss_scale = reader["loss_scale"].number();
    anomaly.seed = reader["seed"].integer();
    anomaly.world_size = from_1(reader, "world_size");
    anomaly.gradient_accumulation_steps = from_1(reader, "gradient_accumulation_steps");
    anomaly.config = reader["config"].string();
    for (const auto& view : reader["ranks"].elements()) anomaly.ranks.push_back(view_of(view));
    return anomaly;
}

}  // namespace unsloth::train
