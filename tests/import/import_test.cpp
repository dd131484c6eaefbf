// import-config: what becomes of the fields of axolotl, LLaMA-Factory, TRL, Unsloth and ms-swift.
// tests/golden/options/imports.json lists all of pinned releases.
#include "common/files.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

const std::map<std::string, import::PeerProgram> programs = {{"axolotl", import::PeerProgram::axolotl},
                                                             {"llamafactory", import::PeerProgram::llama_factory},
                                                             {"trl", import::PeerProgram::trl},
                                                             {"swift", import::PeerProgram::swift}};

const Json& pinned() {
    static const Json parts = [] {
        std::ifstream file(test::golden("options/imports.json"));
        return Json::parse(file);
    }();
    return parts;
}

/// The file in which fields of this part hold these values.
Json file_of(const std::string& part, const Json& fields) {
    if (part == "orpo") {  // of which no field says that it is ORPO's
        Json said = fields;
        said["objective"] = "orpo";
        return said;
    }
    if (part == "grpo" || part == "rloo" || part == "grpo script") {
        Json said = fields;
        said["objective"] = part == "rloo" ? "rloo" : "grpo";
        said["use_peft"] = true;  // without an adapter there is no reference, which RLOO needs
        if (said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"think_format_reward"};
        return said;
    }
    if (part == "swift dpo" || part == "swift grpo") {
        Json said = fields;
        if (!said.contains("rlhf_type")) said["rlhf_type"] = part.substr(part.find(' ') + 1);
        if (part == "swift grpo" && said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"format"};
        return said;
    }
    if (part == "trl") {
        Json said = fields;
        if (said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"rewards.accuracy"};
        return {{"rl", "grpo"}, {"trl", said}};
    }
    Json source = {{"path", "rows.jsonl"}, {"type", "chat_template"}};
    if (part == "datasets.type") {
        source["type"] = fields;
    } else if (part == "datasets") {
        source.update(fields);
    } else {
        return fields;
    }
    return {{"datasets", Json::array({source})}};
}

/// Whether a field says anything by this value: what is written, told or lost differs from a file without it.
bool leaves_a_trace(import::PeerProgram program, const Json& with, const Json& without) {
    const import::ImportedConfig one = import_text(with.dump(), program), other = import_text(without.dump(), program);
    return one.json != other.json || one.notes != other.notes || one.losses != other.losses || one.aside != other.aside;
}

/// Fields that have no effect alone, because others switch on what they serve, or that a note would only be noise for.
const std::set<std::string> silent = {
    // asked for with the field that they serve, or the same as is done anyway
    "dataset_train_split", "dataset_test_split", "mix_strategy", "quantization_method",
    "preprocess_shards",   "trust_remote_code",  "ds_type",      "hub_private_repo"};

bool names(const import::ImportedConfig& imported, const std::string& key) {
    for (const auto* lines : {&imported.notes, &imported.losses, &imported.aside})
        for (const std::string& line : *lines)
            if (line.starts_with(key + ":") || line.starts_with(key + " ") || contains(line, "." + key + ":"))
                return true;
    return false;
}

TEST(Import, EveryFieldOfThePinnedReleasesIsKnownAndLeavesATrace) {
    const std::vector<Json> values = {"odd", 7, true, false, {"odd"}, {{"odd", "value"}}};
    std::size_t fields = 0;
    for (const Json& part : pinned()) {
        const std::string program = part.at("program"), name = part.at("part");
        std::vector<import::ImportedConfig> together;
        for (const Json& value : values) {
            Json members = Json::object();
            for (const Json& field : part.at("fields")) members[field.at("name").get<std::string>()] = value;
            const import::ImportedConfig imported = import_text(file_of(name, members).dump(), programs.at(program));
            EXPECT_FALSE(contains(all(imported.losses), "is not known")) << program << "\n" << all(imported.losses);
            for (const std::string& loss : imported.losses) EXPECT_FALSE(loss.ends_with(": ")) << loss;
            together.push_back(imported);
        }
        const Json bare = file_of(name, Json::object());
        for (const Json& field : part.at("fields")) {
            const std::string key = field.at("name");
            ++fields;
            if (silent.count(key) != 0 || (name == "datasets" && (key == "path" || key == "type"))) continue;
            bool traced =
                std::any_of(together.begin(), together.end(), [&](const auto& one) { return names(one, key); });
            for (const Json& value : values)
                traced = traced || leaves_a_trace(programs.at(program), file_of(name, {{key, value}}), bare);
            EXPECT_TRUE(traced) << program << ": " << key << " vanishes without a word";
        }
    }
    EXPECT_GT(fields, 1600u);
}

