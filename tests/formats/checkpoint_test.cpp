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
        expect_error("checkpoint.missing-tensor", {"'nothing'"}, [&] { checkpoint.at("nothing"); });
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
    refuse({{"b", "model-2.safetensors"}}, {"'b'", "should be in model-2.safetensors", "is in model-1.safetensors"});
    refuse({{"d", "model-1.safetensors"}}, {"'d'", "is in no shard"});
    write_shards(folder.path(), right_map);
    write_safetensors(folder / "model-2.safetensors", {blob("c", "three"), blob("a", "again")});
    expect_error("checkpoint.bad-index", {"'a'", "is also in"}, [&] { Checkpoint::open(folder.path().string()); });
    write_text(folder / "model.safetensors.index.json", "{}");
    expect_error("checkpoint.bad-index", {"weight_map"}, [&] { Checkpoint::open(folder.path().string()); });
    write_text(folder / "model.safetensors.index.json", "[]");
    expect_error("checkpoint.bad-index", {"must be a JSON object"}, [&] { Checkpoint::open(folder.path().string()); });
}

TEST(Checkpoint, SaysWhatIsNotThere) {
    const ScratchFolder folder;
    expect_error("model.not-found", {"no such file"}, [&] { Checkpoint::open((folder / "nothing").string()); });
    expect_error("model.not-found", {"empty"}, [&] { Checkpoint::open(""); });
    write_text(folder / "weights.bin", "x");
    expect_error("model.wrong-file-format", {"weights.bin", "not a .safetensors file", "save_pretrained"},
                 [&] { Checkpoint::open((folder / "weights.bin").string()); });
    write_text(folder / "rows.json", "x");
    expect_error("model.wrong-file-format", {"rows.json", "a model folder or a .safetensors file"},
                 [&] { Checkpoint::open((folder / "rows.json").string()); });
}

/// A folder without the file that is expected is told by what it holds: one advice does not fit all.
TEST(Checkpoint, NamesWhatStandsInTheFilesPlace) {
    struct Case {
        std::vector<std::string> files, words;
    };
    const std::vector<Case> cases = {
        {{}, {"no model.safetensors or model.safetensors.index.json: it is empty"}},
        {{"config.json", "tokenizer.json"}, {"it holds config.json, tokenizer.json", "Download or copy"}},
        {{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
         {"2 shards (model-00001-of-00002.safetensors, model-00002-of-00002.safetensors) without their index",
          "download model.safetensors.index.json"}},
        {{"model-00001-of-00001.safetensors"}, {"one shard, model-00001-of-00001.safetensors", "Rename it"}},
        {{"config.json", "adapter_config.json", "adapter_model.safetensors"},
         {"is a PEFT adapter, not a model", "--model.path someone/base --model.adapter_name_or_path "}},
        {{"adapter_model.safetensors"}, {"is a PEFT adapter", "--model.path BASE"}},
        {{"original/consolidated.00.pth", "config.json"}, {"Meta's or Mistral's own form (original/)"}},
        {{"consolidated.safetensors", "params.json"}, {"own form (consolidated.safetensors, params.json)"}},
        {{"config.json", "model-Q4_K_M.gguf"}, {"GGUF files", "llama.cpp", "(model-Q4_K_M.gguf)"}},
        {{"config.json", "pytorch_model.bin"}, {"pickle files", "(pytorch_model.bin)", "save_pretrained"}},
        {{"config.json", "model.fp16.safetensors"}, {"other names (model.fp16.safetensors)", "--model.path "}},
        {{"config.json", "tf_model.h5"}, {"another framework (tf_model.h5)"}},
        {{"checkpoint-20/config.json", "checkpoint-40/config.json"},
         {"checkpoints of a run (checkpoint-20/, checkpoint-40/)", "/checkpoint-N"}},
        {{"global_step10/mp_rank_00.pt", "zero_to_fp32.py"}, {"DeepSpeed or FSDP", "Gather"}},
        {{"refs/main", "snapshots/abc/model.safetensors"}, {"the Hugging Face cache", "/snapshots"}},
        {{"optimizer.pt", "scheduler.pt", "trainer_state.json"}, {"the state of a training run without its weights"}},
        {{"inner/config.json", "notes.txt"}, {"it holds inner/, notes.txt", "/inner."}},
        {{"1", "2", "3", "4", "5", "6", "7"}, {"it holds 1, 2, 3, 4, 5, and 2 more"}},
    };
    for (const Case& one : cases) {
        const ScratchFolder folder;
        for (const std::string& file : one.files)
            write_text(folder / file,
                       file == "adapter_config.json" ? R"({"base_model_name_or_path": "someone/base"})" : "x");
        try {
            Checkpoint::open(folder.path().string());
            ADD_FAILURE() << one.words.front();
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_EQ(error.kind(), ErrorKind::input);
            for (const std::string& word : one.words)
                EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
            const bool pickles = one.words.front() == "pickle files";
            EXPECT_EQ(message.find("pickle") != std::string::npos, pickles) << message;
        }
    }
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
    expect_error("checkpoint.bad-index", {"is in no shard"}, [&] { Checkpoint::open(folder.path().string()); });
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
        expect_error("hub.not-downloaded", {"some-org/other", "hf download some-org/other"},
                     [] { resolve_model_path("some-org/other"); });
        expect_error("model.not-found", {"no such file"}, [] { resolve_model_path("a/b/c"); });
        write_text(model / "refs/main", "../../../elsewhere");
        expect_error("hub.no-revision", {"refs/main"}, [] { resolve_model_path("some-org/a.model"); });
        write_text(model / "refs/main", "gone");
        expect_error("hub.not-downloaded", {"hf download"}, [] { resolve_model_path("some-org/a.model"); });
        write_text(model / "refs/main", "abc123");
    }
    const Environment none("HF_HUB_CACHE", "");
    const Environment home("HF_HOME", cache.path().string());
    EXPECT_EQ(resolve_model_path("some-org/a.model"), model / "snapshots/abc123");
}

}  // namespace
}  // namespace unsloth::formats
