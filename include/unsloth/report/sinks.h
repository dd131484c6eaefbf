// Where the rows of a run's metrics go besides its metrics file, as training.report_to names it.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::report {

class RowSink {
  public:
    virtual ~RowSink() = default;
    /// A row of the metrics file, which holds it already. Throws nothing: what cannot be written is a warning, once.
    virtual void row(const nlohmann::ordered_json& row) = 0;
};

/// Those that the configuration asks for, of a run whose folder is `folder` and whose GPU has the PCI address `gpu`
/// ("0000:17:00.0"; empty: none). Runtime Error when one cannot begin.
std::vector<std::unique_ptr<RowSink>> make_sinks(const config::Config& config, const std::filesystem::path& folder,
                                                 const std::string& gpu);

/// Throws what make_sinks() would throw, and adds nothing to the folder.
void require_sinks(const config::Config& config, const std::filesystem::path& folder, const std::string& gpu);

}  // namespace unsloth::report
