// Answers to prompts with images, many at once, against those that transformers gave to each alone
// (tests/golden/families/make_seen_answers.py).
#include "train/vision_support.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/generate/prompt_images.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int64_t answered_tokens = 40, answer_context = 192;

class SeenAnswersTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        rows = std::make_unique<SeenRows>(family);
        answers = read_json(golden("families/" + family) / "generate.json");
    }

    LoadedModel load(int64_t tokens, int64_t sequences) const {
        model::LoadRequest request = seeing(device, at::kFloat);
        request.sizes.tokens = request.sizes.longest = request.sizes.image_tokens = tokens;
        request.sizes.segments = request.sizes.head_rows = sequences;
        request.sizes.cache_tokens = sequences * answer_context;
        request.sizes.context = answer_context;
        request.records = true;
        return load_model(unpacked(rows->set / "model"), request);
    }

    generate::Request request(const model::Model& model, std::vector<int32_t> ids,
                              const std::vector<std::string>& images) const {
        nlohmann::json row = {{"input_ids", ids}, {"labels", ids}, {"images", images}};
        const data::Sample sample = rows->sample(row, 0);
        generate::Request made{.prompt = std::move(ids), .max_new_tokens = answered_tokens};
        if (!images.empty())
            made.images = std::make_shared<const generate::PromptImages>(sample, model.spec().vision.value());
        return made;
    }
    generate::Request request(const model::Model& model, std::size_t number) const {
        const nlohmann::json& answer = answers.at(number);
        std::vector<std::string> images;
        for (const auto& path : answer["images"])
            images.push_back(path.get<std::string>().substr(std::strlen("images/")));
        return request(model, answer["prompt_ids"], images);
    }
    std::vector<int32_t> expected(std::size_t number) const { return answers.at(number)["ids"]; }

    const std::string family = std::get<0>(GetParam()), device = std::get<1>(GetParam());
    std::unique_ptr<SeenRows> rows;
    nlohmann::json answers;
};

TEST_P(SeenAnswersTest, EqualTheReferences) {
    const LoadedModel loaded = load(256, 6);
    ASSERT_GE(answers.size(), 6U);
    for (std::size_t i = 0; i < answers.size(); ++i) {
        generate::Decoder decoder(*loaded.ctx, *loaded.model);
        const auto made = decoder.answer({request(*loaded.model, i)});
        EXPECT_EQ(made.front().ids, expected(i)) << family << " prompt " << i;
    }
}

/// They join while others decode, in passes with room for few tokens: an image goes in as a whole.
TEST_P(SeenAnswersTest, EqualTheReferencesTogetherWithOthers) {
    for (const int64_t tokens : {24, 64}) {
        const LoadedModel loaded = load(tokens, 6);
        // Padded to buckets, as on a GPU.
        generate::Decoder decoder(*loaded.ctx, *loaded.model, {.prefill_tokens = 5, .pads = tokens == 64});
        std::vector<std::size_t> asked;
        std::map<int64_t, generate::Completion> made;
        const auto end = [&](int64_t number, const generate::Completion& answer) { made[number] = answer; };
        for (bool more = true; more || asked.size() < 12;) {
            if (asked.size() < 12) {
                asked.push_back(asked.size() * 5 % answers.size());
                ASSERT_EQ(decoder.add(request(*loaded.model, asked.back())), static_cast<int64_t>(asked.size()) - 1);
            }
            more = decoder.step({}, end);
        }
        for (std::size_t i = 0; i < asked.size(); ++i)
            EXPECT_EQ(made.at(static_cast<int64_t>(i)).ids, expected(asked[i])) << tokens << " prompt " << asked[i];
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
    }
}

/// Equal ids, of which the placeholders stand for other images: no key is taken for another's. And a prompt whose
/// prefix is cached to within an image, or beyond, answers as without a cache.
TEST_P(SeenAnswersTest, ShareKeysWhereImagesAreEqualAlone) {
    const LoadedModel loaded = load(256, 6);
    // Two images of one size; a text before them moves where pages end, to within them and beyond.
    const std::vector<std::vector<std::string>> shown = {{"d_grey.jpg", "g_rgb.png"}, {"g_rgb.png", "d_grey.jpg"}};
    for (const int32_t before : {2, 20, 28, 60}) {
        std::vector<int32_t> ids;
        for (int32_t i = 0; i < before; ++i) ids.push_back(70 + i);
        for (int image = 0; image < 2; ++image) {
            ids.push_back(3);
            ids.insert(ids.end(), 6, tiny_image_token);
            ids.push_back(4);
        }
        for (int32_t i = 0; i < 24; ++i) ids.push_back(100 + i);
        generate::Decoder shares(*loaded.ctx, *loaded.model);
        std::vector<std::vector<int32_t>> first;
        for (int time = 0; time < 2; ++time)
            for (const auto& images : shown) {
                const generate::Completion got = shares.answer({request(*loaded.model, ids, images)}).front();
                if (time == 0) {
                    first.push_back(got.ids);
                    const int64_t text_pages = before / 32 * 32;  // pages of the text before alone are equal
                    EXPECT_EQ(got.cached_tokens, first.size() == 1 ? 0 : text_pages) << before;
                } else {
                    EXPECT_EQ(got.cached_tokens, (static_cast<int64_t>(ids.size()) - 1) / 32 * 32) << before;
                    EXPECT_EQ(got.ids, first[images == shown[0] ? 0 : 1]) << before;
                }
            }
        EXPECT_NE(first[0], first[1]);
        for (std::size_t i = 0; i < 2; ++i) {
            shares.forget_keys();
            EXPECT_EQ(shares.answer({request(*loaded.model, ids, shown[i])}).front().ids, first[i]) << before;
        }
    }
}

/// Several answers to one prompt: all but the first share its pages, and its images' features.
TEST_P(SeenAnswersTest, ManyOfOnePromptAreEqual) {
    const LoadedModel loaded = load(64, 6);
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    const std::vector<generate::Request> requests(5, request(*loaded.model, 1));
    for (const generate::Completion& answer : decoder.answer(requests)) EXPECT_EQ(answer.ids, expected(1));
}

TEST_P(SeenAnswersTest, RefusesImagesThatNoPassTakes) {
    const LoadedModel loaded = load(8, 6);
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    try {
        decoder.add(request(*loaded.model, 0));
        ADD_FAILURE() << "an image of six tokens went into passes with room for three";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "image.too-large") << error.what();
        EXPECT_NE(std::string(error.what()).find("--max_num_batched_tokens"), std::string::npos) << error.what();
    }
}

INSTANTIATE_TEST_SUITE_P(All, SeenAnswersTest,
                         ::testing::Combine(::testing::Values("qwen3_vl", "qwen2_5_vl"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return cat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

}  // namespace
}  // namespace unsloth
