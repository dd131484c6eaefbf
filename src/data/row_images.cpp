#include "data/row_images.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/image_source.h"
#include "unsloth/core/error.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* conversation_columns[] = {"messages", "conversations", "prompt", "completion"};
constexpr const char* image_columns[] = {"images", "image"};

bool has_image_column(const Json& row) {
    return std::ranges::any_of(image_columns, [&](const char* column) { return says_something(row, column); });
}

/// Where a message or a turn has its text; null: it has none.
Json* content_of(Json& message) {
    if (!message.is_object()) return nullptr;
    for (const char* key : {"content", "value"})
        if (const auto found = message.find(key); found != message.end()) return &*found;
    return nullptr;
}

bool is_image_part(const Json& part) {
    if (!part.is_object()) return false;
    const auto type = part.find("type");
    return type != part.end() && (*type == "image" || *type == "image_url");
}

bool has_place(const Json& content, bool in_texts) {
    if (content.is_array()) return std::any_of(content.begin(), content.end(), is_image_part);
    return in_texts && content.is_string() &&
           content.get_ref<const std::string&>().find(image_placeholder) != std::string::npos;
}

/// The text between images as a part; nothing of an empty one.
void add_text(std::string_view text, Json& parts) {
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::string(text)}});
}

/// The row's images from column after column, and its messages' places.
class ImageTaker {
  public:
    explicit ImageTaker(Json& row) {
        for (const char* column : image_columns) {
            const auto found = row.find(column);
            if (found == row.end()) continue;
            if (says_something(row, column)) collect(*found);
            row.erase(column);
        }
    }

    void take(Json& content, const std::string& where) {
        Json parts = Json::array();
        if (content.is_string()) {
            std::string_view text = content.get_ref<const std::string&>();
            for (std::size_t at = text.find(image_placeholder); at != std::string_view::npos;
                 at = text.find(image_placeholder)) {
                add_text(text.substr(0, at), parts);
                add_place(nullptr, where, parts);
                text.remove_prefix(at + image_placeholder.size());
            }
            add_text(text, parts);
        } else {
            for (std::size_t i = 0; i < content.size(); ++i) {
                Json& part = content[i];
                is_image_part(part) ? add_place(&part, cat(where, "[", i, "]"), parts)
                                    : parts.push_back(std::move(part));
            }
        }
        content = std::move(parts);
    }

    std::vector<Json> finish() {
        if (next_ < given_.size() || missing_ > 0)
            throw BadRow{"image.count",
                         cat("the row has ", given_.size(), " images in its columns, and ", next_ + missing_,
                             " places for them in its messages"),
                         "Each place, an image part or <image> in a text, takes one image, in order."};
        return std::move(taken_);
    }

  private:
    void collect(Json& value) {
        if (value.is_string() && value.get_ref<const std::string&>().starts_with('[')) {  // a table's cell
            Json parsed = tokenizer::try_parse_ordered(value.get_ref<const std::string&>());
            if (parsed.is_array()) value = std::move(parsed);
        }
        if (!value.is_array()) return given_.push_back(std::move(value));
        for (Json& one : value) given_.push_back(std::move(one));
    }

    void add_place(Json* part, const std::string& where, Json& parts) {
        parts.push_back({{"type", "image"}});
        if (part != nullptr)
            for (const char* own : {"image", "image_url", "path", "base64", "bytes", "url"})
                if (const auto found = part->find(own); found != part->end() && !found->is_null())
                    return taken_.push_back(std::move(*part));
        if (part != nullptr && (*part)["type"] == "image_url")
            throw BadRow{"data.message-shape", cat(where, ": expected a member image_url"), ""};
        if (next_ < given_.size())
            taken_.push_back(std::move(given_[next_++]));
        else
            ++missing_;
    }

    std::vector<Json> given_, taken_;
    std::size_t next_ = 0, missing_ = 0;
};

/// The messages of a column; a table has them as JSON text, which is parsed in place.
Json* messages_of(Json& row, const char* column) {
    const auto found = row.find(column);
    if (found == row.end()) return nullptr;
    if (found->is_string() && found->get_ref<const std::string&>().starts_with("[{")) {
        Json parsed = tokenizer::try_parse_ordered(found->get_ref<const std::string&>());
        if (parsed.is_array()) *found = std::move(parsed);
    }
    return found->is_array() ? &*found : nullptr;
}

}  // namespace

bool has_image_places(const Json& row) {
    const bool in_texts = has_image_column(row);
    for (const char* column : conversation_columns) {
        const auto found = row.find(column);
        if (found == row.end()) continue;
        if (found->is_string()) {  // a table's cell
            const auto& text = found->get_ref<const std::string&>();
            if (text.starts_with("[{") && ((in_texts && text.find(image_placeholder) != std::string::npos) ||
                                           text.find("\"image") != std::string::npos))
                return true;
        }
        if (!found->is_array()) continue;
        for (const Json& message : *found) {
            if (!message.is_object()) continue;
            for (const char* key : {"content", "value"})
                if (const auto content = message.find(key); content != message.end() && has_place(*content, in_texts))
                    return true;
        }
    }
    return false;
}

