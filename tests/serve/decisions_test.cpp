// Questions that share their input, against what the model's own probabilities say.
#include <cmath>

#include "serve/support.h"

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

}  // namespace
}  // namespace unsloth
