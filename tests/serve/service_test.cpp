// The service as its clients see it.
#include "serve/support.h"

#include <set>

namespace unsloth {
namespace {

using namespace test;

const std::string question = "The tenant shall pay";

class ServiceTest : public ::testing::Test {
  protected:
    static void SetUpTestSuite() { service_ = std::make_unique<RunningService>(); }
    static void TearDownTestSuite() { service_.reset(); }
    static RunningService& service() { return *service_; }

    static Json completion(Json body) {
        if (!body.contains("prompt")) body["prompt"] = question;
        const auto response = service().post("/v1/completions", body);
        EXPECT_EQ(response->status(), 200) << response->body();
        return response->json();
    }
    static std::string text(const Json& body) { return completion(body)["choices"][0]["text"]; }

  private:
    static inline std::unique_ptr<RunningService> service_;
};

/// What the decoder gives for a prompt, alone, without a service.
generate::Completion decoded(const std::vector<int32_t>& prompt, int64_t tokens, const fs::path* adapter = nullptr,
                             const spec::Sampling& sampling = {}, uint64_t seed = 0) {
    model::LoadRequest request = request_for({.rows = 1});
    if (adapter != nullptr) request.adapter = adapter->string();
    const LoadedModel model = load_model(RunningOptions{}.model, request);
    return generate::Decoder(*model.ctx, *model.model)
        .answer({{.prompt = prompt, .max_new_tokens = tokens, .sampling = sampling, .seed = seed}})
        .front();
}

TEST_F(ServiceTest, CompletionsAreWhatTheDecoderAnswers) {
    const std::vector<int32_t> ids = service().tokenizer().encode(question, true);
    const generate::Completion expected = decoded(ids, 12);
    const Json request = {{"temperature", 0}, {"max_tokens", 12}, {"ignore_eos", true}};
    const auto with_prompt = [&](const Json& prompt) {
        Json body = request;
        body["prompt"] = prompt;
        return completion(body);
    };
    const std::string text = service().tokenizer().decode(expected.ids, true);
    const Json answer = with_prompt(question);
    EXPECT_EQ(answer["choices"][0]["text"], text);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(answer["object"], "text_completion");
    EXPECT_EQ(answer["model"], "base");
    EXPECT_EQ(answer["system_fingerprint"], "fp_base");
    EXPECT_EQ(answer["usage"]["prompt_tokens"], ids.size());
    EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
    EXPECT_EQ(with_prompt(ids)["choices"][0]["text"], text);
    const Json both = with_prompt(Json::array({question, "Another one"}))["choices"];
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both[0]["text"], text);
    EXPECT_EQ(both[1]["index"], 1);
    EXPECT_EQ(with_prompt(Json::array({ids, ids}))["choices"][1]["text"], text);
}

TEST_F(ServiceTest, SeededAnswersDoNotDependOnTheCrowd) {
    const Json body = {{"prompt", question}, {"max_tokens", 20}, {"seed", 5},
                       {"temperature", 1.1}, {"n", 2},           {"ignore_eos", true}};
    const Json alone = completion(body)["choices"];
    EXPECT_NE(alone[0]["text"], alone[1]["text"]);
    std::vector<std::shared_ptr<FakeResponse>> crowd;
    for (int i = 0; i < 12; ++i) {
        Json other = body;
        other["prompt"] = std::string(static_cast<std::size_t>(i), 'x') + " and " + question;
        other["seed"] = i;
        crowd.push_back(service().begin("POST", "/v1/completions", (i == 6 ? body : other).dump()));
    }
    for (const auto& response : crowd) response->wait();
    EXPECT_EQ(crowd[6]->json()["choices"], alone);
    // The command `generate` draws the same tokens with this seed.
    const generate::Completion expected =
        decoded(service().tokenizer().encode(question, true), 20, nullptr, {.temperature = 1.1}, 5);
    EXPECT_EQ(alone[0]["text"], service().tokenizer().decode(expected.ids, true));
}

TEST_F(ServiceTest, EchoedLogprobsAreThoseOfScore) {
    const std::string long_prompt = "The lessee may terminate this lease. " + question +
                                    " the rent on the first day "
                                    "of each month to the landlord, and the parties agree on the following terms. "
                                    "Notices must be given in writing, by registered mail, to the address named above.";
    const std::vector<int32_t> ids = service().tokenizer().encode(long_prompt, true);
    ASSERT_GT(ids.size(), 60U) << "two go in by pieces";
    const LoadedModel model = load_model(RunningOptions{}.model, request_for({}));
    // As lm-eval asks.
    const Json choice = completion({{"prompt", Json::array({ids, ids})},
                                    {"echo", true},
                                    {"logprobs", 1},
                                    {"max_tokens", 1},
                                    {"temperature", 0}})["choices"][1];
    const Json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["token_logprobs"].size(), ids.size() + 1);
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    model::LoadRequest whole = request_for({});
    whole.sizes.tokens = whole.sizes.longest = whole.sizes.head_rows = 160;
    const LoadedModel scored = load_model(RunningOptions{}.model, whole);
    const at::Tensor logp = score_every_position(*scored.model, {ids}).logits_TV.to(at::kDouble).log_softmax(-1);
    double worst = 0;
    for (std::size_t t = 1; t < ids.size(); ++t) {
        const at::Tensor row = logp[static_cast<int64_t>(t) - 1];
        worst = std::max(worst, std::abs(logprobs["token_logprobs"][t].get<double>() - row[ids[t]].item<double>()));
        double best = -1e9;
        for (const auto& [name, value] : logprobs["top_logprobs"][t].items())
            best = std::max(best, value.get<double>());
        EXPECT_NEAR(best, row.max().item<double>(), 1e-4) << t;
    }
    EXPECT_LT(worst, 1e-4);
    EXPECT_TRUE(choice["text"].get<std::string>().find(question) != std::string::npos);
    EXPECT_EQ(choice["finish_reason"], "stop") << "its stop token has a report, too";
    // Scoring alone.
    const Json only =
        completion({{"prompt", ids}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 0}})["choices"][0]["logprobs"];
    ASSERT_EQ(only["tokens"].size(), ids.size());
    for (std::size_t t = 1; t < ids.size(); ++t)
        EXPECT_NEAR(only["token_logprobs"][t].get<double>(), logprobs["token_logprobs"][t].get<double>(), 1e-4);
}

