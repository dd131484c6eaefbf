// What the fuzz targets share. A target is one file beside this one that defines LLVMFuzzerTestOneInput; its lines
//     // seeds: FOLDER...     folders of valid files (from the source folder) beside corpus/NAME
//     // options: OPTION...   of libFuzzer
//     // parser: GLOB...      the parser's sources: scripts/fuzz.sh --changed fuzzes again when they change
// are read by scripts/fuzz.sh. A parser may take its input or throw an Error of kind input or usage; whatever else
// leaves it ends the process, which libFuzzer reports.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

extern "C" inline int LLVMFuzzerInitialize(int*, char***) {
    unsloth::log::set_level(unsloth::log::Level::off);
    return 0;
}

namespace unsloth::fuzz {

inline std::string_view text_of(const uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

inline std::filesystem::path golden(const std::string& name) {
    return std::filesystem::path(UNSLOTH_SOURCE_DIR) / "tests/golden" / name;
}

/// Ends the process with a message: what the parsers promise does not hold.
[[noreturn]] inline void broken(const std::string& what) {
    std::fprintf(stderr, "fuzz target: %s\n", what.c_str());
    std::abort();
}
inline void require(bool holds, const char* what) {
    if (!holds) broken(what);
}

/// Runs `parse`. False when it refused its input as a parser may.
template <class Parse>
bool accepts(const Parse& parse) {
    try {
        parse();
        return true;
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::runtime)
            broken(cat("a runtime error where the input is to blame: ", error.what()));
        return false;
    }
}

/// This process's folder for the parsers that read files, below $TMPDIR (scripts/fuzz.sh gives one in memory).
class Folder {
  public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "unsloth-fuzz-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) broken("no temporary folder");
        path_ = name;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path write(const std::string& name, std::string_view content) const {
        const auto file = path_ / name;
        std::ofstream out(file, std::ios::binary);
        out.write(content.data(), static_cast<std::streamsize>(content.size()));
        out.close();
        if (!out) broken(cat("cannot write ", file.string()));
        return file;
    }
    void copy(const std::filesystem::path& file) const {
        std::filesystem::copy_file(file, path_ / file.filename(), std::filesystem::copy_options::overwrite_existing);
    }

  private:
    std::filesystem::path path_;
};

}  // namespace unsloth::fuzz
