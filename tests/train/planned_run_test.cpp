// `plan` and a run make one plan, byte for byte, where rows fill max_seq_length.
#include "train/forecast.h"
#include "train/plan_json.h"
#include "train/support.h"
#include "unsloth/train/commands.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int length = 24, vocabulary = 2048;  // of the example's tokenizer

class PlannedRun : public ::testing::Test {
  protected:
    void SetUp() override {
        make_model("model", 2);
        make_model("teacher", 3);
        std::vector<Row> rows, asked;
        for (int i = 0; i < 24; ++i) {
            const std::vector<int32_t> ids = tokens(i, length);
            rows.push_back({ids, ids, {}});
            asked.push_back({ids, std::vector<int32_t>(length, data::ignore_label), {}});
            asked.back().labels.back() = ids.back();
        }
        write_rows(folder / "rows.jsonl", rows);
        write_rows(folder / "asked.jsonl", asked);
        std::string pairs, judged;
        for (int i = 0; i < 24; ++i) {  // a prompt of one token, of which what two answers share is least
            const nlohmann::json good = tokens(i, length - 1), bad = tokens(100 + i, length - 1);
            const nlohmann::json prompt = {5};
            pairs += nlohmann::json{{"prompt", prompt}, {"chosen", good}, {"rejected", bad}}.dump() + "\n";
            judged += nlohmann::json{{"prompt", prompt}, {"completion", good}, {"label", i % 2 == 0}}.dump() + "\n";
        }
        folder.write("pairs.jsonl", pairs);
        folder.write("judged.jsonl", judged);
        folder.write("prompts.jsonl", R"({"prompt": "The term of this agreement is"}
{"prompt": "Notice"}
)");
    }
    static std::vector<int32_t> tokens(int seed, int count) {
        std::vector<int32_t> ids;
        for (int t = 0; t < count; ++t) ids.push_back(10 + (seed * 131 + t * 17) % (vocabulary - 10));
        return ids;
    }
    void make_model(const std::string& name, int layers) {
        const std::string config = nlohmann::json{
            {"model_type", "llama"},
            {"hidden_size", 64},
            {"intermediate_size", 128},
            {"num_hidden_layers", layers},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", vocabulary},
            {"max_position_embeddings", 512},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"torch_dtype", "float32"},
            {"bos_token_id", 0},
            {"eos_token_id", 1},
            {"hidden_act", "silu"},
            {"architectures",
             {"LlamaForCausalLM"}}}.dump();
        fs::create_directories(folder / name);
        formats::RandomModel model{formats::parse_model_spec(config, name), /*nf4=*/false, /*seed=*/7, config};
        formats::write_random_model(model, folder / name);
        for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
            fs::copy_file(source_folder() / "examples/legal/base" / file, folder / name / file);
    }
    std::string file(const char* name) const { return (folder / name).string(); }
    config::LoadedConfig config(const std::string& rows, const Flags& more) const {
        return make_config(Flags{"--model.path", file("model"), "--data.train_file", file(rows.c_str()),
                                 "--training.output_dir", file("out"), "--model.max_seq_length", cat(length),
                                 "--training.per_device_train_batch_size", "2", "--training.max_steps", "0"} +
                           more);
    }
    void expect_one_plan(const std::string& rows, const Flags& more) const {
        const config::LoadedConfig loaded = config(rows, more);
        train::Trainer run(loaded);
        train::Forecast forecast(loaded, train::target_of({}, loaded.config), train::open_or_describe(loaded.config));
        const train::Estimate planned = forecast.choose();
        EXPECT_TRUE(planned.fits);
        EXPECT_EQ(train::plan_json(planned.plan(), planned.teachers()).dump(1),
                  train::plan_json(run.plan(), run.teachers_plan()).dump(1))
            << rows << " " << ::testing::PrintToString(more);
        EXPECT_TRUE(forecast.can_hold(forecast.rows(), length));
    }
    ScratchFolder folder;
};

