#include "unsloth/formats/trainer_state.h"

#include <cmath>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

Json finite_or_null(double value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
    return value ? Json(*value) : Json(nullptr);
}

TrainerLogRow read_row(const JsonReader& row) {
    TrainerLogRow result;
    for (const auto& item : row.value().items()) {
        const std::string& key = item.key();
        if (key == "step") {
            result.step = row[key].integer();
        } else if (item.value().is_null()) {
            result.values[key] = std::nan("");  // how a number that was not finite is written
        } else {
            const double value = row.number(key).value();
            if (key == "epoch") {
                result.epoch = value;
            } else {
                result.values[key] = value;
            }
        }
    }
    return result;
}

}  // namespace

std::string trainer_state_json(const TrainerState& state) {
    Json history = Json::array();
    for (const TrainerLogRow& row : state.log_history) {
        Json json = {{"epoch", finite_or_null(row.epoch)}, {"step", row.step}};
        for (const auto& [key, value] : row.values) json[key] = finite_or_null(value);
        history.push_back(std::move(json));
    }
    // The fields of transformers' TrainerState and no others: it refuses to load a file with more.
    const Json json = {{"best_global_step", or_null(state.best_global_step)},
                       {"best_metric", state.best_metric ? finite_or_null(*state.best_metric) : Json(nullptr)},
                       {"best_model_checkpoint", or_null(state.best_model_checkpoint)},
                       {"epoch", finite_or_null(state.epoch)},
                       {"eval_steps", state.eval_steps},
                       {"global_step", state.global_step},
                       {"is_hyper_param_search", false},
                       {"is_local_process_zero", true},
                       {"is_world_process_zero", true},
                       {"log_history", std::move(history)},
                       {"logging_steps", state.logging_steps},
                       {"max_steps", state.max_steps},
                       {"num_input_tokens_seen", state.num_input_tokens_seen},
                       {"num_train_epochs", state.num_train_epochs},
                       {"save_steps", state.save_steps},
                       {"stateful_callbacks", Json::object()},
                       {"total_flos", finite_or_null(state.total_flos)},
                       {"train_batch_size", state.train_batch_size},
                       {"trial_name", nullptr},
                       {"trial_params", nullptr}};
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_trainer_state(const std::filesystem::path& folder, const TrainerState& state) {
    write_file_atomically(folder / trainer_state_file, trainer_state_json(state));
}

TrainerState read_trainer_state(const std::filesystem::path& folder) {
    const std::string source = (folder / trainer_state_file).string();
    const auto parsed = parse_json<OrderedJson>(read_file(source), source);
    const JsonReader json(parsed, source);
    TrainerState state;
    state.best_global_step = json.integer("best_global_step");
    state.best_metric = json.number("best_metric");
    state.best_model_checkpoint = json.string("best_model_checkpoint");
    state.epoch = json.number("epoch").value_or(0.0);
    state.eval_steps = json.integer("eval_steps").value_or(0);
    state.global_step = json["global_step"].integer();
    state.logging_steps = json.integer("logging_steps").value_or(1);
    state.max_steps = json.integer("max_steps").value_or(0);
    state.num_input_tokens_seen = json.integer("num_input_tokens_seen").value_or(0);
    state.num_train_epochs = json.number("num_train_epochs").value_or(1.0);
    state.save_steps = json.integer("save_steps").value_or(0);
    state.total_flos = json.number("total_flos").value_or(0.0);
    state.train_batch_size = json.integer("train_batch_size").value_or(1);
    if (!json.has("log_history")) return state;
    for (const JsonReader& row : json["log_history"].elements()) state.log_history.push_back(read_row(row));
    return state;
}

}  // namespace unsloth::formats
