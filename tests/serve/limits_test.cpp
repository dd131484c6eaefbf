// Who may ask, how much, and how a service ends.
#include "serve/support.h"

#include <limits>

#include "unsloth/serve/keys.h"

namespace unsloth {
namespace {

using namespace test;

const Json greedy_request = {{"prompt", "The tenant"}, {"max_tokens", 8}, {"temperature", 0}, {"ignore_eos", true}};

TEST(ServiceLimits, KeysAreAskedFor) {
    RunningOptions options;
    options.service.keys = {"secret-1", "secret-2"};
    RunningService service(options);
    const auto with = [&](const std::string& value) {
        http::Headers headers;
        if (!value.empty()) headers.emplace_back("authorization", value);
        return service.ask("GET", "/v1/models", "", headers);
    };
    for (const char* wrong : {"", "Bearer ", "Bearer secret", "Bearer secret-11", "secret-1", "Basic secret-1"}) {
        const auto refused = with(wrong);
        EXPECT_EQ(refused->status(), 401) << wrong;
        EXPECT_EQ(refused->json()["error"]["code"], "invalid_api_key");
        EXPECT_EQ(refused->json()["error"]["type"], "authentication_error");
        EXPECT_EQ(refused->body().find("secret"), std::string::npos);
    }
    EXPECT_EQ(with("Bearer secret-1")->status(), 200);
    EXPECT_EQ(with("Bearer secret-2")->status(), 200);
    for (const char* path : {"/health", "/ready", "/version", "/metrics"})
        EXPECT_EQ(service.ask("GET", path)->status(), 200) << "probes have no key";
    EXPECT_EQ(service.ask("POST", "/tokenize", "{}")->status(), 401);
    EXPECT_EQ(serve::find_key({"a", "bc"}, "bc"), 1);
    EXPECT_EQ(serve::find_key({"a", "bc"}, ""), -1);
    EXPECT_EQ(serve::find_key({std::string(serve::longest_key, 'k')}, std::string(serve::longest_key + 1, 'k')), -1);
}

TEST(ServiceLimits, AFullQueueIsToldWithWhenToRetry) {
    RunningOptions options;
    options.most_waiting = 3;
    options.starts = false;
    RunningService service(options);
    std::vector<std::shared_ptr<FakeResponse>> taken;
    for (int i = 0; i < 3; ++i) taken.push_back(service.begin("POST", "/v1/completions", greedy_request.dump()));
    // Two workers take requests in any order: four more are refused once three wait.
    std::vector<std::shared_ptr<FakeResponse>> more;
    for (int i = 0; i < 4; ++i) more.push_back(service.begin("POST", "/v1/completions", greedy_request.dump()));
    while (service.metric_or("vllm:admission_rejections_total", 0) < 4) std::this_thread::yield();
    service.start();
    int refused = 0;
    for (const auto& all : {taken, more}) {
        for (const auto& response : all) {
            response->wait();
            if (response->status() == 200) continue;
            ++refused;
            EXPECT_EQ(response->status(), 429);
            EXPECT_EQ(response->header("retry-after"), "1");
            EXPECT_EQ(response->json()["error"]["type"], "rate_limit_error");
        }
    }
    EXPECT_EQ(refused, 4);
}

/// A client with one question does not wait for another's many.
TEST(ServiceLimits, RowsGoToClientsInTurn) {
    RunningOptions options;
    options.rows = 2;
    options.starts = false;
    RunningService service(options);
    Json many = greedy_request;
    many["n"] = 30;
    many["temperature"] = 1;
    const auto hungry = service.begin("POST", "/v1/completions", many.dump(), {}, "10.0.0.1:5");
    const auto modest = service.begin("POST", "/v1/completions", greedy_request.dump(), {}, "10.0.0.2:5");
    while (service.metric_or("vllm:request_params_n_count", 0) < 2) std::this_thread::yield();
    service.start();
    modest->wait();
    EXPECT_LT(service.metric("vllm:request_success_total"), 10) << "of 31";
    hungry->wait();
    EXPECT_EQ(hungry->json()["choices"].size(), 30U);
}

TEST(ServiceLimits, RunningAnswersEndBeforeTheServiceDoes) {
    RunningService service;
    Json body = greedy_request;
    body["max_tokens"] = 100;
    body["stream"] = true;
    const auto running = service.begin("POST", "/v1/completions", body.dump());
    running->wait_for_pieces(2);
    service.ask_to_stop();
    auto ready = service.ask("GET", "/ready");
    for (; ready->status() == 200; ready = service.ask("GET", "/ready")) std::this_thread::yield();
    EXPECT_EQ(ready->status(), 503);
    EXPECT_EQ(service.ask("GET", "/health")->status(), 200);
    const auto late = service.post("/v1/completions", greedy_request);
    EXPECT_EQ(late->status(), 503);
    EXPECT_EQ(late->json()["error"]["code"], "shutting_down");
    running->wait();
    service.stop();
    const std::vector<Json> events = running->events();
    EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
}

TEST(ServiceLimits, WhatDoesNotEndInTimeIsCut) {
    RunningOptions options;
    options.rows = 1;
    options.shutdown_timeout = std::chrono::milliseconds(0);
    RunningService service(options);
    Json body = greedy_request;
    body["max_tokens"] = 150;
    body["stream"] = true;
    const auto running = service.begin("POST", "/v1/completions", body.dump());
    running->wait_for_pieces(2);
    const auto waiting = service.begin("POST", "/v1/completions", greedy_request.dump());
    while (service.metric("vllm:request_params_n_count") < 2) std::this_thread::yield();
    service.stop();
    running->wait();
    waiting->wait();
    EXPECT_FALSE(running->events().back()["choices"][0]["finish_reason"].is_null());
    EXPECT_EQ(waiting->status(), 503);
}

/// Its neighbours go on.
TEST(ServiceLimits, LogitsThatAreNotFiniteEndTheirOwnAnswerOnly) {
    UNSLOTH_NEEDS_XZ();
    constexpr int32_t spoiled = 255;  // its embedding is NaN
    const ScratchFolder folder;
    RunningOptions options;
    options.model =
        spoiled_model(folder, "model.embed_tokens.weight", spoiled, std::numeric_limits<float>::quiet_NaN());
    options.context = 48;
    RunningService service(options);
    const auto ask = [&](const Json& prompt, bool stream = false) {
        return service.post(
            "/v1/completions",
            {{"prompt", prompt}, {"max_tokens", 4}, {"temperature", 0}, {"ignore_eos", true}, {"stream", stream}});
    };
    const Json good = {3, 5, 8}, bad = {4, spoiled, 6};
    const Json choices = ask({good, bad, good})->json()["choices"];
    ASSERT_EQ(choices.size(), 3U);
    EXPECT_EQ(choices[0]["finish_reason"], "length");
    EXPECT_EQ(choices[1]["finish_reason"], "error");
    EXPECT_EQ(choices[2]["text"], choices[0]["text"]);
    const auto alone = ask(bad);
    EXPECT_EQ(alone->status(), 500);
    EXPECT_EQ(alone->json()["error"]["code"], "not_finite");
    const std::vector<Json> events = ask(bad, true)->events();
    EXPECT_TRUE(events.back().contains("error")) << "openai's client raises from it";
    EXPECT_EQ(ask(good)->status(), 200);
    EXPECT_EQ(service.ask("GET", "/health")->status(), 200);
}

}  // namespace
}  // namespace unsloth