TEST_F(ServiceTest, StreamsAreTheWholeAnswerInPieces) {
    Json body = {{"prompt", Json::array({question, "A"})},
                 {"max_tokens", 16},
                 {"temperature", 0},
                 {"logprobs", 2},
                 {"echo", true},
                 {"ignore_eos", true}};
    const Json whole = completion(body);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const auto response = service().post("/v1/completions", body);
    EXPECT_EQ(response->header("content-type"), "text/event-stream; charset=utf-8");
    const std::vector<Json> events = response->events();
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], 32);
    EXPECT_EQ(events.back()["choices"].size(), 0U);
    for (std::size_t choice = 0; choice < 2; ++choice) {
        std::string text, reason;
        Json tokens = Json::array(), offsets = Json::array();
        for (const Json& event : events) {
            if (event["choices"].empty() || event["choices"][0]["index"] != choice) continue;
            const Json& piece = event["choices"][0];
            EXPECT_TRUE(event["usage"].is_null());
            text += piece["text"].get<std::string>();
            for (const Json& token : piece["logprobs"]["tokens"]) tokens.push_back(token);
            for (const Json& offset : piece["logprobs"]["text_offset"]) offsets.push_back(offset);
            if (!piece["finish_reason"].is_null()) reason = piece["finish_reason"];
        }
        EXPECT_EQ(text, whole["choices"][choice]["text"]);
        EXPECT_EQ(tokens, whole["choices"][choice]["logprobs"]["tokens"]);
        EXPECT_EQ(offsets, whole["choices"][choice]["logprobs"]["text_offset"]);
        EXPECT_EQ(reason, "length");
    }
}

TEST_F(ServiceTest, StopTextsEndAnswersAndAreHeldBack) {
    const std::string all = text({{"max_tokens", 24}, {"temperature", 0}, {"ignore_eos", true}});
    ASSERT_GT(all.size(), 20U);
    const std::string stop = all.substr(8, 6), before = all.substr(0, all.find(stop));
    const Json body = {{"prompt", question},
                       {"max_tokens", 24},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"stop", Json::array({"never there", stop})}};
    const Json answer = completion(body);
    EXPECT_EQ(answer["choices"][0]["text"], before);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    Json with = body;
    with["include_stop_str_in_output"] = true;
    EXPECT_EQ(text(with), before + stop);
    Json streamed = body;
    streamed["stream"] = true;
    std::string text;
    for (const Json& event : service().post("/v1/completions", streamed)->events())
        text += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(text, before);
}

TEST_F(ServiceTest, BiasesForbidAndForceTokens) {
    const Json greedy = {{"max_tokens", 1}, {"temperature", 0}, {"logprobs", 1}};
    const std::vector<int32_t> ids = decoded(service().tokenizer().encode(question, true), 1).ids;
    Json body = greedy;
    body["logit_bias"] = {{std::to_string(ids[0]), -100}};
    EXPECT_NE(completion(body)["choices"][0]["logprobs"]["tokens"],
              completion(greedy)["choices"][0]["logprobs"]["tokens"]);
    const int32_t forced = service().tokenizer().encode(" rent", false).front();
    body["logit_bias"] = {{std::to_string(forced), 100}};
    const Json choice = completion(body)["choices"][0];
    EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].contains(choice["logprobs"]["tokens"][0].get<std::string>()))
        << "the chosen token is among the likeliest";
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 2U);
}

