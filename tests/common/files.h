// What all tests share: where the golden files and the built executable are, and folders that go away.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace unsloth::test {

/// This project's source folder, and the one that it was built in.
const std::filesystem::path& source_folder();
const std::filesystem::path& binary_folder();

/// A file or folder below tests/golden.
std::filesystem::path golden(const std::filesystem::path& name);

/// An empty folder of an unpredictable name in $TMPDIR, removed with the object.
class ScratchFolder {
  public:
    ScratchFolder();
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }
    /// Writes a file of this name, and the folders above it. Its path.
    std::filesystem::path write(const std::filesystem::path& name, std::string_view content) const;

  private:
    std::filesystem::path path_;
};

}  // namespace unsloth::test
