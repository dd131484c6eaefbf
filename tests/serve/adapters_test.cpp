// Adapters that come and go while others answer.
#include "serve/random_adapter.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/random_model.h"
#include "unsloth/serve/watch.h"
#include "unsloth/spec/convert.h"

namespace unsloth {
namespace {

using namespace test;

class ServedAdapters : public ::testing::Test {
  protected:
    ServedAdapters() {
        spec::LoraSpec odd = lora_of(3, {"gate_proj", "o_proj"});
        odd.use_rslora = true;
        odd.rank_pattern = {{"layers.1.mlp.gate_proj", 6}};
        one_ = write_random_adapter(root_ / "one", lora_of(8), 1);
        other_ = write_random_adapter(root_ / "deep/other", odd, 2);
        RunningOptions options;
        options.slots = {.count = 2, .rank = 8};
        options.service.may_load_adapters = true;
        options.service.adapter_root = root_.path().string();
        service_ = std::make_unique<RunningService>(options);
    }
    std::shared_ptr<FakeResponse> load(const std::string& name, const std::string& path, bool inplace = false) {
        return service_->post("/v1/load_lora_adapter",
                              {{"lora_name", name}, {"lora_path", path}, {"load_inplace", inplace}});
    }
    std::shared_ptr<FakeResponse> unload(const std::string& name) {
        return service_->post("/v1/unload_lora_adapter", {{"lora_name", name}});
    }
    Json answer(const std::string& model) {
        const auto response = service_->post(
            "/v1/completions",
            {{"model", model}, {"prompt", question_}, {"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}});
        EXPECT_EQ(response->status(), 200) << response->body();
        return response->json();
    }
    std::string text(const std::string& model) { return answer(model)["choices"][0]["text"]; }
    /// What a model that has the adapter alone answers, as `generate` loads it.
    std::string expected(const fs::path& adapter) {
        model::LoadRequest request = request_for({.rows = 1});
        if (!adapter.empty()) request.adapter = adapter.string();
        const LoadedModel model = load_model(RunningOptions{}.model, request);
        const std::vector<int32_t> ids = service_->tokenizer().encode(question_, true);
        EXPECT_GT(ids.size(), 33U) << "whole pages are cached";
        const auto answers =
            generate::Decoder(*model.ctx, *model.model).answer({{.prompt = ids, .max_new_tokens = 12}});
        return service_->tokenizer().decode(answers.front().ids, true);
    }

    const std::string question_ =
        "The tenant shall pay the rent on the first day of each month, and the landlord shall keep the premises in "
        "good repair, and if either of them fails to do so, then the other one may terminate this lease by notice";
    ScratchFolder root_;
    fs::path one_, other_;
    std::unique_ptr<RunningService> service_;
};

TEST_F(ServedAdapters, AnswerAsGenerateDoesWithThem) {
    const std::string base = expected({});
    EXPECT_EQ(text("base"), base);
    const auto loaded = load("a", "one");
    EXPECT_EQ(loaded->status(), 200);
    EXPECT_EQ(loaded->body(), "Success: LoRA adapter 'a' added successfully.");
    EXPECT_EQ(load("b", "deep/other")->status(), 200);
    EXPECT_NE(expected(one_), base);
    EXPECT_EQ(text("a"), expected(one_));
    EXPECT_EQ(text("b"), expected(other_));
    EXPECT_EQ(text("base"), base);
    const Json models = service_->ask("GET", "/v1/models")->json()["data"];
    ASSERT_EQ(models.size(), 3U);
    EXPECT_EQ(models[1]["id"], "a");
    EXPECT_EQ(models[1]["parent"], "base");
    EXPECT_NE(answer("a")["system_fingerprint"], answer("b")["system_fingerprint"]);
    EXPECT_EQ(answer("a")["model"], "a");
    EXPECT_EQ(unload("b")->body(), "Success: LoRA adapter 'b' removed successfully.");
    EXPECT_EQ(service_->post("/v1/completions", {{"model", "b"}, {"prompt", "x"}})->status(), 404);
    EXPECT_EQ(unload("b")->status(), 404);
}

/// What is cached of the old content does not count for the new one; equal content is found again.
TEST_F(ServedAdapters, ReplacedOnesAreNeverStale) {
    ASSERT_EQ(load("a", "one")->status(), 200);
    const std::string first = text("a");
    const auto cached = [&] { return answer("a")["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(); };
    EXPECT_GT(cached(), 0);
    EXPECT_EQ(load("a", "deep/other")->json()["error"]["code"], "already_loaded");
    EXPECT_EQ(load("a", "deep/other", true)->status(), 200);
    EXPECT_EQ(cached(), 0);
    EXPECT_EQ(text("a"), expected(other_));
    EXPECT_EQ(unload("a")->status(), 200);
    EXPECT_EQ(load("a", "one")->status(), 200);
    EXPECT_GT(cached(), 0) << "the same content, in whatever place";
    EXPECT_EQ(text("a"), first);
}

TEST_F(ServedAdapters, RunningAnswersKeepTheirs) {
    ASSERT_EQ(load("a", "one")->status(), 200);
    Json body = {{"model", "a"}, {"prompt", question_}, {"max_tokens", 90}, {"temperature", 0}, {"ignore_eos", true}};
    const std::string alone = service_->post("/v1/completions", body)->json()["choices"][0]["text"];
    body["stream"] = true;
    const auto running = service_->begin("POST", "/v1/completions", body.dump());
    running->wait_for_pieces(3);
    EXPECT_EQ(load("a", "deep/other", true)->status(), 200);
    EXPECT_EQ(text("a"), expected(other_));
    running->wait();
    std::string streamed;
    for (const Json& event : running->events()) streamed += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(streamed, alone);
    // Its place is free again.
    EXPECT_EQ(load("b", "one")->status(), 200);
}

TEST_F(ServedAdapters, RefusalsSayWhy) {
    const auto code = [&](const std::string& path) { return load("x", path)->json()["error"]["code"]; };
    const auto message = [&](const std::string& path) {
        return load("x", path)->json()["error"]["message"].get<std::string>();
    };
    write_random_adapter(root_ / "wide", lora_of(12), 3);
    EXPECT_EQ(code("wide"), "adapter_does_not_fit");
    EXPECT_NE(message("wide").find("--max_lora_rank 12"), std::string::npos);
    spec::LoraSpec dora = lora_of(4);
    dora.use_dora = true;
    write_random_adapter(root_ / "dora", dora, 4);
    EXPECT_NE(message("dora").find("use_dora"), std::string::npos);
    fs::create_directories(root_ / "empty");
    EXPECT_EQ(code("empty"), "adapter_does_not_fit");
    EXPECT_EQ(code("nowhere"), "adapter_not_found");
    const ScratchFolder outside;
    fs::create_directory_symlink(outside.path(), root_ / "link");
    for (const std::string& path :
         {std::string("../"), outside.path().string(), std::string("link"), std::string("/etc")})
        EXPECT_EQ(code(path), "path_not_allowed") << path;
    EXPECT_EQ(load("base", "one")->json()["error"]["code"], "name_in_use");
    ASSERT_EQ(load("a", "one")->status(), 200);
    ASSERT_EQ(load("b", "one")->status(), 200);
    EXPECT_EQ(load("c", "one")->status(), 409) << "all places are taken";
    EXPECT_EQ(service_->ask("GET", "/v1/models")->json()["data"].size(), 3U);
}

/// Places have memory for adapters of experts, or say how to get it.
TEST(ServedAdaptersOfExperts, NeedPlacesWithExperts) {
    const ScratchFolder root;
    RunningOptions options;
    options.model = root / "model";
    options.service.may_load_adapters = true;
    options.service.adapter_root = root.path().string();
    fs::create_directories(options.model);
    const std::string config = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 2048, "max_position_embeddings": 256, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true, "torch_dtype": "float32"})";
    formats::write_random_model({formats::parse_model_spec(config, "config"), false, 5, config}, options.model);
    spec::LoraSpec lora = lora_of(2, {"q_proj"});
    lora.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    write_random_adapter(root / "experts", lora, 7, options.model);
    for (const bool experts : {false, true}) {
        options.slots = {.count = 2, .rank = 3, .experts = experts};
        RunningService service(options);
        const auto loaded = service.post("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "experts"}});
        EXPECT_EQ(loaded->status(), experts ? 200 : 400) << loaded->body();
        if (!experts) {
            EXPECT_NE(loaded->body().find("with an adapter of experts among --adapter"), std::string::npos);
            continue;
        }
        model::LoadRequest alone = request_for(options);
        alone.adapter_slots = {};
        alone.adapter = (root / "experts").string();
        const LoadedModel model = load_model(options.model, alone);
        const std::vector<int32_t> ids = service.tokenizer().encode("The tenant shall pay the rent", true);
        const auto answers =
            generate::Decoder(*model.ctx, *model.model).answer({{.prompt = ids, .max_new_tokens = 12}});
        const auto response = service.post("/v1/completions", {{"model", "a"},
                                                               {"prompt", "The tenant shall pay the rent"},
                                                               {"max_tokens", 12},
                                                               {"temperature", 0},
                                                               {"ignore_eos", true}});
        EXPECT_EQ(response->json()["choices"][0]["text"], service.tokenizer().decode(answers.front().ids, true));
    }
}

/// A stop-gap run: checkpoints appear by renaming, and the result comes last.
TEST_F(ServedAdapters, ARunsNewestCheckpointIsFollowed) {
    const fs::path run = root_ / "run";
    fs::create_directories(run);
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> seen;
    const serve::RunWatcher watcher(run, [&](const std::string& folder) {
        const std::lock_guard lock(mutex);
        seen.push_back(fs::path(folder).filename().string());
        changed.notify_all();
    });
    const auto wait_for = [&](const std::string& name) {
        std::unique_lock lock(mutex);
        return changed.wait_for(lock, std::chrono::seconds(60), [&] { return !seen.empty() && seen.back() == name; });
    };
    for (const char* name : {"checkpoint-5", "checkpoint-10"}) {
        write_random_adapter(root_ / "staged", lora_of(4), 5);
        fs::rename(root_ / "staged", run / name);
        EXPECT_TRUE(wait_for(name)) << name;
    }
    write_random_adapter(run, lora_of(4), 6);
    EXPECT_TRUE(wait_for("run"));
    EXPECT_EQ(seen.size(), 3U);
}

}  // namespace
}  // namespace unsloth
