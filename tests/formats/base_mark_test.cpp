#include "unsloth/formats/base_mark.h"

#include "formats/model_support.h"
#include "unsloth/formats/random_model.h"

namespace unsloth::formats {
namespace {

using namespace test;

TEST(BaseMark, IsThatOfTheWeightsWhereverTheyAre) {
    const ScratchFolder folder;
    const auto mark = [&](const char* name, bool nf4, uint64_t seed) {
        const fs::path made = folder / name;
        fs::create_directories(made);
        write_random_model({tiny_spec(), nf4, seed, {}}, made);
        return base_mark(WeightFile::open(made.string()));
    };
    const std::string base = mark("base", false, 1);
    EXPECT_EQ(mark("moved", false, 1), base);
    EXPECT_TRUE(same_base(base, mark("quantised", true, 1))) << "the linears' codes cannot be compared";
    EXPECT_FALSE(same_base(base, mark("other", false, 2)));
    EXPECT_FALSE(same_base(base, mark("other_quantised", true, 2))) << "by its embeddings";
    EXPECT_FALSE(same_base(mark("a", true, 1), mark("b", true, 2)));
}

TEST(BaseMark, IsKeptWithTheAdapter) {
    const ScratchFolder folder;
    const WeightFile base = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    PeftConfig config = read_peft_config(golden("formats/adapters/patterns"));
    const Adapter foreign = read_adapter(golden("formats/adapters/patterns"), base.spec);
    EXPECT_EQ(foreign.config.base_mark, "");
    config.base_mark = base_mark(base);
    std::vector<TensorBlob> tensors;
    for (const TensorView& tensor : foreign.file.tensors())
        tensors.push_back({{tensor.name, tensor.dtype, tensor.shape}, {tensor.data.begin(), tensor.data.end()}});
    write_safetensors(folder / "adapter_model.safetensors", tensors, adapter_metadata(config));
    write_text(folder / "adapter_config.json", write_peft_config(config));
    EXPECT_TRUE(same_base(read_adapter(folder.path(), base.spec).config.base_mark, base_mark(base)));
}

}  // namespace
}  // namespace unsloth::formats
