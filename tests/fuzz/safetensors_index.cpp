// model.safetensors.index.json beside its shards. Only files of its folder may be opened.
// parser: src/formats/checkpoint.cpp
// options: -max_len=4096 -dict=tests/fuzz/json.dict
#include "fuzz/support.h"
#include "unsloth/formats/checkpoint.h"

namespace {

using namespace unsloth;

/// model/ with two shards, and beside it a third that no index may reach.
struct Models : fuzz::Folder {
    std::filesystem::path model = path() / "model";
    Models() {
        std::filesystem::create_directory(model);
        const auto shard = [](const std::filesystem::path& file, const std::string& tensor) {
            formats::write_safetensors(file, {{{tensor, spec::DType::u8, {2}}, {std::byte{1}, std::byte{2}}}});
        };
        shard(model / "a.safetensors", "a");
        shard(model / "b.safetensors", "b");
        shard(path() / "c.safetensors", "c");
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    static const Models models;
    models.write("model/model.safetensors.index.json", fuzz::text_of(data, size));
    fuzz::accepts([&] {
        const formats::Checkpoint checkpoint = formats::Checkpoint::open(models.model.string());
        for (const formats::SafetensorsFile& file : checkpoint.files())
            fuzz::require(
                std::filesystem::canonical(file.path()).parent_path() == std::filesystem::canonical(models.model),
                "a file outside of the model's folder was opened");
        fuzz::require(checkpoint.find("c") == nullptr, "a tensor of a file outside of the model's folder was read");
    });
    return 0;
}
