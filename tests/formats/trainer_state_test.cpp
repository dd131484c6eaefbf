#include "unsloth/formats/trainer_state.h"

#include <cmath>

#include "formats/support.h"

namespace unsloth::formats {
namespace {

using namespace test;

TrainerState example() {
    TrainerState state;
    state.best_global_step = 4;
    state.best_metric = 1.25;
    state.best_model_checkpoint = "out/checkpoint-4";
    state.epoch = 0.5;
    state.eval_steps = 4;
    state.global_step = 6;
    state.log_history = {{1, 0.1, {{"loss", 2.5}, {"grad_norm", 0.75}, {"learning_rate", 0.0}}},
                         {4, 0.4, {{"eval_loss", 1.25}}}};
    state.max_steps = 12;
    state.num_input_tokens_seen = 5'000'000'000;
    state.num_train_epochs = 1;
    state.save_steps = 2;
    state.total_flos = 1e15;
    state.train_batch_size = 8;
    return state;
}

TEST(TrainerState, HasTheFieldsOfTransformersAndNoOthers) {
    const auto json = nlohmann::json::parse(trainer_state_json(example()));
    std::vector<std::string> keys;
    for (const auto& item : json.items()) keys.push_back(item.key());
    EXPECT_EQ(keys, (std::vector<std::string>{"best_global_step",
                                              "best_metric",
                                              "best_model_checkpoint",
                                              "epoch",
                                              "eval_steps",
                                              "global_step",
                                              "is_hyper_param_search",
                                              "is_local_process_zero",
                                              "is_world_process_zero",
                                              "log_history",
                                              "logging_steps",
                                              "max_steps",
                                              "num_input_tokens_seen",
                                              "num_train_epochs",
                                              "save_steps",
                                              "stateful_callbacks",
                                              "total_flos",
                                              "train_batch_size",
                                              "trial_name",
                                              "trial_params"}));
    EXPECT_EQ(
        json.at("log_history")[0],
        (nlohmann::json{{"epoch", 0.1}, {"grad_norm", 0.75}, {"learning_rate", 0.0}, {"loss", 2.5}, {"step", 1}}));
    EXPECT_EQ(nlohmann::json::parse(trainer_state_json({})).at("best_metric"), nullptr);
}

TEST(TrainerState, IsReadBackTheSame) {
    const ScratchFolder folder;
    write_trainer_state(folder.path(), example());
    const TrainerState state = read_trainer_state(folder.path());
    EXPECT_EQ(trainer_state_json(state), trainer_state_json(example()));
    EXPECT_EQ(state.num_input_tokens_seen, 5'000'000'000);
    EXPECT_EQ(state.log_history[1].values.at("eval_loss"), 1.25);
}

TEST(TrainerState, WritesNumbersThatJsonCannotHoldAsNull) {
    TrainerState state = example();
    state.log_history[0].values["loss"] = NAN;
    state.best_metric = INFINITY;
    const ScratchFolder folder;
    write_trainer_state(folder.path(), state);
    EXPECT_EQ(nlohmann::json::parse(read_file(folder / "trainer_state.json")).at("log_history")[0].at("loss"), nullptr);
    EXPECT_TRUE(std::isnan(read_trainer_state(folder.path()).log_history[0].values.at("loss")));
}

TEST(TrainerState, NamesFileAndKeyOfWhatIsWrong) {
    const ScratchFolder folder;
    const auto refuse = [&](const std::string& text, const std::vector<std::string>& words) {
        write_text(folder / "trainer_state.json", text);
        expect_input_error(words, [&] { read_trainer_state(folder.path()); });
    };
    refuse("{}", {"trainer_state.json", "global_step"});
    refuse(R"({"global_step": "six"})", {"global_step", "six"});
    refuse(R"({"global_step": 6, "log_history": 3})", {"log_history"});
    refuse(R"({"global_step": 6, "log_history": [{"step": 1, "loss": "x"}]})", {"log_history[0].loss"});
    refuse("not json", {"not valid JSON"});
    write_text(folder / "trainer_state.json", R"({"global_step": 6, "some_future_key": [1]})");
    EXPECT_EQ(read_trainer_state(folder.path()).global_step, 6);
}

}  // namespace
}  // namespace unsloth::formats
