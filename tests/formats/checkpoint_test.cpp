#include "unsloth/formats/checkpoint.h"

#include <cstdlib>

#include "formats/support.h"

namespace unsloth::formats {
namespace {

using namespace test;

TensorBlob blob(const std::string& name, const std::string& text) {
    const auto span = std::as_bytes(std::span(text));
    return {{name, spec::DType::u8, {static_cast<int64_t>(text.size())}}, {span.begin(), span.end()}};
}

/// Sets an environment variable for a scope.
class Environment {
  public:
    Environment(const char* name, const std::string& value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old;
        ::setenv(name, value.c_str(), 1);
    }
    ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

  private:
    const char* name_;
    std::optional<std::string> old_;
};

void write_shards(const fs::path& folder, const nlohmann::json& weight_map) {
    write_safetensors(folder / "model-1.safetensors", {blob("a", "one"), blob("b", "two")});
    write_safetensors(folder / "model-2.safetensors", {blob("c", "three")});
    write_text(folder / "model.safetensors.index.json",
               nlohmann::json{{"metadata", {{"total_size", 11}}}, {"weight_map", weight_map}}.dump());
}

const nlohmann::json right_map = {
    {"a", "model-1.safetensors"}, {"b", "model-1.safetensors"}, {"c", "model-2.safetensors"}};

TEST(Checkpoint, OpensAFolderAndAFile) {
    for (const char* const place : {"small_llama/nf4_dq", "small_llama/nf4_dq/model.safetensors"}) {
        const Checkpoint checkpoint = Checkpoint::open(golden(cat("formats/", place)).string());
        EXPECT_EQ(checkpoint.folder(), golden("formats/small_llama/nf4_dq"));
        EXPECT_EQ(checkpoint.names().size(), 7U + 14 * 6);
        EXPECT_EQ(checkpoint.at("model.norm.weight").shape, std::vector<int64_t>{128});
        EXPECT_EQ(checkpoint.find("nothing"), nullptr);
        expect_input_error({"'nothing'"}, [&] { checkpoint.at("nothing"); });
    }
}

TEST(Checkpoint, OpensShards) {
    const ScratchFolder folder;
    write_shards(folder.path(), right_map);
    Checkpoint first = Checkpoint::open(folder.path().string());
    const Checkpoint checkpoint = std::move(first);
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(checkpoint.total_bytes(), 11U);
    EXPECT_EQ(std::memcmp(checkpoint.at("c").data.data(), "three", 5), 0);
    EXPECT_EQ(checkpoint.at("c").file->path().filename(), "model-2.safetensors");
}

TEST(Checkpoint, RefusesBadShards) {
    const ScratchFolder folder;
    const auto refuse = [&](const nlohmann::json& changes, const std::vector<std::string>& words) {
        auto map = right_map;
        map.update(changes);
        write_shards(folder.path(), map);
        expect_input_error(words, [&] { Checkpoint::open(folder.path().string()); });
    };
    refuse({{"c", "model-3.safetensors"}}, {"model-3.safetensors", "missing"});
    refuse({{"c", "../model-2.safetensors"}}, {"weight_map.c", "../model-2.safetensors"});
    refuse({{"c", "/etc/passwd"}}, {"/etc/passwd"});
    refuse({{"c", "sub\\model.safetensors"}}, {"refused"});
    refuse({{"c", ".."}}, {"refused"});
    refuse({{"c", ""}}, {"refused"});
    refuse({{"c", "../" + folder.path().filename().string() + "/model-2.safetensors"}}, {"refused"});
    refuse({{"c", std::string("model-2.safetensors\0.safetensors", 31)}}, {"weight_map.c"});
    refuse({{"c", (folder / "model-2.safetensors").string()}}, {"refused"});
    refuse({{"c", "pytorch_model-1.bin"}}, {"weight_map.c", "no .safetensors file", "pickle"});
    refuse({{"c", std::string(300, 'x') + ".safetensors"}}, {"missing"});
    refuse({{"c", 3}}, {"weight_map.c"});
    refuse({{"b", "model-2.safetensors"}}, {"'b'", "should lie in model-2.safetensors", "lies in model-1.safetensors"});
    refuse({{"d", "model-1.safetensors"}}, {"'d'", "is in no shard"});
    write_shards(folder.path(), right_map);
    write_safetensors(folder / "model-2.safetensors", {blob("c", "three"), blob("a", "again")});
    expect_input_error({"'a'", "also lies in"}, [&] { Checkpoint::open(folder.path().string()); });
    write_text(folder / "model.safetensors.index.json", "{}");
    expect_input_error({"weight_map"}, [&] { Checkpoint::open(folder.path().string()); });
    write_text(folder / "model.safetensors.index.json", "[]");
    expect_input_error({"must be a JSON object"}, [&] { Checkpoint::open(folder.path().string()); });
}

TEST(Checkpoint, SaysWhatIsNotThere) {
    const ScratchFolder folder;
    expect_input_error({"model.safetensors", "pickle"}, [&] { Checkpoint::open(folder.path().string()); });
    expect_input_error({"no such file"}, [&] { Checkpoint::open((folder / "nothing").string()); });
    expect_input_error({"empty"}, [&] { Checkpoint::open(""); });
    write_text(folder / "weights.bin", "x");
    expect_input_error({"weights.bin", ".safetensors", "pickle"},
                       [&] { Checkpoint::open((folder / "weights.bin").string()); });
    write_text(folder / "pytorch_model.bin", "x");
    expect_input_error({"model.safetensors", "pickle"}, [&] { Checkpoint::open(folder.path().string()); });
}

TEST(Checkpoint, FollowsTheUsersOwnLinks) {
    const ScratchFolder folder;
    fs::create_directories(folder / "elsewhere");
    fs::create_directories(folder / "model");
    write_shards(folder / "elsewhere", right_map);
    for (const char* const name : {"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"})
        fs::create_symlink(folder / "elsewhere" / name, folder / "model" / name);
    EXPECT_EQ(Checkpoint::open((folder / "model").string()).names().size(), 3U);
}

TEST(Checkpoint, ReadsAnIndexOfVeryManyTensors) {
    const ScratchFolder folder;
    nlohmann::json map = right_map;
    for (int i = 0; i < 200'000; ++i) map[cat("model.layers.", i, ".self_attn.q_proj.weight")] = "model-1.safetensors";
    write_shards(folder.path(), map);  // time with the square of their number would be minutes
    expect_input_error({"is in no shard"}, [&] { Checkpoint::open(folder.path().string()); });
}

TEST(ResolveModelPath, LooksIntoTheHubCache) {
    const ScratchFolder cache;
    const fs::path model = cache / "hub/models--some-org--a.model";
    write_text(model / "refs/main", "abc123\n");
    write_text(model / "snapshots/abc123/adapter_model.safetensors", "x");
    const Environment offline("HF_HUB_OFFLINE", "1");
    {
        const Environment variable("HF_HUB_CACHE", (cache / "hub").string());
        EXPECT_EQ(resolve_model_path("some-org/a.model"), model / "snapshots/abc123");
        expect_input_error({"some-org/other", "hf download some-org/other"},
                           [] { resolve_model_path("some-org/other"); });
        expect_input_error({"no such file"}, [] { resolve_model_path("a/b/c"); });
        write_text(model / "refs/main", "../../../elsewhere");
        expect_input_error({"refs/main"}, [] { resolve_model_path("some-org/a.model"); });
        write_text(model / "refs/main", "gone");
        expect_input_error({"hf download"}, [] { resolve_model_path("some-org/a.model"); });
        write_text(model / "refs/main", "abc123");
    }
    const Environment none("HF_HUB_CACHE", "");
    const Environment home("HF_HOME", cache.path().string());
    EXPECT_EQ(resolve_model_path("some-org/a.model"), model / "snapshots/abc123");
}

}  // namespace
}  // namespace unsloth::formats
