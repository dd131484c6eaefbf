// adapter_config.json, and its patterns against the modules of a model.
// parser: src/formats/peft.cpp src/formats/json.*
// seeds: tests/golden/formats/adapters tests/golden/trajectory/modules_to_save/initial
// options: -max_len=4096 -dict=tests/fuzz/json.dict
#include "fuzz/support.h"
#include "unsloth/formats/peft.h"

namespace {

unsloth::spec::ModelSpec small_model() {
    unsloth::spec::ModelSpec model;
    model.hidden_size = 8;
    model.intermediate_size = 16;
    model.num_layers = 3;
    model.num_heads = model.num_kv_heads = 2;
    model.head_dim = 4;
    model.vocab_size = 32;
    model.layers.assign(3, {});
    return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const spec::ModelSpec model = small_model();
    formats::PeftConfig config;
    const std::string text(fuzz::text_of(data, size));
    if (!fuzz::accepts([&] { config = formats::parse_peft_config(text, "adapter_config.json"); })) return 0;
    fuzz::accepts([&] { formats::adapter_tensors(config.lora, model); });
    const std::string written = formats::write_peft_config(config);
    const std::string again = formats::write_peft_config(formats::parse_peft_config(written, "what was written"));
    fuzz::require(again == written, "adapter_config.json changes when it is read and written");
    return 0;
}
