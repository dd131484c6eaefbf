// The folder of a sweep: its record, its trials' folders, and what is removed of those that lost.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "unsloth/core/folder_lock.h"
#include "unsloth/report/sweep.h"

namespace unsloth::app {

class SweepFolder {
  public:
    explicit SweepFolder(std::filesystem::path root) : root_(std::move(root)) {}

    /// The record to resume with: `planned`, or what an earlier command left of the same sweep. Makes the folder, and
    /// holds that of its trials for this process from here on. usage Error where another process has it, and where the
    /// folder holds another sweep or a run; with `overwrite` those are removed instead.
    report::Sweep open(report::Sweep planned, bool overwrite);
    void save(const report::Sweep& sweep) const;

    const std::filesystem::path& root() const { return root_; }
    /// Made if it is missing.
    std::filesystem::path trial(int number) const;
    std::filesystem::path log(int number) const;
    /// Removes checkpoints and weights of a trial; its metrics stay.
    void drop(int number) const;
    /// Moves what the trial's folder holds into root(), whose run it is from then on. Repeatable.
    void promote(int number) const;

  private:
    std::filesystem::path root_;
    std::optional<FolderLock> lock_;
};

/// The value of `metric` in the last evaluation that the folder's metrics file has; NaN: none, or not finite.
double last_evaluation(const std::filesystem::path& metrics, const std::string& metric);

}  // namespace unsloth::app
