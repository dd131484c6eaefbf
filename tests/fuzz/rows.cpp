// Files of training data: JSON Lines, JSON arrays, tables and plain text, plain and compressed, from bytes to ids.
// options: -max_len=8192 -dict=tests/fuzz/rows.dict
// parser: src/data/format.cpp src/data/tokenized_row.* src/data/columns.* src/data/conversation.* src/data/preference.*
// src/data/lines.* parser: src/data/row_images.* src/data/image_source.* src/data/vision.cpp parser:
// src/data/json_readers.cpp src/data/text_readers.cpp src/data/byte_stream.* src/data/reader.cpp
#include <nlohmann/json.hpp>

#include "fuzz/support.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"

namespace {

using namespace unsloth;

/// Runs `step`; a BadRow is how rows are refused.
template <class Step>
bool takes(const Step& step) {
    bool taken = false;
    fuzz::accepts([&] {
        try {
            step();
            taken = true;
        } catch (const data::BadRow&) {
        }
    });
    return taken;
}

void format_row(const nlohmann::ordered_json& row, const data::RowEncoder& encoder) {
    config::DataFormat format = config::DataFormat::automatic;
    if (!takes([&] { format = data::detect_format(row); })) return;
    static const auto vision = std::make_shared<const data::VisionRows>(data::VisionRows{.image_token = 1});
    for (const bool train_on_prompt : {false, true}) {
        takes([&] {
            const data::RowFormatter formatter(format,
                                               {.train_on_prompt = train_on_prompt,
                                                .train_on_last_turn_only = train_on_prompt,
                                                .max_seq_length = 64,
                                                .long_rows = config::LongRows::truncate,
                                                .max_positions = 128,
                                                .vocab_size = 4096,
                                                .vision = train_on_prompt ? vision : nullptr},
                                               &encoder);
            const data::FormattedRow made = formatter.format(row);
            fuzz::require(made.labels.size() == made.ids.size() && made.ids.size() <= 64,
                          "labels beside ids, cut to 64");
            fuzz::require(made.positions.empty() || made.positions.size() == made.ids.size(), "positions beside ids");
        });
    }
}

void read_rows(const std::filesystem::path& file, const data::ReaderOptions& options, const data::RowEncoder& encoder) {
    std::unique_ptr<data::RowReader> reader;
    if (!takes([&] { reader = data::open_rows(file, options); })) return;
    data::RowChunk chunk;
    while (takes([&] { chunk = reader->next(); }) && !chunk.empty()) {
        for (std::size_t i = 0; i < chunk.size(); ++i) {
            nlohmann::ordered_json row;
            if (takes([&] { row = reader->parse(chunk.row(i)); })) format_row(row, encoder);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    static const fuzz::Folder folder;
    static const auto encoder =
        data::make_row_encoder(tokenizer::Tokenizer::load(fuzz::golden("tokenizer/qwen_small")), "auto");
    const data::ColumnNames renamed = {{"text", "content"}, {"prompt", "text"}};
    const data::ReaderOptions strict, lenient{config::TextUnit::file, config::InvalidUtf8::replace, renamed};
    for (const char* name : {"rows.jsonl", "rows.csv", "rows.txt"}) {
        const auto file = folder.write(name, fuzz::text_of(data, size));
        read_rows(file, size % 2 == 0 ? strict : lenient, *encoder);
        std::filesystem::remove(file);
    }
    return 0;
}