std::vector<Json> take_images(Json& row) {
    const bool in_texts = has_image_column(row);
    ImageTaker taker(row);
    for (const char* column : conversation_columns) {
        Json* const messages = messages_of(row, column);
        if (messages == nullptr) continue;
        for (std::size_t i = 0; i < messages->size(); ++i) {
            Json* const content = content_of((*messages)[i]);
            if (content != nullptr && has_place(*content, in_texts))
                taker.take(*content, cat(column, "[", i, "].content"));
        }
    }
    return taker.finish();
}

void expand_images(EncodedRow& row, std::vector<Image> images, const VisionRows& vision) {
    const auto places = static_cast<std::size_t>(std::count(row.ids.begin(), row.ids.end(), vision.image_token));
    if (places != images.size())
        throw BadRow{
            "image.count",
            cat("the row has ", images.size(), " images, and the chat template writes ", places, " tokens for images"),
            "The template must write one for each image part, and no text may hold that token."};
    std::vector<int32_t> ids, moved(row.ids.size() + 1);  // moved: where each token of before begins now
    std::size_t next = 0;
    for (std::size_t t = 0; t < row.ids.size(); ++t) {
        moved[t] = static_cast<int32_t>(ids.size());
        if (row.ids[t] != vision.image_token) {
            ids.push_back(row.ids[t]);
            continue;
        }
        Image& image = images[next++];
        image.first = moved[t];
        ids.insert(ids.end(), static_cast<std::size_t>(vision.tokens_of(image)), vision.image_token);
    }
    moved.back() = static_cast<int32_t>(ids.size());
    for (auto& [begin, end] : row.trained) {
        begin = moved[static_cast<std::size_t>(begin)];
        end = moved[static_cast<std::size_t>(end)];
    }
    row.ids = std::move(ids);
    row.images = std::move(images);
}

FormattedRow RowFormatter::with_images(Json row, const std::filesystem::path& folder) const {
    if (!options_.vision)
        throw BadRow{"image.text-model", "the row has images, and the model reads text alone",
                     "Choose a model with a vision tower, or remove the images from the rows."};
    const VisionRows& vision = *options_.vision;
    if (!vision.missing.empty())
        throw BadRow{"image.processor", cat("the row has images, and ", vision.missing),
                     "Copy preprocessor_config.json of the model into its folder: it says how images are resized."};
    const std::filesystem::path& root = options_.image_root.empty() ? folder : options_.image_root;
    std::vector<Image> images;
    std::vector<ImageSource> sources;
    for (const Json& value : take_images(row)) {
        const std::string where = cat("image ", sources.size() + 1);
        const ImageSource& source = sources.emplace_back(image_source(value, root, where));
        const images::Grid grid = images::grid_of(vision.processor, size_of(source));
        images.push_back({.grid_h = grid.height, .grid_w = grid.width});
    }
    std::vector<bool> in_loss;
    const bool learns_text = config::traits_of(options_.objective).examples == config::ExampleKind::targets;
    EncodedRow ids = learns_text ? conversation(row, in_loss) : encode_prompt_completion(row, in_loss);
    expand_images(ids, std::move(images), vision);
    std::size_t answer = 0;  // earlier turns of the prompt are not trained
    while (answer < in_loss.size() && !in_loss[answer]) ++answer;
    if (!learns_text && answer < ids.trained.size() && ids.images.back().first >= ids.trained[answer].first)
        throw BadRow{"data.wrong-objective",
                     cat("the answer has an image, which training.objective ",
                         config::traits_of(options_.objective).name, " does not compare"),
                     "Images are part of the prompt, which both answers share."};
    ids.sources = std::move(sources);
    return encoded(std::move(ids), in_loss);
}

/// Drops the images after the end of a row that was cut; none may be cut itself.
void RowFormatter::cut_images(FormattedRow& row) const {
    const auto end = static_cast<int64_t>(row.ids.size());
    while (!row.images.empty() && row.images.back().first >= end) {
        row.images.pop_back();
        row.sources.pop_back();
    }
    if (row.images.empty() || row.images.back().first + options_.vision->tokens_of(row.images.back()) <= end) return;
    throw BadRow{"data.row-too-long",
                 cat("the row would be cut at ", end, " tokens, within an image of ",
                     options_.vision->tokens_of(row.images.back()), " tokens"),
                 "Raise model.max_seq_length, set data.overflow_strategy to drop, or make the image smaller."};
}

}  // namespace unsloth::data
