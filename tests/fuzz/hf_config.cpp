// config.json of a model.
// parser: src/formats/hf_config.cpp src/formats/families/* src/formats/json.* src/spec/tensor_table.cpp
// seeds: tests/golden/formats/configs tests/golden/formats/small_llama
// options: -max_len=4096 -dict=tests/fuzz/json.dict
#include "unsloth/formats/hf_config.h"
#include "fuzz/support.h"
#include "unsloth/spec/tensor_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    const std::string text(fuzz::text_of(data, size));
    spec::ModelSpec spec;
    std::optional<formats::QuantizationConfig> quantization;
    fuzz::accepts([&] { quantization = formats::parse_quantization_config(text, "config.json"); });
    if (!fuzz::accepts([&] { spec = formats::parse_model_spec(text, "config.json"); })) return 0;

    formats::check_model_spec(spec, "what was accepted");
    fuzz::require(!spec::tensor_table(spec).empty(), "a model without tensors");
    for (const int64_t length : {int64_t{1}, spec.max_position_embeddings, int64_t{1} << 31}) {
        const spec::RopeFrequencies rope = spec::rope_frequencies(spec, length);
        fuzz::require(static_cast<int64_t>(rope.inv_freq.size()) == spec.head_dim / 2, "frequencies for half a head");
    }
    const std::string written = formats::write_model_config(spec, quantization, text);
    const std::string again =
        formats::write_model_config(formats::parse_model_spec(written, "what was written"), quantization, written);
    fuzz::require(again == written, "config.json changes when it is read and written");
    return 0;
}