TEST(Import, TheDefaultsOfAllFieldsLoseNothing) {
    for (const Json& part : pinned()) {
        const std::string program = part.at("program"), name = part.at("part");
        if (name.starts_with("datasets")) continue;
        Json members = Json::object();
        for (const Json& field : part.at("fields"))
            if (field.contains("default")) members[field.at("name").get<std::string>()] = field.at("default");
        const import::ImportedConfig imported = import_text(file_of(name, members).dump(), programs.at(program));
        EXPECT_TRUE(imported.losses.empty()) << program << " " << name << "\n" << all(imported.losses);
        EXPECT_NO_THROW(loaded(imported)) << imported.json;
    }
}

TEST(Import, UnslothAsJson) {
    const import::ImportedConfig imported = import_text(R"({"model_name": "models/llama", "max_seq_length": 4096,
        "load_in_4bit": true, "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "o_proj"], "bias": "none",
        "use_gradient_checkpointing": "unsloth", "random_state": 7, "optim": "adamw_8bit", "warmup_steps": 5})");
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.model.max_seq_length, 4096);
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "o_proj"}));
    EXPECT_EQ(config.training.gradient_checkpointing, config::GradientCheckpointing::full_offload);
    EXPECT_EQ(config.training.seed, 7);
    EXPECT_EQ(config.lora.finetuning_type, config::FinetuningType::lora);
    // Under TRL's name for the model too: r is get_peft_model's.
    const config::Config other =
        loaded(import_text(R"({"model_name_or_path": "m", "load_in_4bit": true, "r": 8})")).config;
    EXPECT_EQ(other.lora.finetuning_type, config::FinetuningType::lora);
    EXPECT_TRUE(other.model.load_in_4bit);
}

// Configurations that these projects publish: what is not carried over is said, field by field, and nothing else is
// lost.
TEST(Import, PublishedConfigurations) {
    std::ifstream file(test::golden("options/published.json"));
    const Json published = Json::parse(file);
    EXPECT_GE(published.size(), 30u);
    for (const Json& one : published) {
        SCOPED_TRACE(one.at("from").get<std::string>() + ": " + one.at("file").get<std::string>());
        const Json fields = one.at("fields");
        const import::PeerProgram program = programs.at(one.at("program"));
        const import::ImportedConfig imported = import_text(fields.dump(), program);
        std::vector<std::string> lost;
        for (const std::string& loss : imported.losses) lost.push_back(loss.substr(0, loss.find(':')));
        EXPECT_EQ(Json(lost), one.at("not_carried_over")) << all(imported.losses);
        std::vector<std::string> aside;
        for (const std::string& loss : imported.aside) aside.push_back(loss.substr(0, loss.find(':')));
        EXPECT_EQ(Json(aside), one.value("aside", Json::array())) << all(imported.aside);
        std::string whole;
        for (const std::string& name : lost)
            if (name == "as a whole") whole = name;
        if (whole.empty()) {
            EXPECT_NO_THROW(loaded(imported)) << imported.json;
        }
        const auto differs = [&](const Json& changed) {
            const import::ImportedConfig other = import_text(changed.dump(), program);
            return other.json != imported.json || other.notes != imported.notes || other.losses != imported.losses ||
                   other.aside != imported.aside;
        };
        for (const auto& [key, value] : fields.items()) {
            const bool off = value.is_null() || value == false || value == "" || value == 0;
            if (off || silent.count(key) != 0 || names(imported, key)) continue;
            Json without = fields, odd = fields;
            without.erase(key);
            odd[key] = "odd";  // where the value is what is done anyway, another one leaves a trace
            EXPECT_TRUE(differs(without) || differs(odd)) << key << " vanishes without a word";
        }
    }
}

TEST(Import, AFileOfNobodysIsRefused) {
    EXPECT_CONTAINS(usage_message([] { import_text("seed: 1"); }, "import.wrong-program"),
                    "is no configuration of axolotl");
    EXPECT_CONTAINS(usage_message([] { import_text("training: {seed: 1}"); }), "of this program already");
    EXPECT_CONTAINS(usage_message([] { import_text("- a\n- b\n"); }), "expected an object of fields at the top");
}

}  // namespace
}  // namespace unsloth::testing
