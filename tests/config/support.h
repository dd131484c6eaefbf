// Helpers of the config tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"

namespace unsloth::testing {

using Json = nlohmann::ordered_json;

/// A folder of its own for one test, removed with it.
class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "unsloth_config_XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = name;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path write(const std::string& name, const std::string& content) const {
        std::ofstream(path_ / name) << content;
        return path_ / name;
    }

  private:
    std::filesystem::path path_;
};

/// load_config over a file with this content.
inline config::LoadedConfig load_text(const std::string& content, const std::vector<std::string>& flags = {}) {
    const TemporaryFolder folder;
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
