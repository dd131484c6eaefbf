// Cards, and predicted times against measured ones.
#include "unsloth/planner/card.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/planner/step_time.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::planner {
namespace {

TEST(Card, IsFoundByTheNamesThatPeopleAndDriversUse) {
    for (const char* name : {"H200", "nvidia h200", "NVIDIA H200"}) EXPECT_EQ(find_card(name).name, "NVIDIA H200");
    for (const char* name : {"rtx_4090", "4090"}) EXPECT_EQ(find_card(name).name, "NVIDIA GeForce RTX 4090");
    for (const char* name : {"", "24", "2080"}) EXPECT_THROW(find_card(name), Error) << name;
    bool known = false;
    EXPECT_EQ(card_of_driver("NVIDIA H100 80GB HBM3", 9.0, known).name, "NVIDIA H100");
    EXPECT_TRUE(known);
    const Card other = card_of_driver("NVIDIA RTX 4070", 8.9, known);
    EXPECT_FALSE(known);
    EXPECT_EQ(other.name, "NVIDIA RTX 4070");
    EXPECT_EQ(other.compute_capability, 8.9);
    for (const char* name : {"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A1000"}) {  // other chips
        EXPECT_EQ(card_of_driver(name, 8.9, known).name, name);
        EXPECT_FALSE(known) << name;
        EXPECT_THROW(find_card(name), Error) << name;
    }
    EXPECT_GE(card_names().size(), 8U);
    try {
        find_card("Voodoo 2");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "device.unknown-card");
        EXPECT_NE(std::string(error.what()).find("NVIDIA H200"), std::string::npos) << error.what();
    }
}

TEST(Card, RefusesWhatIsNone) {
    for (const char* text : {"", "[]", R"({"name": "x"})"}) EXPECT_THROW(parse_card(text, "card.json"), Error) << text;
    // Numbers of which no time and no size follows that may be counted in.
    const auto card = nlohmann::json::parse(spec::card_files().front());
    for (const char* key : {"memory_gib", "context_gib", "copy_gbs", "link_gbs", "layer_gap_us", "compute_capability"})
        for (const char* number : {"0", "-1", "5e-324", "1e300", "null", "\"x\""}) {
            auto changed = card;
            changed[key] = nlohmann::json::parse(number);
            EXPECT_THROW(parse_card(changed.dump(), "card.json"), Error) << key << " " << number;
        }
    for (const char* size : {"inf", "nan", "0", "1e300", "x"}) {
        auto changed = card;
        changed["products_tflops"] = {{size, 100}};
        EXPECT_THROW(parse_card(changed.dump(), "card.json"), Error) << size;
    }
}

TEST(Card, SaysHowGpusExchange) {
    const Card server = find_card("H200"), desktop = find_card("RTX 4090");
    EXPECT_EQ(server.peer_over, "NVLink");
    EXPECT_TRUE(server.peer_reach);
    EXPECT_GT(server.peer, 4 * server.link);
    EXPECT_EQ(desktop.peer_over, "PCIe");
    EXPECT_FALSE(desktop.peer_reach);
    EXPECT_EQ(desktop.peer, desktop.link);
    // A file that does not say it: by the link.
    std::string text = spec::card_files().front();
    const std::size_t begin = text.find("\"peers\""), end = text.find('\n', begin);
    ASSERT_NE(begin, std::string::npos);
    text.erase(begin, end - begin);
    const Card unsaid = parse_card(text, "card.json");
    EXPECT_EQ(unsaid.peer, unsaid.link);
    EXPECT_FALSE(unsaid.peer_reach);
}

TEST(Card, RatesLieBetweenTheirEntries) {
    const RateBySize rates = {{128, 100}, {512, 300}, {2048, 400}};
    EXPECT_EQ(rate_at(rates, 1), 100);
    EXPECT_EQ(rate_at(rates, 1e9), 400);
    EXPECT_NEAR(rate_at(rates, 256), 200, 1e-9);
    EXPECT_NEAR(rate_at(rates, 1024), 350, 1e-9);
}

/// Steps that docs/performance has (H200) or that were measured beside it (H100).
struct Measured {
    const char* card;
    int64_t tokens, longest;
    spec::LayerPlan layer;
    double ms;
    const char* shape = "llama-3.1-8b";
    double within = 0.1;
};

TEST(StepTime, IsNearWhatWasMeasured) {
    using spec::Keep, spec::Place;
    const Measured all[] = {
        {"H200", 16384, 2048, {Keep::everything, Place::device, true}, 881.5},
        {"H200", 16384, 2048, {Keep::everything}, 865.8},
        {"H200", 16384, 2048, {Keep::but_mlp, Place::host}, 1070.2},
        {"H200", 4096, 2048, {Keep::everything, Place::device, true}, 224.5},
        {"H200", 4096, 2048, {Keep::but_mlp, Place::host}, 282.9},
        {"H200", 512, 512, {Keep::everything, Place::device, true}, 31.3},
        {"H200", 128, 128, {Keep::everything, Place::device, true}, 13.5},
        {"H200", 16384, 16384, {Keep::everything, Place::device, true}, 1263.5},
        {"H200", 131072, 131072, {Keep::attention}, 37459},
        {"H100", 16384, 2048, {Keep::everything, Place::device, true}, 926},
        {"H100", 16384, 2048, {Keep::but_mlp, Place::host}, 1132},
        {"H100", 4096, 2048, {Keep::everything, Place::device, true}, 238.5},
        {"H100", 512, 512, {Keep::everything, Place::device, true}, 31.8},
        {"H100", 16384, 16384, {Keep::everything, Place::device, true}, 1325},
        {"H200", 16384, 2048, {Keep::everything, Place::device, true}, 984.6, "qwen3.5-9b"},
        {"H200", 16384, 16384, {Keep::everything, Place::device, true}, 1154.9, "qwen3.5-9b"},
        {"H200", 131072, 131072, {Keep::attention, Place::host}, 19407, "qwen3.5-9b", 0.13},  // heads of 256
    };
    for (const Measured& m : all) {
        StepWork work;
        work.model = formats::builtin_shape(m.shape);
        work.tokens = work.head_rows = m.tokens;
        work.longest = m.longest;
        work.in_4bit = true;
        work.trained_parameters = 42'000'000;
        const StepTime time(find_card(m.card), work);
        const LayerTime layer = time.layer(m.layer, {m.tokens * 37'000, 0}, 1);
        const double predicted = time.step_ms(static_cast<double>(work.model.num_layers) * layer.both());
        EXPECT_NEAR(predicted / m.ms, 1, m.within)
            << m.card << " " << m.shape << " " << m.tokens << " " << m.ms << " predicted " << predicted;
    }
}

}  // namespace
}  // namespace unsloth::planner
