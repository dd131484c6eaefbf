// gRPC over a service: the same answers, limits and ends as over HTTP.
#include <set>

#include "serve/support.h"
#include "unsloth/grpc/call.h"
#include "unsloth/grpc/schema.h"

namespace unsloth::test {
namespace {

const std::string question = "The tenant shall pay the rent";
const std::string generation = "/unsloth.v1.Generation/", engine = "/vllm.grpc.engine.VllmEngine/";

/// What came of a call; its messages are read once it has ended.
struct Rpc {
    const grpc::Method* method;
    std::shared_ptr<FakeResponse> response;

    std::vector<Json> messages() const {
        grpc::MessageReader reader;
        reader.add(response->body());
        std::vector<Json> all;
        while (const auto message = reader.next()) all.push_back(grpc::read_message(*message, *method->output));
        EXPECT_TRUE(reader.empty());
        return all;
    }
    Json message() const {
        const std::vector<Json> all = messages();
        EXPECT_EQ(all.size(), 1U) << status();
        return all.empty() ? Json() : all[0];
    }
    std::string status() const { return response->header("grpc-status") + " " + response->header("grpc-message"); }
};

Rpc begin(RunningService& service, const std::string& path, const Json& request, http::Headers headers = {}) {
    const grpc::Method* const method = grpc::Schema::own().method(path);
    UNSLOTH_CHECK(method != nullptr, path);
    headers.emplace_back("content-type", "application/grpc");
    return {method, service.begin("POST", path, grpc::framed(grpc::write_message(request, *method->input)), headers)};
}

Rpc call(RunningService& service, const std::string& path, const Json& request, http::Headers headers = {}) {
    Rpc made = begin(service, path, request, std::move(headers));
    made.response->wait();
    return made;
}

class RpcTest : public ::testing::Test {
  public:
    static void SetUpTestSuite() { service_ = std::make_unique<RunningService>(); }
    static void TearDownTestSuite() { service_.reset(); }
    static RunningService& service() { return *service_; }

