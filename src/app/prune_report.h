// What `prune` found: a table for the log, and prune_report.json in the folder that it makes.
#pragma once

#include <string>
#include <vector>

#include "app/command_line/command_line.h"
#include "unsloth/engine_api/engine.h"
#include "unsloth/formats/pruning.h"

namespace unsloth::app {

inline constexpr const char* prune_report_file = "prune_report.json";

struct PruneReport {
    engine_api::Calibration before;
    std::vector<std::vector<double>> importance;  ///< by layer of the base and neuron; empty: not asked for
    formats::Pruning pruning;
    double loss_after = 0;
};

/// Lines of several columns, one a layer of the base.
std::string prune_table(const PruneRequest& request, const spec::ModelSpec& base, const PruneReport& report);
/// `model`: as the user named it.
std::string prune_json(const PruneRequest& request, const std::string& model, const spec::ModelSpec& base,
                       const PruneReport& report);

}  // namespace unsloth::app
