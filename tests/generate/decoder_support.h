// A decoder of a reference model, and requests that come and go.
#pragma once

#include "unsloth/generate/decoder.h"
#include "unsloth/ops/device.h"

#include <algorithm>
#include <random>

#include "model/support.h"

namespace unsloth {

using namespace test;
using generate::Completion, generate::Request;
using Ids = std::vector<int32_t>;

inline constexpr int64_t new_tokens = 10, cache_context = 48;

inline model::LoadRequest decoder_request(const std::string& device, int64_t rows, int64_t cache_tokens,
                                          int64_t pass_tokens = 64, int64_t prefill_rows = 0,
                                          bool cache_in_8_bit = false) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = at::kFloat;
    request.load_in_4bit = false;
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = std::max(pass_tokens, rows + prefill_rows);
    request.sizes.segments = rows + prefill_rows;
    request.sizes.head_rows = rows;
    request.sizes.cache_tokens = cache_tokens;
    request.sizes.cache_in_8_bit = cache_in_8_bit;
    request.sizes.context = cache_context;
    request.run.head_tile = 16;  // the logits of a pass come in several pieces
    request.records = true;      // on a GPU: passes in which all rows decode
    return request;
}

inline LoadedModel load_for_decoding(const std::string& name, const std::string& device, int64_t rows,
                                     int64_t cache_tokens, int64_t pass_tokens = 64, int64_t prefill_rows = 0,
                                     bool cache_in_8_bit = false) {
    return load_model(model_folder(name),
                      decoder_request(device, rows, cache_tokens, pass_tokens, prefill_rows, cache_in_8_bit));
}

/// Prompts of 1 to 36 tokens, pieces of real text: more than mistral_window's 16.
inline std::vector<Ids> text_prompts(const std::string& name, int64_t count) {
    const auto rows = read_json(golden("forward/" + name + ".json"))["input_ids"].get<std::vector<Ids>>();
    std::mt19937 random(7);
    std::vector<Ids> pieces;
    for (int64_t i = 0; i < count; ++i) {
        const Ids& row = rows[1];
        const std::size_t first = random() % 4, length = 1 + random() % std::min<std::size_t>(36, row.size() - first);
        pieces.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(first),
                            row.begin() + static_cast<std::ptrdiff_t>(first + length));
    }
    return pieces;
}

class DecoderTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    const std::string name = std::get<0>(GetParam()), device = std::get<1>(GetParam());
};

/// Requests join at random while others are under way; answers of 1 to `new_tokens` tokens end at different times.
inline std::vector<Completion> answer_as_they_come(generate::Decoder& decoder, const std::vector<Request>& requests) {
    std::mt19937 random(3);
    std::vector<Completion> answers(requests.size());
    std::size_t added = 0;
    const auto end = [&](int64_t i, const Completion& answer) { answers[static_cast<std::size_t>(i)] = answer; };
    for (bool more = true; more || added < requests.size();) {
        for (uint32_t some = random() % 9; some > 0 && added < requests.size(); --some, ++added)
            decoder.add(requests[added]);
        more = decoder.step({}, end);
    }
    return answers;
}

/// What transformers answered to prompts of 1 to 36 tokens, each alone (tests/golden/forward/make_greedy.py).
struct GreedyAnswers {
    std::vector<Request> requests;
    std::vector<Ids> ids;

    explicit GreedyAnswers(const std::string& name) {
        const auto row = read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Ids>();
        const nlohmann::json all = read_json(golden("forward/greedy.json"));
        for (const auto& entry : all.at(name)) {
            const auto begin = row.begin() + entry[0].get<std::ptrdiff_t>();
            ids.push_back(entry[2].get<Ids>());
            requests.push_back({.prompt = Ids(begin, begin + entry[1].get<std::ptrdiff_t>()),
                                .max_new_tokens = static_cast<int64_t>(ids.back().size())});
        }
    }
};

}  // namespace unsloth
