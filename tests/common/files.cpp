#include "common/files.h"

#include <unistd.h>

#include <fstream>
#include <stdexcept>

namespace unsloth::test {

namespace fs = std::filesystem;

const fs::path& source_folder() {
    static const fs::path folder = UNSLOTH_SOURCE_DIR;
    return folder;
}

const fs::path& binary_folder() {
    static const fs::path folder = UNSLOTH_BINARY_DIR;
    return folder;
}

fs::path golden(const fs::path& name) {
    return source_folder() / "tests/golden" / name;
}

ScratchFolder::ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "unsloth-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for a test in " + name);
    path_ = name;
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

fs::path ScratchFolder::write(const fs::path& name, std::string_view content) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream out(path, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
    return path;
}

}  // namespace unsloth::test
