// Rows with images: as transformers' processors encode them (tests/golden/images/make_expected.py), and what is
// refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "data/toy.h"
#include "images/support.h"
#include "unsloth/core/files.h"
#include "unsloth/data/cache.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/report.h"
#include "unsloth/data/seen_prompt.h"
#include "unsloth/data/show.h"
#include "unsloth/data/thumbnail.h"
#include "unsloth/data/vision.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::data {
namespace {

using Golden = nlohmann::json;

class RowImages : public testing::Test {
  protected:
    void SetUp() override {
        if (!std::filesystem::exists(test::binary_folder() / "libunsloth_images.so"))
            GTEST_SKIP() << "built without image libraries";
    }
};

std::filesystem::path image_golden(const std::string& family, const std::string& name) {
    return toy::golden("images") / family / name;
}

struct VisionModel {
    explicit VisionModel(const std::string& family)
        : encoder(make_row_encoder(tokenizer::Tokenizer::load(image_golden(family, "saved")), "auto")) {
        options.vision = read_vision_rows(image_golden(family, "saved"), 0);
        options.image_root = toy::golden("images");
        options.log_warnings = false;
    }
    Dataset load(const std::filesystem::path& path) const { return Dataset::load(path, options, encoder.get()); }

    std::unique_ptr<RowEncoder> encoder;
    DatasetOptions options;
};

void expect_row(const Sample& row, const Golden& expected, const std::string& what) {
    EXPECT_EQ(row.ids, expected["input_ids"].get<std::vector<int32_t>>()) << what;
    EXPECT_EQ(row.labels, expected["labels"].get<std::vector<int32_t>>()) << what;
    ASSERT_EQ(row.images.size(), expected["images"].size()) << what;
    for (std::size_t i = 0; i < row.images.size(); ++i) {
        const Image& image = row.images[i];
        EXPECT_TRUE(row.sources[i].inlined || row.sources[i].data.ends_with(expected["images"][i].get<std::string>()));
        if (!expected.contains("image_grid_thw")) {
            EXPECT_EQ(image.patches(), expected["num_tiles"][i]) << what;
            continue;
        }
        EXPECT_EQ((std::vector<int>{1, image.grid_h, image.grid_w}),
                  expected["image_grid_thw"][i].get<std::vector<int>>())
            << what;
    }
    if (!expected.contains("position_ids") || row.images.empty()) {
        EXPECT_TRUE(row.axes.empty());
        return;
    }
    ASSERT_EQ(row.axes.size(), 3 * row.ids.size()) << what;
    for (std::size_t t = 0; t < row.ids.size(); ++t)
        for (std::size_t axis = 0; axis < 3; ++axis)
            EXPECT_EQ(row.axes[3 * t + axis], expected["position_ids"][axis][t]) << what << " " << t << " " << axis;
}

TEST_F(RowImages, AllFormsAreEncodedAsTransformersDoes) {
    for (const std::string family : {"qwen3_vl", "qwen2_5_vl", "mllama"}) {
        const VisionModel model(family);
        const Golden encoded = Golden::parse(read_file(image_golden(family, "encoded.json")));
        const Golden some = Golden::parse(read_file(image_golden(family, "rows_forms.json")))["rows"];
        for (const std::string name :
             {"rows.jsonl", "rows_inline.jsonl", "rows_placeholder.jsonl", "rows_openai.jsonl", "rows.parquet"}) {
            if (name.ends_with("parquet") &&
                (family != "qwen3_vl" || !std::filesystem::exists(test::binary_folder() / "libunsloth_parquet.so")))
                continue;
            const Dataset rows = model.load(image_golden(family, name));
            const bool all = name == "rows.jsonl";
            ASSERT_EQ(rows.size(), static_cast<int64_t>(all ? encoded.size() : some.size())) << family << " " << name;
            for (int64_t i = 0; i < rows.size(); ++i) {
                const auto number = static_cast<std::size_t>(i);
                expect_row(rows.sample(i), encoded[all ? number : some[number].get<std::size_t>()],
                           cat(family, " ", name, " ", i));
            }
        }
    }
}

std::string row_of(const std::string& image, const std::string& text = "two the") {
    return cat(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": )", image,
               R"(}, {"type": "text", "text": ")", text, R"("}]}, {"role": "assistant", "content": "a what"}]})", "\n");
}

TEST_F(RowImages, LlavaRowsAndPathsBesideTheFile) {
    const toy::Folder folder;
    VisionModel model("qwen3_vl");
    const auto image = folder.write("pictures/a.jpg", read_file(toy::golden("images/images/a_420.jpg")));
    const auto llava = folder.write(
        "llava.json",
        R"([{"id": 1, "image": "pictures/a.jpg", "conversations": [{"from": "human", "value": "<image>two the"},
             {"from": "gpt", "value": "a what"}]}])");
    const auto relative = folder.write("rows.jsonl", row_of(R"("pictures/a.jpg")"));
    const auto absolute =
        folder.write("absolute.jsonl", row_of(cat("\"", std::filesystem::canonical(image).string(), "\"")));
    model.options.image_root.clear();
    const Golden expected = Golden::parse(read_file(image_golden("qwen3_vl", "encoded.json")))[0];
    for (const auto& path : {llava, relative, absolute}) {
        const Sample row = model.load(path).sample(0);
        EXPECT_EQ(row.ids, expected["input_ids"].get<std::vector<int32_t>>()) << path;
        EXPECT_EQ(row.sources.at(0).data, std::filesystem::canonical(image).string());
    }
    model.options.train_on_prompt = true;
    const Sample row = model.load(relative).sample(0);
    for (std::size_t t = 0; t < row.ids.size(); ++t)
        EXPECT_EQ(row.labels[t], row.ids[t] == model.options.vision->image_token ? ignore_label : row.ids[t]) << t;
}

