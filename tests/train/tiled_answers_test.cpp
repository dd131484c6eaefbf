// Answers about images of a model whose layers attend to them, many at once, against those that transformers gave to
// each prompt alone (tests/golden/families/make_seen_answers.py).
#include "train/tiled_support.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/generate/prompt_images.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int64_t tiled_new_tokens = 40, tiled_context = 160;

class TiledAnswersTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        rows = std::make_unique<TiledRows>();
        answers = read_json(golden("families/mllama") / "generate.json");
        ASSERT_GE(answers.size(), 8U);
    }

    LoadedModel load(int64_t tokens, int64_t sequences, int64_t images) const {
        model::LoadRequest request = seeing_tiles(device);
        request.sizes.tokens = request.sizes.longest = tokens;
        request.sizes.segments = request.sizes.head_rows = sequences;
        request.sizes.image_tokens = images;
        request.sizes.cache_tokens = sequences * tiled_context;
        request.sizes.context = tiled_context;
        request.records = true;
        return load_model(unpacked(rows->set / "model"), request);
    }

    generate::Request request(const model::Model& model, const std::vector<int32_t>& ids,
                              const std::vector<std::string>& images) const {
        generate::Request made{.prompt = ids, .max_new_tokens = tiled_new_tokens};
        if (!images.empty())
            made.images =
                std::make_shared<const generate::PromptImages>(rows->prompt(ids, images), model.spec().vision.value());
        return made;
    }
    generate::Request request(const model::Model& model, std::size_t number) const {
        std::vector<std::string> images;
        for (const auto& path : answers.at(number)["images"])
            images.push_back(path.get<std::string>().substr(std::strlen("images/")));
        return request(model, answers.at(number)["prompt_ids"], images);
    }
    std::vector<int32_t> expected(std::size_t number) const { return answers.at(number)["ids"]; }

    const std::string device = GetParam();
    std::unique_ptr<TiledRows> rows;
    nlohmann::json answers;
};

TEST_P(TiledAnswersTest, EqualTheReferences) {
    const LoadedModel loaded = load(256, 6, 3);
    for (std::size_t i = 0; i < answers.size(); ++i) {
        generate::Decoder decoder(*loaded.ctx, *loaded.model);
        EXPECT_EQ(decoder.answer({request(*loaded.model, i)}).front().ids, expected(i)) << i;
    }
}

/// All in one batch, with images and without; and as they join while others decode, in passes with room for few tokens
/// and few images at a time.
TEST_P(TiledAnswersTest, EqualTheReferencesTogetherWithOthers) {
    for (const auto& [tokens, images] : {std::pair{24, 3}, {64, 4}, {512, 12}}) {
        const LoadedModel loaded = load(tokens, 8, images);
        // Padded to buckets, as on a GPU.
        generate::Decoder decoder(*loaded.ctx, *loaded.model,
                                  {.prefill_tokens = tokens == 512 ? 512 : 5, .pads = tokens == 64});
        std::vector<std::size_t> asked;
        std::map<int64_t, generate::Completion> made;
        const auto end = [&](int64_t number, const generate::Completion& answer) { made[number] = answer; };
        for (bool more = true; more || asked.size() < 16;) {
            do {
                asked.push_back(asked.size() * 5 % answers.size());
                ASSERT_EQ(decoder.add(request(*loaded.model, asked.back())), static_cast<int64_t>(asked.size()) - 1);
            } while (tokens == 512 && asked.size() < 16);
            more = decoder.step({}, end);
            while (asked.size() >= 16 && decoder.step({}, end)) more = false;
        }
        for (std::size_t i = 0; i < asked.size(); ++i)
            EXPECT_EQ(made.at(static_cast<int64_t>(i)).ids, expected(asked[i])) << tokens << " prompt " << asked[i];
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
    }
}

/// Drawn tokens depend on the request's own numbers, whatever else is in the batch.
TEST_P(TiledAnswersTest, SeededAnswersAreTheSameInAnyBatch) {
    const LoadedModel loaded = load(256, 8, 8);
    const auto drawn = [&](std::size_t number) {
        generate::Request one = request(*loaded.model, number);
        one.sampling.temperature = 1;
        one.seed = 7;
        one.prompt_number = static_cast<uint32_t>(number);
        return one;
    };
    std::vector<generate::Request> all;
    std::vector<std::vector<int32_t>> alone;
    for (std::size_t i = 0; i < answers.size(); ++i) {
        generate::Decoder decoder(*loaded.ctx, *loaded.model);
        alone.push_back(decoder.answer({drawn(i)}).front().ids);
        EXPECT_NE(alone.back(), expected(i));
        all.push_back(drawn(i));
    }
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    const std::vector<generate::Completion> together = decoder.answer(all);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(together[i].ids, alone[i]) << i;
}