  private:
    static inline std::unique_ptr<RunningService> service_;
};

TEST_F(RpcTest, AnswersAreThoseOfHttp) {
    const Json wish = {{"prompt", question}, {"max_tokens", 16},  {"seed", 7}, {"n", 2},
                       {"logprobs", 2},      {"temperature", 0.9}};
    const Json expected = service().post("/v1/completions", wish)->json();
    const Json whole = call(service(), generation + "Generate", wish).message();
    EXPECT_EQ(whole["model"], "base");
    EXPECT_EQ(whole["usage"]["completion_tokens"], expected["usage"]["completion_tokens"]);
    std::vector<std::string> texts(2);
    std::vector<Json> tokens(2, Json::array());
    const Rpc stream = call(service(), generation + "GenerateStream", wish);
    for (const Json& message : stream.messages())
        for (const Json& choice : message.value("choices", Json::array())) {
            const std::size_t index = choice.value("index", 0U);
            texts[index] += choice.value("text", "");
            for (const Json& token : choice.value("tokens", Json::array())) tokens[index].push_back(token);
        }
    EXPECT_EQ(stream.status(), "0 ");
    EXPECT_EQ(stream.messages().back()["usage"], whole["usage"]);
    for (std::size_t i = 0; i < 2; ++i) {
        const Json &choice = whole["choices"][i], &other = expected["choices"][i];
        EXPECT_EQ(choice["text"], other["text"]);
        EXPECT_EQ(choice["finish_reason"], other["finish_reason"]);
        EXPECT_EQ(texts[i], other["text"]);
        EXPECT_EQ(tokens[i], choice["tokens"]);
        ASSERT_EQ(choice["tokens"].size(), other["logprobs"]["token_logprobs"].size());
        EXPECT_FLOAT_EQ(choice["tokens"][0]["logprob"], other["logprobs"]["token_logprobs"][0]);
        EXPECT_EQ(choice["tokens"][0]["top"].size(), 2U);
    }
    Json by_ids = wish;
    by_ids.erase("prompt");
    by_ids["prompt_ids"] = {{"ids", service().tokenizer().encode(question, true)}};
    EXPECT_EQ(call(service(), generation + "Generate", by_ids).message()["choices"], whole["choices"]);
}

TEST_F(RpcTest, ConversationsGoThroughTheTemplate) {
    const Json messages = Json::array({{{"role", "user"}, {"content", question}}});
    const Json common = {{"max_tokens", 12}, {"temperature", 0.0}, {"stop", {" the"}}};
    Json chat = common, rpc = common;
    chat["messages"] = messages;
    rpc["conversation"] = {{"messages", messages}};
    const Json expected = service().post("/v1/chat/completions", chat)->json()["choices"][0];
    const Json choice = call(service(), generation + "Generate", rpc).message()["choices"][0];
    EXPECT_EQ(choice.value("text", ""), expected["message"]["content"]);
    EXPECT_EQ(choice["finish_reason"], expected["finish_reason"]);
    const Json constrained = {{"prompt", question}, {"choice", {{"choices", {"yes", "no"}}}}};
    const std::string text = call(service(), generation + "Generate", constrained).message()["choices"][0]["text"];
    EXPECT_TRUE(text == "yes" || text == "no") << text;
}

TEST_F(RpcTest, RefusalsNameTheField) {
    const auto refused = [&](const std::string& method, const Json& request, const std::string& status,
                             const std::string& word) {
        const std::string got = call(service(), method, request).status();
        EXPECT_TRUE(got.starts_with(status + " ") && got.find(word) != std::string::npos) << got << " for " << word;
    };
    const std::string one = generation + "Generate";
    refused(one, {{"prompt", "x"}, {"temperature", 3.0}}, "3", "'temperature'");
    refused(one, {{"prompt", "x"}, {"regex", "("}}, "3", "'regex'");
    refused(one, {{"prompt", "x"}, {"json_schema", "{"}}, "3", "'json_schema'");
    refused(one, {{"prompt", "x"}, {"stop_token_ids", {1 << 30}}}, "3", "'stop_token_ids'");
    refused(one, {{"prompt", "x"}, {"max_tokens", 5000}}, "3", "maximum context length");
    refused(one, {{"max_tokens", 3}}, "3", "'prompt'");
    refused(one, {{"prompt", "x"}, {"model", "nobody"}}, "5", "nobody");
    refused(one, {{"conversation", {{"messages", Json::array()}}}}, "3", "'conversation.messages'");
    refused(one,
            {{"conversation",
              {{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})},
               {"tools", Json::array({{{"name", "f"}, {"parameters", "{"}}})}}}},
            "3", "'tools.parameters'");
    refused(generation + "LoadAdapter", {{"lora_name", "a"}, {"lora_path", "b"}}, "7", "Adapters");
    refused(engine + "Generate", {{"text", "x"}, {"sampling_params", {{"grammar", "root ::= x"}}}}, "3", "'grammar'");
    refused(engine + "Generate", {{"text", "x"}, {"data_parallel_rank", 1}}, "3", "'data_parallel_rank'");
    refused(engine + "Generate", {{"text", "x"}, {"sampling_params", {{"prompt_logprobs", -1}}}}, "3",
            "'prompt_logprobs'");

    const http::Headers type{{"content-type", "application/grpc"}};
    const auto raw = [&](const std::string& path, const std::string& body) {
        return service().ask("POST", path, body, type)->header("grpc-status");
    };
    EXPECT_EQ(raw(one, grpc::framed("\xf8\x3f\x01")), "3") << "an unknown field";
    EXPECT_EQ(raw(one, grpc::framed("")), "3") << "no prompt";
    EXPECT_EQ(raw(one, "\1\1"), "3") << "no message";
    EXPECT_EQ(raw("/unsloth.v1.Generation/Sing", grpc::framed("")), "12");
    EXPECT_EQ(raw("/v1/models", grpc::framed("")), "12");
}

TEST_F(RpcTest, RowsAreFreeOnceTheirClientsLeave) {
    const Json wish = {{"prompt", question}, {"max_tokens", 150}, {"ignore_eos", true}, {"n", 8}};
    for (const std::string& method : {generation + "Generate", generation + "GenerateStream"}) {
        const Rpc long_one = begin(service(), method, wish);
        while (service().metric_or("vllm:num_requests_running", 0) == 0) std::this_thread::yield();
        long_one.response->leave();
        const Rpc next = call(service(), generation + "Generate", {{"prompt", question}, {"max_tokens", 2}});
        EXPECT_EQ(next.status(), "0 ");
        EXPECT_EQ(service().metric("vllm:num_requests_running"), 0);
    }
}