TEST_F(ServiceTest, Chats) {
    const Json messages = Json::array({{{"role", "user"}, {"content", "What is a lease?"}}});
    Json body = {{"messages", messages}, {"max_tokens", 10},  {"temperature", 0},
                 {"logprobs", true},     {"top_logprobs", 2}, {"ignore_eos", true}};
    const Json answer = service().post("/v1/chat/completions", body)->json();
    const Json& choice = answer["choices"][0];
    EXPECT_EQ(answer["object"], "chat.completion");
    EXPECT_EQ(choice["message"]["role"], "assistant");
    ASSERT_EQ(choice["logprobs"]["content"].size(), 10U);
    EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2U);
    const Json counted = service().post("/tokenize", {{"messages", messages}})->json();
    EXPECT_EQ(counted["count"], answer["usage"]["prompt_tokens"]);
    const generate::Completion expected = decoded(counted["tokens"].get<std::vector<int32_t>>(), 10);
    EXPECT_EQ(choice["message"]["content"], service().tokenizer().decode(expected.ids, true));

    body["stream"] = true;
    const std::vector<Json> events = service().post("/v1/chat/completions", body)->events();
    EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
    std::string text;
    for (const Json& event : events) text += event["choices"][0]["delta"].value("content", "");
    EXPECT_EQ(text, choice["message"]["content"]);
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");

    // Without a limit there is as much room as the context has.
    Json open = {{"messages", messages}, {"temperature", 0}, {"ignore_eos", true}};
    const Json used = service().post("/v1/chat/completions", open)->json()["usage"];
    EXPECT_EQ(used["total_tokens"], 160);
}

TEST_F(ServiceTest, AnAssistantsMessageIsContinued) {
    const Json messages =
        Json::array({{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "A lease is "}}});
    const auto ids = [&](bool continues) {
        const Json body = {
            {"messages", messages}, {"add_generation_prompt", false}, {"continue_final_message", continues}};
        return service().post("/tokenize", body)->json()["tokens"].get<std::vector<int32_t>>();
    };
    const auto text = [&](const std::vector<int32_t>& all) { return service().tokenizer().decode(all, false); };
    EXPECT_TRUE(text(ids(true)).ends_with("A lease is ")) << text(ids(true));
    EXPECT_FALSE(text(ids(false)).ends_with("A lease is "));
}

TEST_F(ServiceTest, TokenizesAsTheModelReads) {
    const Json plain = service().post("/tokenize", {{"prompt", question}, {"return_token_strs", true}})->json();
    const auto ids = service().tokenizer().encode(question, true);
    EXPECT_EQ(plain["tokens"], ids);
    EXPECT_EQ(plain["token_strs"].size(), ids.size());
    const auto bare = service().tokenizer().encode(question, false);
    EXPECT_EQ(service().post("/tokenize", {{"prompt", question}, {"add_special_tokens", false}})->json()["tokens"],
              bare);
    EXPECT_EQ(service().post("/detokenize", {{"tokens", bare}})->json()["prompt"], question);
    const Json info = service().ask("GET", "/tokenizer_info")->json();
    EXPECT_EQ(info["eos_token"], "<|end|>");
    EXPECT_TRUE(info.contains("chat_template"));
}

