// Helpers of the config tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/errors.h"
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

/// The message of the usage Error that `call` throws; fails the test when it throws none, or not the expected one.
template <class Call>
std::string usage_message(const Call& call, test::Expected expected = ErrorKind::usage) {
    try {
        call();
    } catch (const Error& failure) {
        expected.check(failure);
        return failure.what();
    }
    ADD_FAILURE() << "no error";
    return "";
}

inline std::string file_error(const std::string& content, test::Expected expected = ErrorKind::usage) {
    return usage_message([&] { load_text(content); }, expected);
}
inline std::string flag_error(const std::vector<std::string>& flags, test::Expected expected = ErrorKind::usage) {
    return usage_message([&] { config::load_config({}, flags); }, expected);
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace unsloth::testing

#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(::unsloth::testing::contains(text, part)) << (text)