/// It has an embedding, and no logit.
TEST_F(RowImages, TheTokenOfTilesIsNeverLearnt) {
    const toy::Folder folder;
    VisionModel model("mllama");
    const int32_t token = model.options.vision->image_token;
    model.options.vocab_size = token + 8;
    const auto ids = folder.write("ids.jsonl", cat(R"({"input_ids": [1, )", token, ", 5, 7]}\n"));
    EXPECT_EQ(model.load(ids).sample(0).ids, (std::vector<int32_t>{1, token, 5, 7}));
    EXPECT_EQ(model.load(ids).sample(0).labels, (std::vector<int32_t>{1, ignore_label, 5, 7}));
    const auto others = folder.write("others.jsonl", cat(R"({"input_ids": [1, )", token + 1, ", 5, 7]}\n"));
    EXPECT_THROW(model.load(others), Error);
}

TEST_F(RowImages, WhatCannotBeReadIsRefusedWithItsRow) {
    const toy::Folder folder;
    VisionModel model("qwen3_vl");
    const std::string jpeg = read_file(toy::golden("images/images/a_420.jpg"));
    const auto outside = toy::Folder();
    outside.write("secret.jpg", jpeg);
    folder.write("pictures/a.jpg", jpeg);
    folder.write("pictures/cut.jpg", jpeg.substr(0, 300));
    folder.write("pictures/empty.jpg", "");
    folder.write("pictures/text.jpg", "no image");
    std::filesystem::create_symlink(outside / "secret.jpg", folder / "pictures/link.jpg");
    std::filesystem::create_directory_symlink(outside.path(), folder / "pictures/below");
    model.options.image_root = folder / "pictures";
    const auto refused = [&](const std::string& row, const char* id, const std::string& says) {
        const auto path = folder.write("rows.jsonl", row_of("\"a.jpg\"") + row);
        try {
            (void)model.load(path);
            ADD_FAILURE() << "taken: " << row;
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
            EXPECT_NE(std::string(error.what()).find(":2: "), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        }
    };
    refused(row_of("\"https://example.org/a.jpg\""), "image.remote", "https://example.org/a.jpg");
    refused(row_of("\"../rows.jsonl\""), "image.outside-root", "outside of");
    refused(row_of("\"link.jpg\""), "image.outside-root", "secret.jpg");
    refused(row_of("\"below/secret.jpg\""), "image.outside-root", "outside of");
    refused(row_of(cat("\"", (outside / "secret.jpg").string(), "\"")), "image.outside-root", "outside of");
    refused(row_of("\"none.jpg\""), "disk.cannot-read", "none.jpg");
    refused(row_of("\"cut.jpg\""), "image.damaged", "cut off");
    refused(row_of("\"empty.jpg\""), "image.unknown-type", "no bytes");
    refused(row_of("\"text.jpg\""), "image.unknown-type", "text.jpg");
    refused(row_of("\"data:image/png;base64,*\""), "image.damaged", "base64");
    refused(row_of("\"data:image/png;base64,\""), "image.unknown-type", "no bytes");
    refused(row_of("7"), "data.column-type", "expected an image");
    refused(row_of("\"a.jpg\"", "a <|image_pad|>"), "image.count", "2 tokens for images");
    const std::string two = R"({"messages": [{"role": "user", "content": "<image> <image>"},
        {"role": "assistant", "content": "b"}], "images": )";
    const auto on_one_line = [](std::string text) { return text.erase(text.find('\n'), 1); };
    refused(on_one_line(two) + "[\"a.jpg\"]}\n", "image.count", "1 images in its columns, and 2 places");
    refused(on_one_line(two) + "[\"a.jpg\", \"a.jpg\", \"a.jpg\"]}\n", "image.count", "3 images");

    model.options.vision = nullptr;
    const auto path = folder.write("rows.jsonl", row_of("\"a.jpg\""));
    try {
        (void)model.load(path);
        ADD_FAILURE() << "taken by a model of text";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "image.text-model") << error.what();
    }
}