TEST_F(RpcTest, IdsGoInAndOut) {
    const std::vector<int32_t> prompt = service().tokenizer().encode(question, true);
    const Json http = service()
                          .post("/v1/completions", {{"prompt", question}, {"max_tokens", 10}, {"temperature", 0}})
                          ->json()["choices"][0];
    Json wish = {{"tokenized", {{"input_ids", prompt}}},
                 {"sampling_params", {{"temperature", 0.0}, {"max_tokens", 10}, {"logprobs", 1}}},
                 {"request_id", "one"}};
    const Json whole = call(service(), engine + "Generate", wish).message()["complete"];
    const std::vector<int32_t> ids = whole["output_ids"];
    EXPECT_EQ(whole["finish_reason"], http["finish_reason"]);
    EXPECT_EQ(whole["prompt_tokens"], prompt.size());
    EXPECT_EQ(whole["completion_tokens"], ids.size());
    EXPECT_EQ(whole["output_logprobs"]["token_ids"], ids);
    const std::string text = service().tokenizer().decode(ids, true);
    EXPECT_NE(http["text"].get<std::string>().find(text), std::string::npos) << text;

    wish["stream"] = true;
    const std::vector<Json> pieces = call(service(), engine + "Generate", wish).messages();
    std::vector<int32_t> streamed;
    for (const Json& piece : pieces)
        if (piece.contains("chunk"))
            for (const Json& id : piece["chunk"]["token_ids"]) streamed.push_back(id);
    EXPECT_EQ(streamed, ids);
    EXPECT_EQ(pieces.back()["complete"]["output_ids"], ids);

    wish["sampling_params"]["stop"] = {text.substr(text.size() / 2, 3)};
    wish["sampling_params"]["prompt_logprobs"] = 1;
    wish["sampling_params"]["max_tokens"] = 100;
    const Json stopped = call(service(), engine + "Generate", wish).messages().back()["complete"];
    EXPECT_EQ(stopped["matched_stop_str"], text.substr(text.size() / 2, 3));
    EXPECT_LT(stopped["output_ids"].size(), ids.size());
    EXPECT_EQ(stopped["input_logprobs"]["token_ids"], prompt);
    EXPECT_FALSE(stopped["input_logprobs"]["token_logprobs"][0].contains("value"));
}

TEST_F(RpcTest, AbortEndsARequest) {
    const Json wish = {{"text", question},
                       {"request_id", "long"},
                       {"stream", true},
                       {"sampling_params", {{"max_tokens", 150}, {"ignore_eos", true}, {"n", 8}}}};
    const Rpc long_one = begin(service(), engine + "Generate", wish);
    long_one.response->wait_for_pieces(1);
    EXPECT_EQ(call(service(), engine + "Generate", wish).status().substr(0, 2), "9 ") << "its id is taken";
    EXPECT_EQ(call(service(), engine + "Abort", {{"request_ids", {"long", "nobody"}}}).status(), "0 ");
    long_one.response->wait();
    EXPECT_EQ(long_one.status(), "0 ");
    int64_t aborted = 0, tokens = 0;
    for (const Json& message : long_one.messages())
        if (message.contains("complete")) {
            aborted += message["complete"]["finish_reason"] == "abort" ? 1 : 0;
            tokens += message["complete"].value("completion_tokens", 0);
        }
    EXPECT_EQ(aborted, 8);
    EXPECT_GT(tokens, 0);
    while (call(service(), engine + "GetLoads", Json::object()).message()["loads"][0].contains("num_running_reqs"))
        std::this_thread::yield();
}

TEST_F(RpcTest, GatewaysLearnWhatIsServed) {
    const Json models = call(service(), generation + "ListModels", Json::object()).message()["models"];
    EXPECT_EQ(models[0]["id"], "base");
    const Json model = call(service(), engine + "GetModelInfo", Json::object()).message();
    EXPECT_EQ(model["model_type"], "llama");
    EXPECT_EQ(model["max_context_length"], 160);
    EXPECT_EQ(call(service(), engine + "GetServerInfo", Json::object()).message()["max_num_seqs"], 8);
    EXPECT_EQ(call(service(), engine + "HealthCheck", Json::object()).message()["healthy"], true);
    const std::vector<Json> chunks = call(service(), engine + "GetTokenizer", Json::object()).messages();
    std::string archive;
    for (const Json& chunk : chunks) archive += chunk["data"];
    EXPECT_TRUE(archive.starts_with("PK\x03\x04"));
    EXPECT_NE(archive.find("tokenizer.json"), std::string::npos);
    EXPECT_EQ(chunks.back()["sha256"].get<std::string>().size(), 64U);

    const std::string long_prompt = question + " and the landlord shall repair the roof before the first of May " +
                                    "of each year, in the manner that the parties have agreed on in this lease.";
    const auto cached = [&] {
        const Json answer = call(service(), generation + "Generate", {{"prompt", long_prompt}}).message();
        return answer["usage"].value("cached_tokens", 0);
    };
    cached();
    EXPECT_GT(cached(), 0);
    EXPECT_EQ(call(service(), engine + "FlushCache", Json::object()).message()["success"], true);
    EXPECT_EQ(cached(), 0);
}

