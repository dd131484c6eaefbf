// `unsloth-train doctor`: this machine as a report should show it, and what to mend.
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/build_facts.h"
#include "app/commands.h"
#include "app/doctor/anonymous.h"
#include "app/doctor/findings.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::app {
namespace {

struct DoctorCheck {
    const char* title;
    std::vector<Finding> (*run)(const config::Config& config);
};

// In the order in which they are printed: each group before the next is run, so that one that hangs or crashes is known
// by name. The groups that need the engine follow check_libraries, which checks whether there is an engine.
constexpr DoctorCheck checks[] = {
    {"system", check_system},     {"limits", check_limits},       {"environment", check_environment},
    {"GPUs", check_gpus},         {"libraries", check_libraries}, {"kernels", check_kernels},
    {"several GPUs", check_sums},
};

/// For programs.
const char* name_of(Verdict verdict) {
    return verdict == Verdict::ok ? "ok" : verdict == Verdict::warn ? "warn" : "broken";
}

const char* word(Verdict verdict) {
    switch (verdict) {
        case Verdict::ok:
            return "ok";
        case Verdict::warn:
            return "warn";
        case Verdict::broken:
            return "BROKEN";
    }
    return "";
}

std::string padded(std::string text, std::size_t width) {
    if (text.size() < width) text.append(width - text.size(), ' ');
    return text;
}

/// "  ok      memory              62.8 GiB": further lines of the value, and the advice, stand under it.
std::string render(const Finding& finding) {
    constexpr std::size_t verdict_width = 8, name_width = 20;
    const std::string indent(2 + verdict_width + name_width, ' ');
    std::string text = "  " + padded(word(finding.verdict), verdict_width) + padded(finding.name, name_width - 1) + " ";
    for (const char letter : finding.value) text += letter == '\n' ? "\n" + indent : std::string(1, letter);
    text += "\n";
    if (!finding.advice.empty()) text += indent + "-> " + finding.advice + "\n";
    return text;
}

/// The block of a bug report: a line a finding, further lines of its value joined, its verdict where it is not ok.
class PastedReport {
  public:
    PastedReport() {
        const BuildFacts build = build_facts();
        text_ = cat("```text\nunsloth-train ", version);
        for (const auto& [name, value] : {std::pair{"commit", build.commit},
                                          {"build", build.type},
                                          {"LibTorch", build.torch},
                                          {"CUDA", build.cuda},
                                          {"architectures", build.architectures}})
            if (*value != '\0') text_ += cat(", ", name, " ", value);
        text_ += "\n";
    }
    void begin(const char* title) { text_ += cat("[", title, "]\n"); }
    void add(const Finding& finding) {
        text_ += cat(finding.verdict == Verdict::ok ? "" : cat(word(finding.verdict), ": "), finding.name, ": ");
        for (const char letter : finding.value) text_ += letter == '\n' ? "; " : std::string(1, letter);
        text_ += "\n";
    }
    std::string text() const { return anonymous(text_, own_identity()) + "```\n"; }

  private:
    std::string text_;
};

std::vector<Finding> run_check(const DoctorCheck& check, const config::Config& config) {
    try {
        return check.run(config);
    } catch (const std::exception& failure) {
        return {{Verdict::broken, check.title, failure.what(), "The check itself failed; please report this."}};
    }
}

}  // namespace

bool run_doctor(const CommandLine& line) {
    const bool json = line.doctor.json, report = line.doctor.report, talks = !json && !report;
    PastedReport block;
    int warnings = 0, broken = 0;
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const DoctorCheck& check : checks) {
        if (talks) print(cat(check.title, "\n"));
        block.begin(check.title);
        for (const Finding& finding : run_check(check, line.loaded.config)) {
            warnings += finding.verdict == Verdict::warn;
            broken += finding.verdict == Verdict::broken;
            if (talks) print(render(finding));
            block.add(finding);
            all.push_back({{"check", check.title},
                           {"name", finding.name},
                           {"verdict", name_of(finding.verdict)},
                           {"value", finding.value},
                           {"advice", finding.advice}});
        }
    }
    if (report)
        print(block.text());
    else if (json)
        print(nlohmann::ordered_json{{"broken", broken}, {"warnings", warnings}, {"findings", all}}.dump(
                  2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
              "\n");
    else
        print(cat(broken, " broken, ", warnings,
                  " to look at\nFor a bug report, paste the output of: unsloth-train doctor --report\n"));
    return broken == 0;
}

}  // namespace unsloth::app
