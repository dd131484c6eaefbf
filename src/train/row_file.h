// A file of a run's folder to which rows are added during the run: one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "unsloth/core/open_file.h"

namespace unsloth::train {

class RowFile {
  public:
    /// The file `name` of an output folder; a name may have folders, which are made. Of a file that is there, the rows
    /// up to step `after_step` stay: those of a run that is resumed there. Runtime Error when it cannot be made.
    RowFile(const std::filesystem::path& output_dir, const std::filesystem::path& name, int64_t after_step);
    /// Warns when rows still wait.
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    /// Written at once; while the system refuses that (a full disk), lines wait, with a warning.
    void add(const nlohmann::ordered_json& row);

  private:
    int write_waiting();

    std::filesystem::path path_;
    Descriptor file_;
    std::string waiting_;  ///< rows, of which the first may be written in part
    bool warned_ = false;
};

}  // namespace unsloth::train