TEST_F(RpcTest, ReflectionAnswersBeforeTheRequestsEnd) {
    for (const std::string version : {"v1", "v1alpha"}) {
        const std::string path = "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo";
        const grpc::Method* const method = grpc::Schema::own().method(path);
        const http::Request header{"POST", path, "", {{"content-type", "application/grpc"}}, "", ""};
        EXPECT_TRUE(serve::Service::takes_pieces(header));
        const Rpc asked{method, service().begin("POST", path, "", header.headers)};
        const std::string question_bytes = grpc::framed(grpc::write_message({{"list_services", "*"}}, *method->input));
        asked.response->more(question_bytes.substr(0, 3), false);
        asked.response->more(question_bytes.substr(3), false);
        EXPECT_EQ(asked.messages().size(), 1U);
        asked.response->more(question_bytes, true);
        EXPECT_EQ(asked.messages()[1]["list_services_response"]["service"].size(), 5U);
        EXPECT_EQ(asked.status(), "0 ");
        const Rpc flood{method, service().begin("POST", path, "", header.headers)};
        flood.response->more(grpc::framed(std::string(10'000, 'x')).substr(0, 5000), false);
        EXPECT_EQ(flood.status().substr(0, 2), "8 ");
    }
}

TEST(Rpc, KeysDeadlinesAndTheEnd) {
    RunningOptions options;
    options.starts = false;
    options.service.keys = {"secret"};
    RunningService service(options);
    const http::Headers key{{"authorization", "Bearer secret"}};
    const Json wish = {{"prompt", question}, {"max_tokens", 4}};
    const std::string one = generation + "Generate", health = "/grpc.health.v1.Health/";
    EXPECT_EQ(call(service, one, wish).status().substr(0, 3), "16 ");
    EXPECT_EQ(call(service, one, wish, {{"authorization", "Bearer other"}}).status().substr(0, 3), "16 ");
    http::Headers site = key;
    site.emplace_back("sec-fetch-site", "cross-site");
    EXPECT_EQ(call(service, one, wish, site).status().substr(0, 2), "7 ") << "another site's page";
    EXPECT_EQ(call(service, health + "Check", {{"service", "unsloth.v1.Generation"}}).message()["status"], "SERVING");
    EXPECT_EQ(call(service, health + "Check", {{"service", "nobody"}}).status().substr(0, 2), "5 ");
    const Rpc watch = begin(service, health + "Watch", Json::object());

    http::Headers late = key;
    late.emplace_back("grpc-timeout", "1n");
    const Rpc too_late = begin(service, one, wish, late), in_time = begin(service, one, wish, key);
    const Rpc late_ids = begin(service, engine + "Generate", {{"text", question}}, late);
    late.back().second = "soon";
    EXPECT_EQ(call(service, one, wish, late).status().substr(0, 2), "3 ");
    service.start();
    too_late.response->wait();
    late_ids.response->wait();
    in_time.response->wait();
    EXPECT_EQ(too_late.status().substr(0, 2), "4 ");
    EXPECT_EQ(late_ids.status().substr(0, 2), "4 ");
    EXPECT_EQ(in_time.status(), "0 ");

    service.ask_to_stop();
    watch.response->wait_for_pieces(2);
    EXPECT_EQ(watch.messages()[0]["status"], "SERVING");
    EXPECT_EQ(watch.messages()[1]["status"], "NOT_SERVING");
    EXPECT_EQ(call(service, health + "Check", Json::object()).message()["status"], "NOT_SERVING");
    service.stop();
    EXPECT_EQ(call(service, one, wish, key).status().substr(0, 3), "14 ");
    service.finish();
    EXPECT_EQ(watch.status().substr(0, 3), "14 ");
}

TEST(Rpc, AFullQueueIsExhausted) {
    RunningOptions options;
    options.starts = false;
    options.most_waiting = 1;
    RunningService service(options);
    const Json wish = {{"prompt", question}, {"max_tokens", 2}};
    std::vector<Rpc> calls;
    for (int i = 0; i < 3; ++i) calls.push_back(begin(service, generation + "Generate", wish));
    while (service.metric_or("vllm:admission_rejections_total", 0) < 2) std::this_thread::yield();
    service.start();
    std::multiset<std::string> ends;
    for (const Rpc& one : calls) {
        one.response->wait();
        ends.insert(one.response->header("grpc-status"));
    }
    EXPECT_EQ(ends, (std::multiset<std::string>{"0", "8", "8"}));
}

}  // namespace
}  // namespace unsloth::test
