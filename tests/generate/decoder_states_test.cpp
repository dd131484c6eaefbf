// Answers of a model most of whose layers keep a state for each sequence, in the place of keys (Qwen 3.5).
#include "generate/decoder_support.h"

namespace unsloth {
namespace {

using namespace test;

/// The reference's answers, each three times, while others come and go: prompts go in by pieces, and sequences take the
/// places of those that ended. No pass is padded, though asked for: a row without a state writes other keys.
TEST(DecoderStates, AnswersAreThoseOfTransformers) {
    UNSLOTH_NEEDS_XZ();
    const fs::path set = golden("families/qwen3_5_text");
    std::vector<Request> requests;
    std::vector<Ids> expected;
    for (int time = 0; time < 3; ++time)
        for (const auto& answer : read_json(unpacked(set) / "generate.json")) {
            expected.push_back(answer["ids"].get<Ids>());
            requests.push_back({.prompt = answer["prompt_ids"].get<Ids>(),
                                .max_new_tokens = static_cast<int64_t>(expected.back().size())});
        }
    const generate::ChunkedPrefillPolicy odd = [](int64_t decoding, int64_t keys, int64_t cached) {
        return generate::PrefillChunk{1 + (decoding + keys + cached) % 11, keys % 3 != 0};
    };
    for (const int64_t rows : {1, 3, 12}) {
        model::LoadRequest request = decoder_request("cpu", rows, std::max<int64_t>(64, rows * 24), 32, /*singly=*/4);
        request.sizes.context = 64;
        const LoadedModel model = load_model(unpacked(set / "model"), request);
        for (const generate::ChunkedPrefillPolicy& beside : {generate::ChunkedPrefillPolicy{}, odd}) {
            generate::Decoder decoder(*model.ctx, *model.model, {.prefill_policy = beside, .pads = true});
            const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
            for (std::size_t i = 0; i < answers.size(); ++i)
                EXPECT_EQ(answers[i].ids, expected[i]) << "request " << i << " of " << rows << " rows";
        }
    }
}

}  // namespace
}  // namespace unsloth