/// Equal ids, whose images differ: no key is taken for another's, not even of the text before the image, nor that of a
/// text without any. And a prompt whose beginning is cached answers as without a cache.
TEST_P(TiledAnswersTest, ShareKeysWhereAllImagesAreEqualAlone) {
    const LoadedModel loaded = load(256, 6, 4);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 70; ++i) ids.push_back(70 + i);  // two pages before the image
    ids.push_back(tile_token);
    for (int32_t i = 0; i < 12; ++i) ids.push_back(100 + i);
    generate::Decoder shares(*loaded.ctx, *loaded.model);
    std::vector<std::vector<int32_t>> first;
    for (int time = 0; time < 2; ++time)
        for (const char* const image : {"d_grey.jpg", "g_rgb.png"}) {
            const generate::Completion got = shares.answer({request(*loaded.model, ids, {image})}).front();
            EXPECT_EQ(got.cached_tokens, time == 0 ? 0 : 64) << image;
            if (time == 0)
                first.push_back(got.ids);
            else
                EXPECT_EQ(got.ids, first[image == std::string("d_grey.jpg") ? 0 : 1]) << image;
        }
    EXPECT_NE(first[0], first[1]);
    std::vector<int32_t> text(ids.begin(), ids.begin() + 70);
    EXPECT_EQ(shares.answer({request(*loaded.model, text, {})}).front().cached_tokens, 0);
    // The image's slot was needed by others meanwhile; its pages are cached all the same.
    for (std::size_t i = 0; i < answers.size(); ++i) shares.answer({request(*loaded.model, i)});
    const generate::Completion again = shares.answer({request(*loaded.model, ids, {"d_grey.jpg"})}).front();
    EXPECT_EQ(again.ids, first[0]);
    shares.forget_keys();
    EXPECT_EQ(shares.answer({request(*loaded.model, ids, {"d_grey.jpg"})}).front().ids, first[0]);
}

/// Several answers to one prompt share its slots, and need no others.
TEST_P(TiledAnswersTest, ManyOfOnePromptAreEqual) {
    const LoadedModel loaded = load(64, 6, 2);
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    const std::vector<generate::Request> requests(5, request(*loaded.model, 1));
    for (const generate::Completion& answer : decoder.answer(requests)) EXPECT_EQ(answer.ids, expected(1));
}

/// Ids beyond lm_head's are in the prompt, where penalties look.
TEST_P(TiledAnswersTest, PenaltiesPassImagesBy) {
    const LoadedModel loaded = load(64, 6, 2);
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    generate::Request one = request(*loaded.model, 0);
    one.sampling.repetition_penalty = 1.5;
    const generate::Completion answer = decoder.answer({one}).front();
    EXPECT_EQ(answer.ids.size(), static_cast<std::size_t>(tiled_new_tokens));
    EXPECT_NE(answer.ids, expected(0));
}

/// Each of several adapters makes its own keys of an image.
TEST_P(TiledAnswersTest, AdaptersMakeTheirOwnKeys) {
    const fs::path adapter = unpacked(rows->set / "lora/initial");
    model::LoadRequest request = seeing_tiles(device);
    request.sizes.tokens = request.sizes.longest = 128;
    request.sizes.segments = request.sizes.head_rows = 4;
    request.sizes.cache_tokens = 4 * tiled_context;
    request.sizes.context = tiled_context;
    model::LoadRequest one = request;
    one.adapter = adapter.string();
    const LoadedModel alone = load_model(unpacked(rows->set / "model"), one);
    generate::Decoder adapted(*alone.ctx, *alone.model);
    const std::vector<int32_t> with = adapted.answer({this->request(*alone.model, 1)}).front().ids;
    EXPECT_NE(with, expected(1));
    request.adapters = {{"a", adapter.string()}, {"b", adapter.string()}};
    const LoadedModel several = load_model(unpacked(rows->set / "model"), request);
    std::vector<generate::Request> asked;
    for (const int32_t number : {-1, 0, 1}) {
        asked.push_back(this->request(*several.model, 1));
        asked.back().adapter = number;
    }
    generate::Decoder decoder(*several.ctx, *several.model);
    const std::vector<generate::Completion> got = decoder.answer(asked);
    EXPECT_EQ(got[0].ids, expected(1));
    EXPECT_EQ(got[1].ids, with);
    EXPECT_EQ(got[2].ids, with);
}

TEST_P(TiledAnswersTest, RefusesMoreImagesThanThereIsRoomFor) {
    const LoadedModel loaded = load(64, 6, 2);
    generate::Decoder decoder(*loaded.ctx, *loaded.model);
    try {
        decoder.add(request(*loaded.model, 6));
        ADD_FAILURE() << "three images went into two slots";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "image.count") << error.what();
    }
}

INSTANTIATE_TEST_SUITE_P(All, TiledAnswersTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
