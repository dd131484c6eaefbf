#include "unsloth/formats/decision_calibration.h"

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

constexpr int64_t calibration_version = 1;

}  // namespace

std::string write_decision_calibration(const DecisionCalibration& calibration) {
    const OrderedJson json = {{"version", calibration_version},
                              {"temperature", calibration.temperature},
                              {"rows", calibration.rows},
                              {"nll", {{"before", calibration.nll_before}, {"after", calibration.nll_after}}},
                              {"ece", {{"before", calibration.ece_before}, {"after", calibration.ece_after}}}};
    return json.dump(2) + "\n";
}

std::optional<DecisionCalibration> read_decision_calibration(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / decision_calibration_file;
    if (!std::filesystem::exists(file)) return std::nullopt;
    const auto json = parse_json<OrderedJson>(read_file(file), file.string());
    const JsonReader reader(json, file.string());
    if (reader.at("version").integer() != calibration_version) reader.at("version").refuse("1");
    reader.only_keys({"version", "temperature", "rows", "nll", "ece"});
    DecisionCalibration calibration;
    calibration.temperature = reader.at("temperature").number();
    reader.at("temperature").require(calibration.temperature > 0, "a number above 0");
    calibration.rows = reader.at("rows").integer();
    const auto read = [&](const char* name, double& before, double& after) {
        const JsonReader found = reader.at(name);
        found.only_keys({"before", "after"});
        before = found.at("before").number(), after = found.at("after").number();
    };
    read("nll", calibration.nll_before, calibration.nll_after);
    read("ece", calibration.ece_before, calibration.ece_after);
    return calibration;
}

}  // namespace unsloth::formats
