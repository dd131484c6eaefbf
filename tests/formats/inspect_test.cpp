#include "unsloth/formats/inspect.h"

#include <cmath>

#include "formats/support.h"
#include "unsloth/formats/bnb4.h"

namespace unsloth::formats {
namespace {

using namespace test;

bool has_problem(const Inspection& inspection, const std::string& words) {
    for (const std::string& problem : inspection.problems)
        if (problem.find(words) != std::string::npos) return true;
    return false;
}

TEST(Inspect, DescribesAQuantisedModel) {
    const Inspection inspection = inspect_path(golden("formats/small_llama/nf4_dq").string());
    EXPECT_TRUE(inspection.ok()) << inspection.problems.front();
    EXPECT_EQ(inspection.kind, "model");
    EXPECT_EQ(inspection.kinds, (std::map<std::string, int64_t>{{"BF16", 7}, {"nf4", 14}}));
    EXPECT_EQ(inspection.quant_states_checked, 14);
    EXPECT_EQ(inspection.parameters, 264192 + 2 * 256 * 128 + 5 * 128);
    EXPECT_EQ(inspection.tensors.size(), 21U);
    const std::string text = inspect_text(inspection);
    for (const char* const words : {"llama: 2 layers", "330,368", "7 BF16 14 nf4", "14 checked", "problems      none",
                                    "model.layers.*.mlp.down_proj.weight  nf4 [128, 216] x 2"})
        EXPECT_NE(text.find(words), std::string::npos) << words << " is not in:\n" << text;
    const auto json = nlohmann::json::parse(inspect_json(inspection));
    EXPECT_EQ(json.at("ok"), true);
    EXPECT_EQ(json.at("model").at("head_dim"), 32);
    EXPECT_EQ(json.at("tensors").size(), 21U);
    EXPECT_EQ(json.at("stored_bytes"), inspection.stored_bytes);
}

TEST(Inspect, DescribesAnAdapter) {
    const Inspection inspection = inspect_path(golden("formats/adapters/patterns").string());
    EXPECT_TRUE(inspection.ok());
    EXPECT_EQ(inspection.kind, "adapter");
    EXPECT_EQ(inspection.adapter.at("r"), "4");
    EXPECT_EQ(inspection.tensors.size(), 14U);
    EXPECT_NE(inspect_text(inspection).find("base_model_name_or_path: small_llama/nf4_dq"), std::string::npos);
    const Inspection dora = inspect_path(golden("formats/adapters/dora").string());
    EXPECT_EQ(dora.adapter.at("use_dora"), "true");
    EXPECT_TRUE(has_problem(dora, "adapter_model.safetensors"));
}

TEST(Inspect, ChecksAnAdapterAgainstItsBase) {
    const ScratchFolder folder;
    fs::copy(golden("formats/adapters/patterns"), folder / "adapter");
    auto config = golden_json("formats/adapters/patterns/adapter_config.json");
    config["base_model_name_or_path"] = golden("formats/small_llama/nf4_dq").string();
    write_text(folder / "adapter/adapter_config.json", config.dump());
    EXPECT_TRUE(inspect_path((folder / "adapter").string()).ok());
    config["r"] = 16;
    write_text(folder / "adapter/adapter_config.json", config.dump());
    EXPECT_TRUE(has_problem(inspect_path((folder / "adapter").string()), "wrong type or shape"));
}

TEST(Inspect, ListsEveryProblemItFinds) {
    const ScratchFolder folder;
    write_text(folder / "config.json", read_file(golden("formats/small_llama/nf4_dq/config.json")));
    // Two weights only: the rest is missing; one has a block whose maximum is not finite.
    auto good = quant4_tensors("model.layers.0.self_attn.q_proj.weight",
                               quantize_nf4(std::vector<float>(128 * 128, 0.1F).data(), 128, 128), spec::DType::bf16);
    auto bad = quant4_tensors("model.layers.0.self_attn.k_proj.weight",
                              quantize_nf4(std::vector<float>(64 * 128, 0.1F).data(), 64, 128), spec::DType::bf16);
    const float huge =
        3e38F;  // finite itself; times the map's entries and plus the offset it stays so, twice it would not
    std::memcpy(bad[2].data.data(), &huge, sizeof huge);
    const float two = 2.0F;
    for (int i = 0; i < 256; ++i) std::memcpy(bad[3].data.data() + 4 * i, &two, sizeof two);
    good.insert(good.end(), bad.begin(), bad.end());
    write_safetensors(folder / "model.safetensors", good);
    const Inspection inspection = inspect_path(folder.path().string());
    EXPECT_FALSE(inspection.ok());
    EXPECT_TRUE(has_problem(inspection, "k_proj.weight' holds a value that is not finite: inf at block 0"));
    EXPECT_TRUE(has_problem(inspection, "missing tensors"));
    EXPECT_EQ(inspection.quant_states_checked, 2);
    EXPECT_EQ(nlohmann::json::parse(inspect_json(inspection)).at("ok"), false);
    fs::remove(folder / "config.json");
    EXPECT_TRUE(has_problem(inspect_path(folder.path().string()), "config.json"));
    write_text(folder / "model.safetensors", "broken");
    EXPECT_TRUE(has_problem(inspect_path(folder.path().string()), "no safetensors file"));
    expect_error("model.not-found", {"nothing-here"}, [&] { inspect_path((folder / "nothing-here").string()); });
}

}  // namespace
}  // namespace unsloth::formats
