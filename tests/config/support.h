// Helpers of the config tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"

namespace unsloth::testing {

using Json = nlohmann::ordered_json;

using test::ScratchFolder;

/// load_config over a file with this content.
inline config::LoadedConfig load_text(const std::string& content, const std::vector<std::string>& flags = {}) {
    const ScratchFolder folder;
    return config::load_config(folder.write("run.json", content), flags);
}

/// The message of the usage Error that `call` throws; fails the test when it throws none.
template <class Call>
std::string usage_message(const Call& call) {
    try {
        call();
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::usage) << failure.what();
        return failure.what();
    }
    ADD_FAILURE() << "no error";
    return "";
}

inline std::string file_error(const std::string& content) {
    return usage_message([&] { load_text(content); });
}
inline std::string flag_error(const std::vector<std::string>& flags) {
    return usage_message([&] { config::load_config({}, flags); });
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace unsloth::testing

#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(::unsloth::testing::contains(text, part)) << (text)
