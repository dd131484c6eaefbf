#include "train/row_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/folder.h"
#include "unsloth/core/log.h"

namespace unsloth::train {
namespace {

/// A last line that was cut by a kill is no row.
std::string rows_until(const Folder& folder, const std::string& name, int64_t step) {
    const Descriptor file = step <= 0 ? Descriptor() : open_own_file(folder, name, O_RDONLY);
    if (!file.open()) return "";
    const MappedFile map(folder / name, file.get());
    std::istringstream lines(std::string(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()));
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
        const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (row.is_object() && row.contains("step") && row["step"].is_number_integer() &&
            row["step"].get<int64_t>() <= step)
            kept += line + "\n";
    }
    return kept;
}

}  // namespace

RowFile::RowFile(const std::filesystem::path& output_dir, const std::filesystem::path& name, int64_t after_step)
    : path_(output_dir / name) {
    const Folder folder = Folder::made(output_dir).require().made_below(name.parent_path()).require();
    const std::string own = name.filename();
    write_file_atomically(folder, own, rows_until(folder, own, after_step));
    file_ = open_own_file(folder, own, O_WRONLY | O_APPEND);
    if (!file_.open())
        throw Error("disk.cannot-write", cat("cannot create ", path_.string(), ": ", std::strerror(errno)));
}

RowFile::~RowFile() {
    const int error = write_waiting();
    if (!waiting_.empty())
        log::warning(path_.string(), " lacks its last ", std::count(waiting_.begin(), waiting_.end(), '\n'),
                     " rows: ", std::strerror(error));
}

void RowFile::add(const nlohmann::ordered_json& row) {
    waiting_ +=  // an error may quote a file's bytes
        row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (const int error = write_waiting(); error != 0 && !std::exchange(warned_, true))
        log::warning("cannot write ", path_.string(), ": ", std::strerror(error),
                     "; training continues, and rows are written once that is possible again");
}

/// The system's error, when some of it still waits.
int RowFile::write_waiting() {
    while (!waiting_.empty()) {
        const ssize_t written = ::write(file_.get(), waiting_.data(), waiting_.size());
        if (written < 0 && errno != EINTR) return errno;
        waiting_.erase(0, static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
    return 0;
}

}  // namespace unsloth::train
