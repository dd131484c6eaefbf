// The ids of all errors that a user can meet. An id is stable: it is printed, documented and asserted by tests.
//
// What an id means and what to do about it are in src/core/error_texts.cpp; `unsloth-train explain ID` prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace unsloth {

/// The exit code of the process that ends with such an error.
enum class ErrorKind : int {
    usage = 2,    ///< command line or configuration
    input = 3,    ///< model, data or tokenizer files
    runtime = 4,  ///< while running: no memory, no space, a device's failure, a non-finite loss
};

struct KnownErrorId {
    std::string_view name;  ///< "area.kind"
    ErrorKind kind;
};

/// In the order of the documentation: by area.
inline constexpr KnownErrorId known_error_ids[] = {
    {"option.unknown", ErrorKind::usage},
    {"option.ambiguous", ErrorKind::usage},
    {"option.invalid-value", ErrorKind::usage},
    {"option.out-of-range", ErrorKind::usage},
    {"option.invalid-pattern", ErrorKind::usage},
    {"option.missing", ErrorKind::usage},
    {"option.unknown-key", ErrorKind::usage},
    {"option.conflict", ErrorKind::usage},
    {"option.no-effect", ErrorKind::usage},
    {"option.unsupported", ErrorKind::usage},
    {"option.no-evaluation", ErrorKind::usage},
    {"option.not-of-command", ErrorKind::usage},
    {"option.misplaced", ErrorKind::usage},
    {"option.nothing-to-do", ErrorKind::usage},
    {"command.unknown", ErrorKind::usage},
    {"command.one-process", ErrorKind::usage},
    {"config.cannot-read", ErrorKind::usage},
    {"config.syntax", ErrorKind::usage},
    {"config.not-an-object", ErrorKind::usage},
    {"config.other-program", ErrorKind::usage},
    {"config.several-errors", ErrorKind::usage},
    {"import.wrong-program", ErrorKind::usage},
    {"json.syntax", ErrorKind::input},
    {"json.wrong-value", ErrorKind::input},
    {"json.missing-key", ErrorKind::input},
    {"json.unknown-key", ErrorKind::input},
    {"json.too-large", ErrorKind::input},
    {"disk.cannot-read", ErrorKind::input},
    {"disk.not-a-file", ErrorKind::input},
    {"disk.file-too-large", ErrorKind::input},
    {"disk.git-lfs-pointer", ErrorKind::input},
    {"disk.cannot-write", ErrorKind::runtime},
    {"disk.failed", ErrorKind::runtime},
    {"disk.full", ErrorKind::runtime},
    {"disk.foreign-file", ErrorKind::runtime},
    {"disk.file-lost", ErrorKind::runtime},
    {"output.exists", ErrorKind::usage},
    {"output.in-use", ErrorKind::usage},
    {"output.same-file", ErrorKind::usage},
    {"data.all-masked", ErrorKind::input},
    {"data.answer-pattern", ErrorKind::input},
    {"data.bad-rollouts", ErrorKind::input},
    {"data.bad-source", ErrorKind::input},
    {"data.bad-thesaurus", ErrorKind::input},
    {"data.column-type", ErrorKind::input},
    {"data.damaged-file", ErrorKind::input},
    {"data.decision-shape", ErrorKind::input},
    {"data.empty", ErrorKind::input},
    {"data.empty-answer", ErrorKind::input},
    {"data.empty-row", ErrorKind::input},
    {"data.held-out-copies", ErrorKind::usage},
    {"data.message-shape", ErrorKind::input},
    {"data.missing-column", ErrorKind::input},
    {"data.mixed-formats", ErrorKind::input},
    {"data.no-files", ErrorKind::input},
    {"data.no-parquet-reader", ErrorKind::input},
    {"data.no-prompt", ErrorKind::input},
    {"data.no-usable-rows", ErrorKind::input},
    {"data.no-verdict", ErrorKind::input},
    {"data.not-augmentable", ErrorKind::input},
    {"data.not-rows", ErrorKind::input},
    {"data.not-utf8", ErrorKind::input},
    {"data.pair-mismatch", ErrorKind::input},
    {"data.prompt-shape", ErrorKind::input},
    {"data.row-exceeds-batch", ErrorKind::usage},
    {"data.row-ids", ErrorKind::input},
    {"data.row-syntax", ErrorKind::input},
    {"data.row-too-long", ErrorKind::input},
    {"data.too-few-rows", ErrorKind::usage},
    {"data.too-large", ErrorKind::input},
    {"data.token-columns", ErrorKind::input},
    {"data.tool-calls", ErrorKind::input},
    {"data.unknown-format", ErrorKind::input},
    {"data.unknown-role", ErrorKind::input},
    {"data.unsupported-file", ErrorKind::input},
    {"data.wrong-objective", ErrorKind::input},
    {"image.no-reader", ErrorKind::input},
    {"image.unknown-type", ErrorKind::input},
    {"image.damaged", ErrorKind::input},
    {"image.unsupported", ErrorKind::input},
    {"image.too-large", ErrorKind::input},
    {"image.processor", ErrorKind::input},
    {"image.count", ErrorKind::input},
    {"image.outside-root", ErrorKind::input},
    {"image.remote", ErrorKind::input},
    {"image.text-model", ErrorKind::input},
    {"tokenizer.not-found", ErrorKind::input},
    {"tokenizer.bad-file", ErrorKind::input},
    {"tokenizer.unsupported", ErrorKind::input},
    {"tokenizer.gave-up", ErrorKind::input},
    {"tokenizer.no-eos", ErrorKind::input},
    {"tokenizer.vocabulary-size", ErrorKind::input},
    {"template.unknown", ErrorKind::usage},
    {"template.failed", ErrorKind::input},
    {"template.missing-token", ErrorKind::input},
    {"template.omits-content", ErrorKind::input},
    {"template.unclear-turns", ErrorKind::input},
    {"model.not-found", ErrorKind::input},
    {"model.incomplete", ErrorKind::input},
    {"model.wrong-file-format", ErrorKind::input},
    {"model.unsupported", ErrorKind::input},
    {"model.bad-config", ErrorKind::input},
    {"model.already-quantized", ErrorKind::input},
    {"model.is-an-adapter", ErrorKind::usage},
    {"model.not-trainable", ErrorKind::usage},
    {"model.device-map", ErrorKind::usage},
    {"model.precision", ErrorKind::usage},
    {"model.too-many-positions", ErrorKind::usage},
    {"checkpoint.bad-index", ErrorKind::input},
    {"checkpoint.damaged-file", ErrorKind::input},
    {"checkpoint.missing-tensor", ErrorKind::input},
    {"checkpoint.wrong-tensors", ErrorKind::input},
    {"checkpoint.bad-quantization", ErrorKind::input},
    {"checkpoint.not-finite", ErrorKind::input},
    {"checkpoint.too-large-value", ErrorKind::input},
    {"checkpoint.other-version", ErrorKind::input},
    {"checkpoint.incomplete", ErrorKind::input},
    {"checkpoint.not-found", ErrorKind::usage},
    {"checkpoint.other-options", ErrorKind::usage},
    {"checkpoint.other-data", ErrorKind::usage},
    {"checkpoint.would-replace", ErrorKind::usage},
    {"adapter.not-a-folder", ErrorKind::input},
    {"adapter.bad-config", ErrorKind::input},
    {"adapter.unsupported", ErrorKind::input},
    {"adapter.vocabulary-size", ErrorKind::input},
    {"adapter.unknown-name", ErrorKind::input},
    {"adapter.not-together", ErrorKind::input},
    {"adapter.contradicts", ErrorKind::usage},
    {"adapter.no-such-target", ErrorKind::usage},
    {"teacher.bad-file", ErrorKind::input},
    {"teacher.other-settings", ErrorKind::input},
    {"teacher.vocabulary", ErrorKind::input},
    {"reward.bad-entry", ErrorKind::usage},
    {"reward.not-loaded", ErrorKind::usage},
    {"reward.missing-column", ErrorKind::usage},
    {"reward.failed", ErrorKind::runtime},
    {"reward.nothing-scored", ErrorKind::runtime},
    {"reward.bad-message", ErrorKind::runtime},
    {"reward.helpers-died", ErrorKind::runtime},
    {"rollout.sampler-differs", ErrorKind::runtime},
    {"export.unsupported", ErrorKind::input},
    {"export.tokenizer", ErrorKind::input},
    {"hub.bad-setting", ErrorKind::usage},
    {"hub.no-cache", ErrorKind::input},
    {"hub.not-found", ErrorKind::input},
    {"hub.not-downloaded", ErrorKind::input},
    {"hub.no-revision", ErrorKind::input},
    {"hub.gated", ErrorKind::input},
    {"hub.token-refused", ErrorKind::input},
    {"hub.request-failed", ErrorKind::input},
    {"hub.no-useful-files", ErrorKind::input},
    {"hub.altered-file", ErrorKind::input},
    {"memory.plan-too-large", ErrorKind::runtime},
    {"memory.host-plan-too-large", ErrorKind::runtime},
    {"memory.device-full", ErrorKind::runtime},
    {"memory.host-full", ErrorKind::runtime},
    {"memory.pinning-failed", ErrorKind::runtime},
    {"memory.not-shared", ErrorKind::runtime},
    {"memory.small-cache", ErrorKind::usage},
    {"memory.bad-limit", ErrorKind::usage},
    {"device.needs-gpu", ErrorKind::usage},
    {"device.too-few-gpus", ErrorKind::usage},
    {"device.shared-by-ranks", ErrorKind::usage},
    {"device.unsupported", ErrorKind::usage},
    {"device.unknown-card", ErrorKind::usage},
    {"device.failed", ErrorKind::runtime},
    {"device.no-cuda", ErrorKind::runtime},
    {"kernel.wrong-table", ErrorKind::usage},
    {"numerics.not-finite", ErrorKind::runtime},
    {"numerics.merge-differs", ErrorKind::runtime},
    {"parallel.unsupported", ErrorKind::usage},
    {"parallel.model-does-not-divide", ErrorKind::usage},
    {"parallel.wrong-rank-count", ErrorKind::usage},
    {"rank.environment", ErrorKind::usage},
    {"rank.secret", ErrorKind::usage},
    {"rank.needs-several", ErrorKind::usage},
    {"rank.started-differently", ErrorKind::usage},
    {"rank.no-rendezvous", ErrorKind::runtime},
    {"rank.failed", ErrorKind::runtime},
    {"rank.late", ErrorKind::runtime},
    {"rank.bad-message", ErrorKind::runtime},
    {"rank.values-differ", ErrorKind::runtime},
    {"rank.wrong-sum", ErrorKind::runtime},
    {"rank.nccl", ErrorKind::runtime},
    {"rank.peer-memory", ErrorKind::runtime},
    {"network.no-interface", ErrorKind::usage},
    {"network.port", ErrorKind::runtime},
    {"network.cannot-listen", ErrorKind::usage},
    {"network.bad-certificate", ErrorKind::input},
    {"network.bad-keys", ErrorKind::input},
    {"process.system-call", ErrorKind::runtime},
    {"process.cannot-start", ErrorKind::usage},
    {"library.cannot-load", ErrorKind::runtime},
    {"library.failed", ErrorKind::runtime},
    {"sweep.bad-axis", ErrorKind::usage},
    {"sweep.other-sweep", ErrorKind::usage},
    {"sweep.too-few-steps", ErrorKind::usage},
    {"sweep.trial-failed", ErrorKind::runtime},
    {"sweep.all-diverged", ErrorKind::runtime},
    {"run.no-result", ErrorKind::input},
    {"run.not-a-run", ErrorKind::input},
    {"run.no-metrics", ErrorKind::input},
    {"bench.not-comparable", ErrorKind::usage},
    {"bench.bad-floors", ErrorKind::input},
    {"bench.below-floor", ErrorKind::runtime},
};