std::string base64_of(const std::string& bytes) {
    constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    uint32_t held = 0;
    int bits = 0;
    for (const char c : bytes) {
        held = held << 8 | static_cast<unsigned char>(c);
        for (bits += 8; bits >= 6; bits -= 6) text += digits[held >> (bits - 6) & 63];
    }
    return bits > 0 ? text + digits[held << (6 - bits) & 63] : text;  // padding may be missing
}

/// Each kind, as a file and within the text: of a training row with its line, and of a prompt, as `generate` and
/// `serve` read them. Bombs are refused by what their headers claim.
TEST_F(RowImages, HostileImagesAreRefusedInRowsAndPrompts) {
    const toy::Folder folder, outside;
    VisionModel model("qwen3_vl");
    const std::string jpeg = read_file(toy::golden("images/images/a_420.jpg"));
    const auto grey = [](uint32_t width, uint32_t height) { return images::png_file(width, height, 8, 0, ""); };
    const struct {
        const char *name, *id;
        std::string bytes;
    } kinds[] = {
        {"bomb.png", "image.too-large", grey(30'000, 30'000)}, {"wide.png", "image.too-large", grey(50'000, 1)},
        {"high.png", "image.too-large", grey(1, 50'000)},      {"thin.png", "image.unsupported", grey(8'000, 2)},
        {"cut.jpg", "image.damaged", jpeg.substr(0, 300)},     {"empty.jpg", "image.unknown-type", ""},
        {"text.png", "image.unknown-type", "no image"},        {"vector.png", "image.unknown-type", "<svg/>"},
    };
    folder.write("a.jpg", jpeg);
    outside.write("secret.jpg", jpeg);
    std::filesystem::create_symlink(outside / "secret.jpg", folder / "link.jpg");
    model.options.image_root = folder.path();
    const auto expect_refused = [](const char* id, const std::string& what, const auto& read) {
        try {
            read();
            ADD_FAILURE() << "taken: " << what;
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << what << ": " << error.what();
            return std::string(error.what());
        }
        return std::string();
    };
    const auto check = [&](const std::string& image, const char* id) {
        const auto rows = folder.write("rows.jsonl", row_of("\"a.jpg\"") + row_of(cat("\"", image, "\"")));
        const std::string said = expect_refused(id, image, [&] { (void)model.load(rows); });
        EXPECT_NE(said.find("rows.jsonl:2: "), std::string::npos) << said;
        auto prompt = nlohmann::ordered_json::parse(row_of(cat("\"", image, "\"")));
        expect_refused(id, image, [&] {
            (void)place_images(prompt, *model.options.vision, folder.path(),
                               [&](const auto&) { return std::vector<int32_t>{model.options.vision->image_token}; });
        });
    };
    for (const auto& [name, id, bytes] : kinds) {
        folder.write(name, bytes);
        check(name, id);
        check(cat("data:image/png;base64,", base64_of(bytes)), id);
    }
    check("link.jpg", "image.outside-root");
}

/// Features of images with these contents.
struct KeptContents : KeptImages {
    bool keeps(const std::string& content) const override { return contents.contains(content); }
    std::set<std::string> contents;
};

TEST_F(RowImages, WhatIsKeptIsNotDecoded) {
    const toy::Folder folder;
    VisionModel model("qwen3_vl");
    const std::string one = read_file(toy::golden("images/images/a_420.jpg")),
                      other = read_file(toy::golden("images/images/b_444.jpg"));
    folder.write("a.jpg", one);
    folder.write("copy.jpg", one);
    folder.write("b.jpg", other);
    model.options.image_root = folder.path();
    Dataset rows = model.load(folder.write(
        "rows.jsonl", row_of("\"a.jpg\"") + row_of("\"copy.jpg\"") + row_of("\"b.jpg\"") + row_of("\"a.jpg\"")));
    const auto loaded = [&] {
        std::vector<Sample> samples;
        for (int64_t i = 0; i < rows.size(); ++i) samples.push_back(rows.sample(i));
        rows.load_pixels(samples);
        std::vector<Image> images;
        for (const Sample& sample : samples) images.push_back(sample.images.at(0));
        return images;
    };
    const std::vector<Image> plain = loaded();
    EXPECT_EQ(plain[0].content, "");
    EXPECT_NE(plain[0].pixels, plain[1].pixels);
    const auto kept = std::make_shared<KeptContents>();
    rows.set_kept(kept);
    const std::vector<Image> first = loaded();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(*first[i].pixels, *plain[i].pixels) << i;
    EXPECT_TRUE(first[0].same_as(first[1]) && first[0].same_as(first[3]));
    EXPECT_EQ(first[0].pixels, first[1].pixels);
    EXPECT_FALSE(first[0].same_as(first[2]));
    kept->contents = {first[0].content};
    const std::vector<Image> then = loaded();
    for (const std::size_t i : {0, 1, 3}) {
        EXPECT_EQ(then[i].pixels, nullptr) << i;
        EXPECT_EQ(then[i].content, first[0].content) << i;
        EXPECT_FALSE(then[i].same_as(then[2]));
    }
    EXPECT_EQ(*then[2].pixels, *plain[2].pixels);
    // A file that changed is another image, whatever its name.
    folder.write("a.jpg", other);
    EXPECT_THROW((void)loaded(), Error);
}

TEST_F(RowImages, AreShownAsTheirFile) {
    const VisionModel model("qwen3_vl");
    const Sample row = model.load(image_golden("qwen3_vl", "rows.jsonl")).sample(13);
    const auto tokenizer = tokenizer::Tokenizer::load(image_golden("qwen3_vl", "saved"));
    const std::string text = show_tokens(row, &tokenizer, Marks::brackets);
    EXPECT_NE(text.find("a_420.jpg: 4 x 4 patches, 4 tokens from token "), std::string::npos) << text;
    EXPECT_NE(text.find("f_exif6.jpg: 4 x 6 patches, 6 tokens from token "), std::string::npos) << text;
    EXPECT_EQ(text.find("<|image_pad|>"), std::string::npos) << text;
    ASSERT_EQ(image_ranges(row).size(), 2U);
    EXPECT_NE(text.find(cat("6 tokens from token ", image_ranges(row)[1].first, "]")), std::string::npos) << text;
}

TEST_F(RowImages, AreCountedByTheReport) {
    const VisionModel model("qwen3_vl");
    TrainingData data;
    data.train = model.load(image_golden("qwen3_vl", "rows.jsonl"));
    int64_t images = 0, tokens = 0;
    for (int64_t i = 0; i < data.train.size(); ++i) {
        images += static_cast<int64_t>(data.train.images(i).images.size());
        tokens += data.train.image_sizes(i).tokens;
        EXPECT_EQ(data.train.images(i).sources, data.train.sample(i).sources) << i;
    }
    const DataReport report = make_report(data, {}, {}, 1);
    EXPECT_GT(images, 0);
    EXPECT_EQ(report.train.images, images);
    EXPECT_EQ(report.train.image_tokens, tokens);
    const Golden json = Golden::parse(report_json(report, nullptr));
    EXPECT_EQ(json["train"]["images"], (Golden{{"count", images}, {"tokens", tokens}}));
    const std::string text = report_text(report, nullptr, Marks::brackets);
    EXPECT_NE(text.find(cat("  images ")), std::string::npos) << text;
}

TEST_F(RowImages, NoRowIsCutWithinAnImage) {
    VisionModel model("qwen3_vl");
    const Golden first = Golden::parse(read_file(image_golden("qwen3_vl", "encoded.json")))[0];
    const auto ids = first["input_ids"].get<std::vector<int32_t>>();
    const auto begin = std::find(ids.begin(), ids.end(), model.options.vision->image_token) - ids.begin();
    const toy::Folder folder;
    const auto path = folder.write("rows.jsonl", row_of("\"images/a_420.jpg\""));
    model.options.long_rows = config::LongRows::truncate;
    model.options.keep_all_masked = true;
    const auto cut_at = [&](int64_t length) {
        model.options.max_seq_length = length;
        return model.load(path).sample(0);
    };
    EXPECT_TRUE(cut_at(begin).images.empty());
    EXPECT_TRUE(cut_at(begin).axes.empty());
    for (int64_t length = begin + 1; length < begin + 4; ++length) EXPECT_THROW(cut_at(length), Error) << length;
    EXPECT_EQ(cut_at(begin + 4).images.size(), 1U);
    model.options.long_rows = config::LongRows::split;
    EXPECT_THROW(cut_at(begin + 4), Error);
}

/// A file that the program itself reads, whose sums libpng checks.
TEST_F(RowImages, ThumbnailsAreImages) {
    const toy::Folder folder;
    const VisionModel model("qwen3_vl");
    const auto seen = [&](const std::string& image) {
        const Dataset rows = model.load(folder.write("rows.jsonl", row_of(cat("\"", image, "\""))));
        std::vector<Sample> samples = {rows.sample(0)};
        rows.load_pixels(samples);
        return samples[0].images.at(0);
    };
    const Image image = seen("images/a_420.jpg");
    const std::string url = thumbnail_of(image, *model.options.vision);
    EXPECT_LT(url.size(), 40'000U);
    const Image again = seen(url);
    EXPECT_TRUE(again.pixels);
    // So small an image is shown as it is.
    EXPECT_EQ(again.grid_h, image.grid_h);
    EXPECT_EQ(again.grid_w, image.grid_w);
    EXPECT_EQ(*again.pixels, *image.pixels);
}

std::string pair_of_images(const std::string& prompt, const std::string& images = R"(["images/a_420.jpg"])",
                           const std::string& chosen = R"("a what")") {
    return cat(R"({"prompt": [{"role": "user", "content": )", prompt,
               R"(}], "chosen": [{"role": "assistant", "content": )", chosen,
               R"(}], "rejected": [{"role": "assistant", "content": "two the"}], "images": )", images, "}\n");
}
constexpr const char* asked_of_image = R"([{"type": "image"}, {"type": "text", "text": "two the"}])";

/// A pair is its prompt with each answer, as rows of these are by themselves; and the images are loaded once.
TEST_F(RowImages, PairsSeeThemWithBothAnswers) {
    const toy::Folder folder;
    for (const std::string family : {"qwen3_vl", "mllama"}) {
        VisionModel model(family);
        const auto alone = folder.write(
            "alone.jsonl",
            cat(R"({"messages": [{"role": "user", "content": )", asked_of_image,
                R"(}, {"role": "assistant", "content": "a what"}], "images": ["images/a_420.jpg"]})", "\n",
                R"({"messages": [{"role": "user", "content": )", asked_of_image,
                R"(}, {"role": "assistant", "content": "two the"}], "images": ["images/a_420.jpg"]})", "\n"));
        const Dataset single = model.load(alone);
        model.options.objective = config::Objective::dpo;
        const Dataset pairs = model.load(folder.write("pairs.jsonl", pair_of_images(asked_of_image)));
        Sample both = pairs.sample(0);
        std::vector<int32_t> ids, labels, axes;
        const auto first = static_cast<int32_t>(single.sample(0).ids.size());
        for (int64_t i = 0; i < 2; ++i) {
            const Sample one = single.sample(i);
            ids.insert(ids.end(), one.ids.begin(), one.ids.end());
            labels.insert(labels.end(), one.labels.begin(), one.labels.end());
            axes.insert(axes.end(), one.axes.begin(), one.axes.end());
            ASSERT_EQ(both.images.size(), 2U);
            EXPECT_EQ(both.images[static_cast<std::size_t>(i)].first, one.images[0].first + (i == 0 ? 0 : first));
        }
        EXPECT_EQ(both.ids, ids) << family;
        EXPECT_EQ(both.labels, labels) << family;
        EXPECT_EQ(both.axes, axes) << family;
        std::vector<Sample> rows = {both};
        pairs.load_pixels(rows);
        ASSERT_TRUE(rows[0].images[0].pixels);
        EXPECT_EQ(rows[0].images[0].pixels, rows[0].images[1].pixels);

        // Where features stand for tokens, a prompt is there once.
        const Dataset shares = pairs.with_shared_prompts();
        rows = {shares.sample(0)};
        shares.load_pixels(rows);
        const bool tiles = family == "mllama";
        ASSERT_EQ(rows[0].images.size(), tiles ? 2U : 1U) << family;
        EXPECT_TRUE(rows[0].images[0].pixels);
        const int32_t shared = rows[0].segments[1].shared;
        EXPECT_EQ(shared > 0, !tiles);
        if (tiles) continue;
        // An answer's positions go on as if its prompt stood before it.
        const auto skipped = axes.begin() + 3 * (first + shared);
        EXPECT_TRUE(std::equal(rows[0].axes.begin() + 3 * first, rows[0].axes.end(), skipped, axes.end()));
    }
}

TEST_F(RowImages, VerdictsAreOnAnswersAboutThem) {
    const toy::Folder folder;
    VisionModel model("qwen3_vl");
    model.options.objective = config::Objective::kto;
    const auto row = [](const char* image, const char* answer, const char* label) {
        return cat(R"({"prompt": [{"role": "user", "content": )", asked_of_image,
                   R"(}], "completion": [{"role": "assistant", "content": ")", answer, R"("}], "label": )", label,
                   R"(, "images": ["images/)", image, "\"]}\n");
    };
    const Dataset rows =
        model.load(folder.write("rows.jsonl", row("a_420.jpg", "a what", "true") + row("g_rgb.png", "the", "false")));
    ASSERT_EQ(rows.size(), 2);
    EXPECT_TRUE(rows.sample(0).desirable);
    const Dataset foreign = rows.with_foreign_answers(0);
    std::vector<Sample> samples = {foreign.sample(0)};
    foreign.load_pixels(samples);
    ASSERT_EQ(samples[0].images.size(), 2U);
    for (const Image& image : samples[0].images) {
        EXPECT_TRUE(image.pixels);
        EXPECT_EQ(samples[0].ids[static_cast<std::size_t>(image.first)], model.options.vision->image_token);
    }
    EXPECT_EQ(samples[0].axes.size(), 3 * samples[0].ids.size());
}

TEST_F(RowImages, AnswersThatAreComparedHaveNone) {
    const toy::Folder folder;
    VisionModel model("mllama");  // whose template writes places in answers too
    model.options.objective = config::Objective::dpo;
    const auto refused = [&](const std::string& row, const char* id) {
        try {
            (void)model.load(folder.write("rows.jsonl", row));
            ADD_FAILURE() << "taken: " << row;
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
        }
    };
    refused(pair_of_images(asked_of_image, R"(["images/a_420.jpg", "images/g_rgb.png"])", asked_of_image),
            "data.wrong-objective");
    refused(pair_of_images(R"("two the <image> <image>")"), "image.count");
    model.options.max_seq_length = 20;
    model.options.max_prompt_length = 8;
    refused(pair_of_images(asked_of_image), "data.row-too-long");
}

TEST_F(RowImages, BatchesBringPixelsAndTheCacheReferences) {
    VisionModel model("qwen3_vl");
    const toy::Folder folder;
    const CacheOptions cache{.folder = folder / "cache", .encoder_fingerprint = "encoder"};
    const auto load = [&] {
        return load_cached(
            {{.path = image_golden("qwen3_vl", "rows.jsonl").string()}}, model.options,
            [&](const std::string&) { return model.encoder.get(); }, cache);
    };
    const Dataset made = load(), kept = load();
    EXPECT_EQ(made.fingerprint(), kept.fingerprint());
    const auto files = [&] {
        int64_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator(cache.folder))
            count += entry.path().extension() == ".rows";
        return count;
    };
    EXPECT_EQ(files(), 1);
    StepLoader loader(kept, {.per_device_train_batch_size = 18, .shuffle = false});
    const Batch batch = loader.step(0).micro.at(0);
    int64_t patches = 0;
    for (const Image& image : batch.images) patches = std::max(patches, image.patches());
    EXPECT_EQ(loader.limits().patches, patches);
    EXPECT_EQ(loader.limits().image_tokens,
              std::count(batch.ids_T.begin(), batch.ids_T.end(), model.options.vision->image_token));
    const Golden expected = Golden::parse(read_file(toy::golden("images/expected.json")))["qwen3_vl"]["pixels"];
    const Golden encoded = Golden::parse(read_file(image_golden("qwen3_vl", "encoded.json")));
    std::size_t next = 0;
    for (const Golden& row : encoded)
        for (const Golden& name : row["images"]) {
            const Image& image = batch.images.at(next++);
            ASSERT_TRUE(image.pixels) << name;
            EXPECT_EQ(static_cast<int64_t>(image.pixels->size()),
                      expected[name.get<std::string>()]["shape"][0].get<int64_t>() * 3 * 256);
            EXPECT_EQ(batch.ids_T.at(static_cast<std::size_t>(image.first)), model.options.vision->image_token);
        }
    EXPECT_EQ(batch.images.size(), next);
    EXPECT_EQ(batch.axes_T3.size(), 3 * batch.ids_T.size());

    auto other = std::make_shared<VisionRows>(*model.options.vision);
    other->processor.most_pixels *= 2;
    model.options.vision = other;
    (void)load();
    EXPECT_EQ(files(), 2) << "the processor's settings are part of the key";
}

}  // namespace
}  // namespace unsloth::data
