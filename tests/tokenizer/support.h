// What the tokenizer's tests share: golden rows and folders made on the fly.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::test {

using nlohmann::json;

inline std::string read_text(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in.good()) << path;
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

inline std::vector<json> read_rows(const std::filesystem::path& path) {
    std::istringstream in(read_text(path));
    std::vector<json> rows;
    for (std::string line; std::getline(in, line);) rows.push_back(json::parse(line));
    EXPECT_FALSE(rows.empty()) << path;
    return rows;
}

inline json small_json(const std::string& name) {
    return json::parse(read_text(golden("tokenizer/" + name + "/tokenizer.json")));
}

/// The folder of a real tokenizer, expanded from $UNSLOTH_SHARED/tokenizers; false when that is not there.
inline bool expand_shared(const std::string& name, const ScratchFolder& into) {
    const char* shared = std::getenv("UNSLOTH_SHARED");
    if (!shared) return false;
    const std::filesystem::path from = std::filesystem::path(shared) / "tokenizers" / name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
        const std::string command =
            "xz -dc '" + (from / file).string() + ".xz' > '" + (into.path() / file).string() + "'";
        if (std::system(command.c_str()) != 0) return false;
    }
    return true;
}

/// Lines of $UNSLOTH_SHARED/golden/NAME or of NAME.xz.
inline std::vector<json> shared_rows(const std::string& name, const ScratchFolder& scratch) {
    const std::filesystem::path path = std::filesystem::path(std::getenv("UNSLOTH_SHARED")) / "golden" / name;
    if (std::filesystem::exists(path)) return read_rows(path);
    const std::filesystem::path plain = scratch.path() / "rows.jsonl";
    const std::string command = "xz -dc '" + path.string() + ".xz' > '" + plain.string() + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << path;
    return read_rows(plain);
}

/// The message of the Error that `call` throws, or a failure.
template <class Call>
std::string error_of(Expected expected, Call call) {
    try {
        call();
    } catch (const Error& error) {
        expected.check(error);
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
}

}  // namespace unsloth::test