TEST_F(PlannedRun, OfAllWeightsOrAdapters) {
    const Flags full{"--lora.finetuning_type", "full", "--model.load_in_4bit", "false"};
    expect_one_plan("rows.jsonl", {});
    expect_one_plan("rows.jsonl", {"--model.dtype", "bfloat16", "--model.load_in_4bit", "false"});
    expect_one_plan("rows.jsonl", {"--lora.lora_dropout", "0.1", "--training.neftune_noise_alpha", "5"});
    expect_one_plan("rows.jsonl", {"--lora.modules_to_save", R"(["embed_tokens", "lm_head"])"});
    expect_one_plan("rows.jsonl", {"--training.gradient_checkpointing", "full", "--training.deterministic", "true"});
    expect_one_plan("rows.jsonl", {"--training.max_tokens_per_batch", cat(4 * length)});
    expect_one_plan("rows.jsonl", {"--training.save_steps", "0"});
    expect_one_plan("rows.jsonl", {"--data.val_size", "4"});
    expect_one_plan("rows.jsonl", full);
    expect_one_plan("rows.jsonl", full + Flags{"--distributed.offload_optimizer", "cpu"});
}

TEST_F(PlannedRun, OfObjectivesThatCompareAnswers) {
    for (const char* share : {"true", "false"}) {
        const Flags shares{"--preference.share_prompt", share};
        expect_one_plan("pairs.jsonl", Flags{"--training.objective", "dpo"} + shares);
        expect_one_plan("pairs.jsonl", Flags{"--training.objective", "orpo"} + shares);
        expect_one_plan("judged.jsonl", Flags{"--training.objective", "kto"} + shares);
    }
    expect_one_plan("pairs.jsonl", {"--training.objective", "dpo", "--training.max_tokens_per_batch", cat(6 * length)});
}

TEST_F(PlannedRun, WithATeacher) {
    const Flags distill{"--training.objective", "distill", "--distill.teacher"};
    expect_one_plan("rows.jsonl", distill + Flags{file("teacher")});
    expect_one_plan("rows.jsonl", distill + Flags{file("teacher"), "--distill.teacher_load_in_4bit", "true"});
    train::write_teacher_file(config("rows.jsonl", {"--model.path", file("teacher")}),
                              {.out = file("said.safetensors"), .top_k = 4});
    expect_one_plan("rows.jsonl", distill + Flags{file("said.safetensors")});
    expect_one_plan("rows.jsonl", distill + Flags{file("said.safetensors"), "--distill.top_k", "2"});
    // What it takes is in all that is planned, and more of it with longer passes.
    const auto taken = [&](const char* rows) {
        const config::LoadedConfig loaded =
            config("rows.jsonl", distill + Flags{file("teacher"), "--training.per_device_train_batch_size", rows});
        train::Forecast forecast(loaded, train::target_of({}, loaded.config), train::open_or_describe(loaded.config));
        const train::Estimate planned = forecast.choose();
        EXPECT_EQ(planned.need().device, planned.plan().total_bytes() + planned.teachers()->total_bytes());
        return planned.teachers()->total_bytes();
    };
    EXPECT_GT(taken("1"), int64_t{4} * 2 * 64 * vocabulary);  // embeddings and lm_head
    EXPECT_GT(taken("8"), taken("1"));
}

TEST_F(PlannedRun, ThatAnswers) {
    const Flags judges{"--data.eval_file",
                       file("asked.jsonl"),
                       "--training.eval_metric",
                       "exact_match",
                       "--training.eval_max_new_tokens",
                       "6"},
        samples{"--training.sample_prompts", file("prompts.jsonl"), "--training.sample_max_new_tokens", "9",
                "--data.eval_file",          file("asked.jsonl")};
    expect_one_plan("rows.jsonl", judges);
    expect_one_plan("rows.jsonl", samples);
    expect_one_plan("rows.jsonl", judges + samples);
    // Prompts that cannot be read here count as the longest rows.
    config::LoadedConfig loaded = config("rows.jsonl", samples);
    const auto cache = [&] {
        train::Forecast forecast(loaded, train::target_of({}, loaded.config), train::open_or_describe(loaded.config));
        return forecast.choose().plan().groups().at("kv cache");
    };
    const int64_t own = cache();
    loaded.config.model.path = "llama-3.2-1b";
    EXPECT_GT(cache(), own);
}

}  // namespace
}  // namespace unsloth
