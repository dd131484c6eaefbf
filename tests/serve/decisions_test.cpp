// Questions that share their input, against what the model's own probabilities say.
#include <cmath>

#include "serve/prompts.h"
#include "serve/random_adapter.h"
#include "unsloth/data/encoder.h"
#include "unsloth/data/format.h"
#include "unsloth/formats/decision_calibration.h"

namespace unsloth {
namespace {

using namespace test;

TEST(Decisions, AreTheSharesOfTheLabelsProbabilities) {
    RunningOptions options;
    options.context = 256;
    RunningService service(options);
    const std::string input =
        "The tenant shall pay the rent on the first day of each month, and the landlord shall keep the premises in "
        "good repair, and if either of them fails to do so, then the other one may terminate this lease by notice.";
    const Json choice = {{"type", "choice"},
                         {"instructions", "What is this?"},
                         {"name", "kind"},
                         {"choices", Json::array({{{"value", "lease"}}, {{"value", "loan"}}, {{"value", "will"}}})}};
    const Json questions =
        Json::array({choice, {{"type", "predicate"}, {"instructions", "Rent is due monthly."}}, choice});
    const auto response =
        service.post("/v1/decisions", {{"model", "base"}, {"input", input}, {"questions", questions}});
    ASSERT_EQ(response->status(), 200) << response->body();
    const Json answer = response->json();
    ASSERT_EQ(answer["answers"].size(), 3U);
    for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(answer["answers"][0]["probabilities"][i]["probability"].get<double>(),
                    answer["answers"][2]["probabilities"][i]["probability"].get<double>(), 1e-5);
    EXPECT_EQ(answer["answers"][1]["type"], "predicate");
    EXPECT_GT(answer["usage"]["input_tokens_details"]["cached_tokens"], 0) << "the input is computed once";

    // The same conversation, through the other routes: its ids, and the model's own logits behind them.
    const std::string asked =
        input + "\n\nWhat is this?\nA. lease\nB. loan\nC. will\nAnswer with the label of one option alone.";
    const auto ids = service.post("/tokenize", {{"messages", Json::array({{{"role", "user"}, {"content", asked}}})}})
                         ->json()["tokens"]
                         .get<std::vector<int32_t>>();
    model::LoadRequest whole = request_for({});
    whole.sizes.tokens = whole.sizes.longest = whole.sizes.head_rows = 256;
    const LoadedModel model = load_model(RunningOptions{}.model, whole);
    const at::Tensor p = score_every_position(*model.model, {ids}).logits_TV[-1].to(at::kDouble).softmax(-1);
    const auto labels = openai::option_labels(service.tokenizer(), 3);
    ASSERT_TRUE(labels);
    std::vector<double> weights;
    double mass = 0;
    for (const openai::OptionLabel& label : *labels) {
        weights.push_back(0);
        for (const int32_t id : label.ids) weights.back() += p[id].item<double>();
        mass += weights.back();
    }
    for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(answer["answers"][0]["probabilities"][i]["probability"].get<double>(), weights[i] / mass, 1e-4);
    EXPECT_NEAR(answer["answers"][0]["confidence"].get<double>(), std::ranges::max(weights), 1e-5);
}

TEST(Decisions, LabelsAreTokensOfTheirOwn) {
    for (const char* name : {"llama3_small", "llama2_small"}) {
        const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer") / name);
        const auto labels = openai::option_labels(tokenizer, 10);
        ASSERT_TRUE(labels) << name;
        std::set<int32_t> all;
        std::size_t count = 0;
        for (const openai::OptionLabel& label : *labels) {
            EXPECT_FALSE(label.ids.empty());
            all.insert(label.ids.begin(), label.ids.end());
            count += label.ids.size();
        }
        EXPECT_EQ(all.size(), count) << "no token is two labels";
        EXPECT_FALSE(openai::option_labels(tokenizer, 255)) << "a small vocabulary has no such pairs";
    }
}

TEST(Decisions, AreAskedAsTheyAreLearnt) {
    const Json question = {{"type", "score"},
                           {"instructions", "How clear is this?"},
                           {"levels",
                            Json::array({{{"label", "not"}, {"description", "no end"}}, {{"label", "very"}}})}},
               chat =
                   Json::array({{{"role", "system"}, {"content", "Read."}}, {{"role", "user"}, {"content", "Rent."}}});
    for (const char* name : {"llama3_small", "llama2_small"})
        for (const char* chat_template : {"auto", "alpaca"})
            for (const Json& input : {Json("The tenant shall pay."), chat}) {
                const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer") / name);
                const auto encoder = data::make_row_encoder(tokenizer, chat_template);
                data::RowOptions options;
                options.objective = config::Objective::decision;
                const data::FormattedRow learnt =
                    data::RowFormatter(config::DataFormat::decision, options, encoder.get())
                        .format(Json{{"input", input}, {"question", question}, {"answer", 0}});
                const openai::DecisionRequest request = openai::parse_decision(
                    Json{{"model", "m"}, {"input", input}, {"questions", Json::array({question})}}.dump(), {});
                const serve::PromptReader reader(tokenizer, tokenizer::ChatTemplate::choose(chat_template, tokenizer));
                const openai::DecisionPrompt asked = reader.decision(*request.messages, request.questions[0], "q");
                EXPECT_EQ(std::vector(learnt.ids.begin(), learnt.ids.end() - 1), asked.ids);
                std::vector<int32_t> ids;
                for (const openai::OptionLabel& label : asked.labels)
                    ids.insert(ids.end(), label.ids.begin(), label.ids.end());
                EXPECT_EQ(learnt.options.ids, ids);
            }
}

TEST(Decisions, OfAnAdapterAreScaledByItsCalibration) {
    const ScratchFolder root;
    RunningOptions options;
    options.context = 256;
    options.slots = {.count = 2, .rank = 8};
    options.service.may_load_adapters = true;
    options.service.adapter_root = root.path().string();
    RunningService service(options);
    const auto load = [&](const std::string& name) {
        return service.post("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", (root / name).string()}});
    };
    const Json choice = {{"type", "choice"},
                         {"instructions", "What is this?"},
                         {"choices", Json::array({{{"value", "lease"}}, {{"value", "loan"}}, {{"value", "will"}}})}};
    const auto ask = [&](const std::string& model) {
        const auto response = service.post(
            "/v1/decisions", {{"model", model}, {"input", "The tenant pays."}, {"questions", Json::array({choice})}});
        EXPECT_EQ(response->status(), 200) << response->body();
        std::vector<double> p;
        const Json answer = response->json();
        for (const Json& one : answer["answers"][0]["probabilities"]) p.push_back(one["probability"]);
        return p;
    };
    write_random_adapter(root / "plain", lora_of(4), 7);
    write_random_adapter(root / "calibrated", lora_of(4), 7);
    write_random_adapter(root / "damaged", lora_of(4), 7);
    formats::DecisionCalibration calibration;
    calibration.temperature = 2.5;
    write_text(root / "calibrated" / formats::decision_calibration_file,
               formats::write_decision_calibration(calibration));
    write_text(root / "damaged" / formats::decision_calibration_file, R"({"version": 1, "temperature": 0})");
    const auto refused = load("damaged");
    EXPECT_EQ(refused->status(), 400);
    EXPECT_NE(refused->body().find("temperature: expected a number above 0"), std::string::npos) << refused->body();
    ASSERT_EQ(load("plain")->status(), 200);
    ASSERT_EQ(load("calibrated")->status(), 200);
    const std::vector<double> plain = ask("plain"), scaled = ask("calibrated");
    double sum = 0;
    for (const double p : plain) sum += std::pow(p, 1 / 2.5);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], std::pow(plain[i], 1 / 2.5) / sum, 1e-5);
    EXPECT_GT(std::abs(scaled[0] - plain[0]), 1e-3);
}

}  // namespace
}  // namespace unsloth
