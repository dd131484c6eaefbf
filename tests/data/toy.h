// What the data tests share: a folder that goes away, a tokenizer of bytes, and a look at errors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/data/dataset.h"

namespace unsloth::toy {

using Folder = test::ScratchFolder;

using test::golden;

constexpr int32_t bos = 1, eos = 2, first_byte = 3;  // byte b has id b + 3
constexpr int64_t vocabulary = 259;

inline void append_bytes(data::EncodedRow& row, std::string_view text) {
    for (const char c : text) row.ids.push_back(first_byte + static_cast<unsigned char>(c));
}

inline std::vector<int32_t> bytes(std::string_view text) {
    data::EncodedRow row;
    append_bytes(row, text);
    return row.ids;
}

inline std::vector<int32_t> joined(std::initializer_list<std::vector<int32_t>> parts) {
    std::vector<int32_t> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// Bytes as tokens. An Alpaca prompt is "SYSTEM|INSTRUCTION|INPUT>", a turn is "ROLE:CONTENT" and EOS.
class Encoder : public data::RowEncoder {
  public:
    data::EncodedRow text(std::string_view text) const override {
        data::EncodedRow row{{bos}, {}};
        append_bytes(row, text);
        row.ids.push_back(eos);
        row.trained = {{0, size(row)}};
        return row;
    }
    data::EncodedRow alpaca(const data::AlpacaFields& fields) const override {
        data::EncodedRow row{{bos}, {}};
        append_bytes(row, fields.system + "|" + fields.instruction + "|" + fields.input + ">");
        add_trained(row, fields.output);
        return row;
    }
    data::EncodedRow prompt_completion(std::string_view prompt, std::string_view completion) const override {
        data::EncodedRow row{{bos}, {}};
        append_bytes(row, prompt);
        add_trained(row, completion);
        return row;
    }
    std::size_t common_prompt(std::string_view a, std::string_view b) const override {
        auto end = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
        while (end > 0 && end < a.size() && (a[end] & 0xC0) == 0x80) --end;
        return end;
    }
    data::EncodedRow messages(const std::vector<tokenizer::Message>& turns) const override {
        data::EncodedRow row{{bos}, {}};
        for (const tokenizer::Message& turn : turns) {
            if (turn.role == "tool") throw Error("template.failed", "the template knows no role \"tool\"");
            append_bytes(row, turn.role + ":");
            if (turn.role == "assistant") {
                add_trained(row, turn.content);
                continue;
            }
            append_bytes(row, turn.content);
            row.ids.push_back(eos);
        }
        return row;
    }

  private:
    static int32_t size(const data::EncodedRow& row) { return static_cast<int32_t>(row.ids.size()); }
    static void add_trained(data::EncodedRow& row, std::string_view text) {
        const int32_t begin = size(row);
        append_bytes(row, text);
        row.ids.push_back(eos);
        row.trained.emplace_back(begin, size(row));
    }
};

/// Runs `action`, which must throw such an Error, and gives its message.
template <class Action>
std::string message_of(test::Expected expected, Action&& action) {
    try {
        action();
    } catch (const Error& error) {
        expected.check(error);
        return error.what();
    }
    ADD_FAILURE() << "expected an Error";
    return {};
}

inline void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

/// `count` samples of lengths 2 ... 2 + spread, source rows 0 ..., all trained; the ids name row and token.
inline std::vector<data::Sample> samples(int64_t count, int64_t spread) {
    std::vector<data::Sample> result;
    for (int64_t row = 0; row < count; ++row) {
        data::Sample sample;
        sample.row = row;
        const int64_t length = 2 + (spread == 0 ? 0 : (row * 7919) % (spread + 1));
        for (int64_t t = 0; t < length; ++t) {
            sample.ids.push_back(static_cast<int32_t>(row * 100 + t));
            sample.positions.push_back(static_cast<int32_t>(t));
        }
        sample.labels = sample.ids;
        result.push_back(std::move(sample));
    }
    return result;
}

inline const Encoder encoder;

/// What the action logs.
template <class Action>
std::string logged(Action&& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
}

}  // namespace unsloth::toy
