// A tree of small files in place of /proc and /sys.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace unsloth::app {

class FakeRoot {
  public:
    FakeRoot() {
        std::string pattern = ::testing::TempDir() + "unsloth-root-XXXXXX";
        path_ = ::mkdtemp(pattern.data());
    }
    ~FakeRoot() { std::filesystem::remove_all(path_); }
    void write(const std::string& name, const std::string& text) const {
        std::filesystem::create_directories((path_ / name).parent_path());
        std::ofstream(path_ / name) << text;
    }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

}  // namespace unsloth::app