TEST_F(ServiceTest, ErrorsHaveOpenaisForm) {
    const auto error = [&](const std::shared_ptr<FakeResponse>& response, int status) {
        EXPECT_EQ(response->status(), status) << response->body();
        return response->json()["error"];
    };
    EXPECT_EQ(error(service().post("/v1/completions", {{"prompt", "x"}, {"guided_json", {}}}), 400)["param"],
              "guided_json");
    EXPECT_EQ(error(service().post("/v1/completions", {{"prompt", "x"}, {"model", "none"}}), 404)["code"],
              "model_not_found");
    const Json too_long = error(service().post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 500}}), 400);
    EXPECT_EQ(too_long["code"], "context_length_exceeded");
    EXPECT_NE(too_long["message"].get<std::string>().find("160"), std::string::npos);
    EXPECT_EQ(error(service().ask("POST", "/v1/completions", "{"), 400)["code"], "invalid_json");
    EXPECT_EQ(error(service().ask("GET", "/v2"), 404)["code"], "unknown_url");
    const auto wrong_method = service().ask("GET", "/v1/completions");
    EXPECT_EQ(error(wrong_method, 405)["code"], "method_not_allowed");
    EXPECT_EQ(wrong_method->header("allow"), "POST");
    EXPECT_EQ(service().ask("OPTIONS", "/v1/completions")->status(), 204);
    EXPECT_EQ(error(service().post("/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "b"}}), 403)["code"],
              "adapter_routes_off");
    EXPECT_EQ(service().ask("GET", "/health", "", {{"x-request-id", "mine-1"}})->header("x-request-id"), "mine-1");
    const auto invented = service().ask("GET", "/health", "", {{"x-request-id", "bad\r\nx: y"}});
    EXPECT_EQ(invented->header("x-request-id").size(), 32U);
}

TEST_F(ServiceTest, ModelsHealthAndMetrics) {
    const Json models = service().ask("GET", "/v1/models")->json();
    ASSERT_EQ(models["data"].size(), 1U);
    EXPECT_EQ(models["data"][0]["id"], "base");
    EXPECT_EQ(models["data"][0]["max_model_len"], 160);
    EXPECT_EQ(service().ask("GET", "/v1/models/base")->json(), models["data"][0]);
    EXPECT_EQ(service().ask("GET", "/v1/models/a/b")->status(), 404);
    EXPECT_EQ(service().ask("GET", "/health")->status(), 200);
    EXPECT_EQ(service().ask("GET", "/ready")->status(), 200);
    EXPECT_EQ(service().ask("GET", "/version")->status(), 200);
    const Json repeated = {{"prompt", question + " " + question + " " + question + " the rent, " + question + " " +
                                          question + " " + question + " what is due"},
                           {"max_tokens", 7},
                           {"ignore_eos", true}};
    const double before = service().metric("vllm:generation_tokens_total");
    const Json usage = completion(repeated)["usage"];
    EXPECT_EQ(service().metric("vllm:generation_tokens_total") - before, 7);
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
    const Json again = completion(repeated)["usage"];
    EXPECT_GT(again["prompt_tokens_details"]["cached_tokens"], 0);
    EXPECT_GT(service().metric("vllm:prefix_cache_hits_total"), 0);
    EXPECT_GT(service().metric("vllm:time_to_first_token_seconds_count"), 0);
}

TEST_F(ServiceTest, AClientThatLeavesFreesItsRows) {
    const double before = service().metric("vllm:generation_tokens_total");
    const Json body = {{"prompt", question}, {"max_tokens", 120}, {"n", 20}, {"stream", true}, {"ignore_eos", true}};
    const auto left = service().begin("POST", "/v1/completions", body.dump());
    left->wait_for_pieces(10);
    left->leave();
    completion({{"max_tokens", 2}});
    EXPECT_LT(service().metric("vllm:generation_tokens_total") - before, 20 * 120 / 2);
    EXPECT_EQ(service().metric("vllm:num_requests_waiting"), 0);
}

Json body_schema(const Json& document, const std::string& path) {
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
}

TEST(ServiceDocument, SaysWhatTheServiceAccepts) {
    RunningService open({.starts = false});
    const Json document = open.ask("GET", "/openapi.json")->json();
    EXPECT_EQ(document["openapi"], "3.1.0");
    EXPECT_EQ(body_schema(document, "/v1/completions")["additionalProperties"], false);
    EXPECT_EQ(document["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["name"], "id");
    EXPECT_FALSE(document["paths"]["/v1/models"]["get"].contains("security"));

    RunningOptions options;
    options.starts = false;
    options.service.keys = {"secret"};
    options.service.accept_unknown_fields = true;
    RunningService closed(options);
    const Json other = closed.ask("GET", "/openapi.json")->json();
    EXPECT_EQ(other.dump().find(R"("additionalProperties":false)"), std::string::npos);
    EXPECT_TRUE(other["paths"]["/v1/models"]["get"].contains("security"));
    EXPECT_FALSE(other["paths"]["/health"]["get"].contains("security"));
}

TEST(ServicePage, IsServedWithItsPolicyAndWithoutAKey) {
    RunningOptions options;
    options.starts = false;
    options.service.keys = {"secret"};
    RunningService service(options);
    const auto page = service.ask("GET", "/");
    EXPECT_EQ(page->status(), 200);
    EXPECT_EQ(page->header("content-type"), "text/html; charset=utf-8");
    EXPECT_TRUE(page->header("content-security-policy").starts_with("default-src 'none'; script-src 'sha256-"));
    EXPECT_EQ(page->header("x-content-type-options"), "nosniff");
    EXPECT_EQ(service.ask("POST", "/")->status(), 405);
    EXPECT_EQ(service.ask("GET", "/x")->status(), 404);
}

}  // namespace
}  // namespace unsloth