/// One of them. It is made of a literal, which the compiler looks up: an unknown one does not compile.
class ErrorId {
  public:
    consteval ErrorId(const char* name) : index_(index_of(name)) {}

    /// The id of this name, given while the program runs.
    static std::optional<ErrorId> find(std::string_view name) {
        for (uint16_t i = 0; i < std::size(known_error_ids); ++i)
            if (known_error_ids[i].name == name) return ErrorId(i);
        return std::nullopt;
    }

    /// Its place in known_error_ids.
    constexpr std::size_t index() const noexcept { return index_; }
    constexpr std::string_view name() const noexcept { return known_error_ids[index_].name; }
    constexpr ErrorKind kind() const noexcept { return known_error_ids[index_].kind; }
    friend constexpr bool operator==(ErrorId, ErrorId) = default;

  private:
    constexpr explicit ErrorId(uint16_t index) : index_(index) {}
    static consteval uint16_t index_of(std::string_view name) {
        for (uint16_t i = 0; i < std::size(known_error_ids); ++i)
            if (known_error_ids[i].name == name) return i;
        throw "this id is not in known_error_ids";
    }

    uint16_t index_;
};

struct ErrorText {
    std::string_view meaning;  ///< one sentence
    std::string_view remedy;   ///< what to do
};

/// What the id means. The texts are Markdown without line ends.
const ErrorText& text_of(ErrorId id);

}  // namespace unsloth
