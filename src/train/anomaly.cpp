#include "unsloth/train/anomaly.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"

namespace unsloth::train {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN and no infinity.
Json number(double value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json json_of(const RankView& view) {
    Json json{{"rank", view.rank}, {"place", nullptr}, {"layer", nullptr}, {"rows", view.rows}};
    if (!view.place.empty()) json["place"] = view.place;
    if (view.layer) json["layer"] = *view.layer;
    return json;
}

RankView view_of(const Json& json) {
    RankView view{json.at("rank").get<int64_t>(), "", {}, json.at("rows").get<std::vector<int64_t>>()};
    if (!json.at("place").is_null()) view.place = json["place"].get<std::string>();
    if (!json.at("layer").is_null()) view.layer = json["layer"].get<int64_t>();
    return view;
}

double number_at(const Json& json, const char* key, double where_null) {
    return json.at(key).is_null() ? where_null : json[key].get<double>();
}

constexpr const char* kinds[] = {"not_finite", "spike"};

}  // namespace

std::string view_text(const RankView& view) {
    return json_of(view).dump();
}

RankView parse_view(const std::string& text) {
    return view_of(Json::parse(text));
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
    const std::filesystem::path folder = output_dir / anomalies_folder;
    std::filesystem::create_directories(folder);
    const std::filesystem::path file = folder / cat("step-", anomaly.step, ".json");
    write_file_atomically(file, json.dump(2) + "\n");
    return file;
}

Anomaly read_anomaly(const std::filesystem::path& file) {
    const Json json = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
    const char* const advice =
        "A run whose step was not finite, or a spike, writes such files: RUN/anomalies/step-N.json.";
    if (!json.is_object()) throw input_error(cat(file.string(), ": not a JSON object"), advice);
    try {
        Anomaly anomaly;
        const std::string kind = json.at("kind").get<std::string>();
        if (kind != kinds[0] && kind != kinds[1])
            throw input_error(cat(file.string(), ": kind: expected not_finite or spike, found '", kind, "'"), advice);
        anomaly.kind = kind == kinds[0] ? Anomaly::Kind::not_finite : Anomaly::Kind::spike;
        anomaly.step = json.at("step").get<int64_t>();
        anomaly.epoch = number_at(json, "epoch", NAN);
        anomaly.loss = number_at(json, "loss", NAN);
        anomaly.grad_norm = number_at(json, "grad_norm", NAN);
        anomaly.limits = {static_cast<float>(number_at(json, "loss_limit", INFINITY)),
                          static_cast<float>(number_at(json, "grad_norm_limit", INFINITY))};
        anomaly.learning_rate = json.at("learning_rate").get<double>();
        anomaly.loss_scale = json.at("loss_scale").get<double>();
        anomaly.seed = json.at("seed").get<int64_t>();
        anomaly.world_size = json.at("world_size").get<int64_t>();
        anomaly.gradient_accumulation_steps = json.at("gradient_accumulation_steps").get<int64_t>();
        anomaly.config = json.at("config").get<std::string>();
        for (const Json& view : json.at("ranks")) anomaly.ranks.push_back(view_of(view));
        if (anomaly.step < 1 || anomaly.world_size < 1 || anomaly.gradient_accumulation_steps < 1)
            throw input_error(cat(file.string(), ": step, world_size and gradient_accumulation_steps are from 1 on"),
                              advice);
        return anomaly;
    } catch (const nlohmann::json::exception&) {
        throw input_error(cat(file.string(), ": a key of an anomaly's file is missing, or has a value of another kind"),
                          advice);
    }
}

}  // namespace unsloth::train
