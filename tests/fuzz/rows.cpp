// Files of training data: JSON Lines, JSON arrays, tables and plain text, plain and compressed, from the bytes to token
// ids. options: -max_len=8192 -dict=tests/fuzz/rows.dict
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
        } catch (const BadRow&) {
        }
    });
    return taken;
}

void format_row(const nlohmann::ordered_json& row, const RowEncoder& encoder) {
    DataFormat format = DataFormat::automatic;
    if (!takes([&] { format = detect_format(row); })) return;
    for (const bool train_on_prompt : {false, true}) {
        takes([&] {
            const RowFormatter formatter(format,
                                         {.train_on_prompt = train_on_prompt,
                                          .train_on_last_turn_only = train_on_prompt,
                                          .max_seq_length = 64,
                                          .long_rows = LongRows::truncate,
                                          .max_positions = 128,
                                          .vocab_size = 4096},
                                         &encoder);
            const FormattedRow made = formatter.format(row);
            fuzz::require(made.labels.size() == made.ids.size() && made.ids.size() <= 64,
                          "labels beside ids, cut to 64");
            fuzz::require(made.positions.empty() || made.positions.size() == made.ids.size(), "positions beside ids");
        });
    }
}

void read_rows(const std::filesystem::path& file, const ReaderOptions& options, const RowEncoder& encoder) {
    std::unique_ptr<RowReader> reader;
    if (!takes([&] { reader = open_rows(file, options); })) return;
    RowChunk chunk;
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
    static const auto encoder = make_row_encoder(Tokenizer::load(fuzz::golden("tokenizer/qwen_small")), "auto");
    const ColumnNames renamed = {{"text", "content"}, {"prompt", "text"}};
    const ReaderOptions strict, lenient{TextUnit::file, InvalidUtf8::replace, renamed};
    for (const char* name : {"rows.jsonl", "rows.csv", "rows.txt"}) {
        const auto file = folder.write(name, fuzz::text_of(data, size));
        read_rows(file, size % 2 == 0 ? strict : lenient, *encoder);
        std::filesystem::remove(file);
    }
    return 0;
}
