// What the program asks of the engine, the library that holds LibTorch. The executable opens it only for the commands
// below, so that --help, config, inspect and tokenize start at once.
//
// Every call runs one command to its end, writes results to the files it names or to stdout, logs through core/log.h
// and throws Error (or Interrupted, after saving) on failure. All values were validated by unsloth/config/load.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/sampling.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::engine_api {

struct ScoreRequest {
    std::string out;     ///< JSON Lines, one object a row of data.train_file; never empty
    std::string logits;  ///< safetensors file of logits.{i} [T, V] fp32; empty: none
    int64_t top_k = 0;   ///< `out` is a teacher's file: this many tokens for each target's position; 0: JSON Lines
};

/// Folders by the names that they were given, in their order; as typed they are texts NAME=FOLDER.
struct NamedFolders {
    std::vector<std::string> typed;
    std::vector<std::pair<std::string, std::string>> folders;
};

/// How keys and values of answers in flight are stored: in model.dtype, or as e4m3 values (ops/kv_cache.h).
enum class KvCacheDtype { automatic, fp8 };

/// Either `prompt` or `file` is given; with `chat` a `prompt` may be.
struct GenerateRequest {
    std::string prompt;               ///< a user's message where the model or data.template has a chat template
    std::vector<std::string> images;  ///< files of the prompt's images: before its text, or where it says <image>
    bool raw = false;                 ///< `prompt` goes to the model as it is
    std::string rows;  ///< format of the rows of the run that answers, as data.format has it; empty: not known
    std::string file;  ///< JSON Lines of {"text"}, {"prompt"} or {"messages"}, each with its "adapter"?; or plain text
    NamedFolders adapters;  ///< that rows of `file` may name; the others are the base's
    int64_t max_new_tokens = 128;
    bool json = false;  ///< one object {"prompt_ids", "ids", "text"} an answer on stdout instead of the text
    spec::Sampling sampling;
    std::vector<std::pair<std::string, double>> logit_bias;  ///< as typed; its ids and numbers are in `sampling`
    int64_t seed = 0;               ///< answer k of prompt i draws its numbers by (seed, i, k, place in the answer)
    int64_t n = 1;                  ///< answers a prompt
    std::vector<std::string> stop;  ///< texts that end an answer, which they are no part of
    bool stream = false;            ///< the text as it comes; with `prompt` and one answer
    bool chat = false;              ///< lines of stdin are a user's messages, turn by turn
    bool logprobs = false;          ///< with json: "logprobs", of each id given those before
    KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
    std::string kv_memory;    ///< as typed
    int64_t kv_bytes = 0;     ///< of the cache of keys and values; 0: what the rows at once can take
    int64_t max_context = 0;  ///< longest prompt and answer together; 0: as the prompts ask, or the model allows
    int64_t max_rows = 256;   ///< answers that are decoded at a time
    int64_t max_batch_tokens = 8192;  ///< of a pass: a long prompt is prefilled in chunks, together with decode rows
};

/// How a service is reached. What it answers with is a GenerateRequest's: adapters, limits and the cache.
struct ServeRequest {
    std::string host = "127.0.0.1";
    int64_t port = 8000;            ///< 0: any free one
    int64_t grpc_port = 0;          ///< another one, for gRPC; 0: none
    std::string served_model_name;  ///< the base's id; empty: model.path
    std::string api_key_file;       ///< a key a line; empty: anybody may ask
    std::string tls_cert, tls_key;  ///< PEM files; empty: no TLS
    std::string adapter_root;       ///< clients load adapters from below it; empty: they load none
    std::string watch;              ///< a run's folder, whose newest checkpoint answers; empty: none
    int64_t max_loras = 0;          ///< adapters at a time; 0: as many as are named, and two if others can come
    int64_t max_lora_rank = 0;      ///< of adapters that are loaded later; 0: of those named, 16 at least
    int64_t max_queue = 1024;       ///< sequences that wait for a row; requests beyond are refused
    double drain_delay = 0;         ///< seconds from SIGTERM on in which requests are still taken
    double shutdown_timeout = 30;   ///< seconds that running answers have then
    bool accept_unknown_fields = false;
};

struct EvaluateRequest {
    config::AnswerMetric metric = config::AnswerMetric::none;
    std::string answer_regex;  ///< checked; empty: none. exact_match compares what its first group, or it, matches
    int64_t max_new_tokens = 256;
    std::string answers;  ///< JSON Lines file of {"set", "prompt", "expected", "answer", "correct"}; empty: none
    /// Measures what this type costs (commands/precision_sensitivity.h) instead; automatic: no. Without a metric.
    spec::WeightType sensitivity = spec::WeightType::automatic;
    bool json = false;
};

struct ReplayRequest {
    std::string file;    ///< RUN/anomalies/step-N.json; never empty
    std::string device;  ///< hardware.device; empty: the run's
    bool json = false;
};

enum class BenchSubject { step, ops, gemm, nf4, scaling, comm, generate, grpo };

struct BenchRequest {
    BenchSubject what = BenchSubject::step;
    int64_t batch = 0;         ///< rows; 0: as the configuration trains; of generate: 1, 64 and 256
    int64_t seq = 0;           ///< tokens a row; likewise; of generate: of a prompt, 256
    int64_t new_tokens = 512;  ///< of generate: of an answer
    NamedFolders adapters;     ///< of generate: rows have them in turn
    KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;  ///< of generate
    int64_t min_seq = 0;                                    ///< shortest row when they differ; 0: all have `seq` tokens
    int64_t images = 0;                                     ///< of step: the number at the beginning of each row
    int64_t image_size = 672;                               ///< pixels of their sides
    bool keep_features = false;                             ///< of step: what the tower makes of them is kept
    int64_t accumulate = 1;                                 ///< micro-batches of `batch` rows in a step
    int64_t steps = 20;                                     ///< measured, after warmup_of() unmeasured ones
    int64_t warmup = -1;
    bool tune = false;  ///< of gemm: time the library's algorithms and print choices for the tables
    bool json = false;
    bool prints = true;  ///< what was measured, to stdout
    bool check = false;  ///< instead of `what`: the rows of `floors` in turn, each compared with its floor
    std::string floors = "configs/floors/llama-8b.json";
    std::vector<std::string> rows;  ///< of `floors`, by name; empty: all

    /// Five unless said otherwise, or as many as end within a minute where a step is known to take `step_ms`.
    int64_t warmup_of(double step_ms = 0) const {
        constexpr int64_t usual = 5;
        constexpr double minute_ms = 60'000;
        if (warmup >= 0) return warmup;
        return step_ms * usual > minute_ms ? static_cast<int64_t>(minute_ms / step_ms) : usual;
    }
};

/// A rate and its ceiling, which was measured in the same run.
struct BenchFigure {
    std::string name;  ///< of one of several: "attention forward", "64 rows"; empty: the bench has one
    double rate = 0;
    std::string unit;  ///< "tokens/s"
    double share = 0;  ///< of the ceiling
};

struct BenchResult {
    std::string card;                  ///< as the driver names it: "NVIDIA H200"; "CPU"
    std::string pci;                   ///< of a GPU: "0000:17:00.0"
    std::vector<std::string> untuned;  ///< of step on a GPU: products that its table of kernels has no choice for
    std::vector<BenchFigure> figures;  ///< of step, generate and ops; the others have no ceilings
};

struct TuneRequest {
    std::string out;        ///< file to write; empty: standard output
    int64_t batch = 0;      ///< rows of a step; 0: training.per_device_train_batch_size
    int64_t seq = 0;        ///< tokens of a row; 0: model.max_seq_length
    int64_t steps = 3;      ///< that a trial is timed over, three times
    double seconds = 1800;  ///< after which no further product is begun
};

/// Two models on the same rows: base with adapter, and what they were merged into. Both compute in fp32.
struct CompareRequest {
    std::string base, adapter;  ///< folders
    bool base_in_4bit = false;  ///< 16/32-bit linears of the base are quantised to NF4 while loading
    std::vector<std::pair<std::string, std::string>> base_precision;  ///< model.precision of the base
    bool ignore_serve_grid = false;                                   ///< of the adapter
    std::string merged;                                               ///< folder, with the tokenizer if there is one
    std::string texts;  ///< a file as data.train_file, or a text; empty: a text and token rows of the program's own
    std::string device = "cpu";
};

struct LogitComparison {
    int64_t rows = 0, tokens = 0;
    double relative =
        0;  ///< root of (mean squared difference / mean variance of a token's logits with base and adapter)
    double max_abs = 0, mean_abs = 0;
    double mean_kl = 0;  ///< KL(base with adapter || merged), nats a token
    double top1 = 0;     ///< share of the tokens whose most likely next token is the same
};

/// What `prune` measures of a model on the rows of a file, of which every token counts, whatever its label.
struct CalibrationRequest {
    std::string file;         ///< as data.train_file
    bool influence = false;   ///< of layers
    bool neurons = false;     ///< of MLPs
    bool inputs = false;      ///< of linears
    int64_t scan_layers = 0;  ///< layers to remove, one after another, each the one with the lowest loss without it
    int64_t experts = 0;      ///< of each layer that remain, which are chosen by REAP; 0: they are not measured
};

/// The four inputs that the linears of a layer have: of q, k and v; of o; of gate and up; of down.
enum class LinearInput : uint8_t { qkv, o, gate_up, down };
inline constexpr std::size_t linear_inputs = 4;

struct Calibration {
    /// A layer that a scan removed, and the loss without it and those before; of all candidates {layer, loss}.
    struct Removal {
        int64_t layer = 0;
        double loss = 0;
        std::vector<std::pair<int64_t, double>> candidates;
    };
    /// The experts of a layer, by number; empty: it has none.
    struct Experts {
        /// Mean over its tokens of the router's weight times the L2 norm of the expert's output; 0 without a token.
        std::vector<double> saliency;
        std::vector<int64_t> tokens;  ///< how many chose it, in layers whose predecessors have the kept experts alone
        std::vector<int64_t> kept;    ///< ascending
    };
    int64_t rows = 0, tokens = 0;
    double loss = 0;  ///< mean of -log p over all tokens but the first of each row
    /// By layer: 1 - the mean over tokens of the cosine between the layer's input and output.
    std::vector<double> influence;
    /// By layer and neuron: L2 norm over rows of the mean over a row's tokens of the activation's magnitude.
    std::vector<std::vector<double>> neurons;
    /// By layer and input: L2 norm over tokens of each column.
    std::vector<std::array<std::vector<float>, linear_inputs>> inputs;
    std::vector<Removal> scan;
    std::vector<Experts> experts;  ///< by layer; empty: not asked for
    double read_seconds = 0;       ///< of rows and model
    double pass_seconds = 0;
    int64_t passed_tokens = 0;  ///< of all passes through the layers
    /// Of the device, of what the plan held; on the CPU of the process, of what it held at most.
    int64_t planned_bytes = 0, taken_bytes = 0;
};

/// What a run would take on a GPU that need not be here.
struct PlanRequest {
    std::string gpu;         ///< name of a card or a .json file; empty: this machine's GPU, or one of `gpu_memory`
    std::string gpu_memory;  ///< size of its memory ("24GiB"); empty: the card's own
    int64_t gpu_memory_bytes = 0;  ///< what gpu_memory says
    int64_t gpus = 1;              ///< of a machine, each with a process
    int64_t images = 0;            ///< that each row begins with
    int64_t image_size = 672;      ///< pixels of their sides
    std::string svg;               ///< file for a picture of a step's memory over time; empty: none
    bool json = false;
};

/// What a plan comes to, for who chooses a configuration.
struct PlanEstimate {
    std::string device;            ///< name of the card, or "CPU"
    bool fits = false;             ///< with the least memory that the choices left open allow
    int64_t budget_bytes = 0;      ///< of the device, that may be planned for
    int64_t total_bytes = 0;       ///< of the device, planned
    int64_t host_bytes = 0;        ///< of the host, with a GPU
    int64_t rows = 0;              ///< of a micro-batch, as given or as chosen
    int64_t micro_batches = 0;     ///< of a step
    double tokens_per_second = 0;  ///< with full rows; 0: not known, as on a CPU
    std::string keeps;             ///< the choice of gradient checkpointing, in its names
    std::string base;              ///< how the frozen weights are held: "nf4"
    std::string elsewhere;         ///< layers whose weights are not on the device; empty: all are there
};

/// What `doctor` finds out about a device by using it.
struct DeviceReport {
    std::string name;
    std::string problem;  ///< why nothing else is known; empty: nothing is wrong
    int64_t rounds = 0;   ///< of all operators on new inputs
    std::vector<std::pair<std::string, double>>
        operators;               ///< {name, worst difference from the oracle as a multiple of what rounding explains}
    int64_t pinned_bytes = 0;    ///< pinned memory that was granted, as much as was asked for
    std::string pinned_problem;  ///< or why it was not
    double to_device = 0, to_host = 0;  ///< GB/s between it and the device
    std::vector<bool> peers;            ///< of a GPU: whether it reaches each GPU's memory
};

class __attribute__((visibility("default"))) Engine {
  public:
    virtual ~Engine();
    virtual void train(const config::LoadedConfig& loaded) = 0;
    virtual void score(const config::LoadedConfig& loaded, const ScoreRequest& request) = 0;
    virtual void generate(const config::LoadedConfig& loaded, const GenerateRequest& request) = 0;
    /// Answers clients until a signal ends it.
    virtual void serve(const config::LoadedConfig& loaded, const GenerateRequest& answers,
                       const ServeRequest& request) = 0;
    virtual void evaluate(const config::LoadedConfig& loaded, const EvaluateRequest& request) = 0;
    virtual void replay(const ReplayRequest& request) = 0;
    virtual LogitComparison compare_logits(const CompareRequest& request) = 0;
    virtual Calibration calibrate(const config::LoadedConfig& loaded, const CalibrationRequest& request) = 0;
    /// `request.check` is the caller's, who asks for row after row.
    virtual BenchResult bench(const config::LoadedConfig& loaded, const BenchRequest& request) = 0;
    /// Writes a table of kernels for this card and the products of such a run.
    virtual void tune(const config::LoadedConfig& loaded, const TuneRequest& request) = 0;
    /// Prints the plan. False where nothing fits.
    virtual bool plan(const config::LoadedConfig& loaded, const PlanRequest& request) = 0;
    /// The same without a word, of one mesh; `request.svg` and `request.json` mean nothing.
    virtual PlanEstimate estimate(const config::LoadedConfig& loaded, const PlanRequest& request) = 0;
    /// Of each GPU, or of the CPU where there is none: takes about `seconds` each.
    virtual std::vector<DeviceReport> examine_devices(double seconds) = 0;
};

}  // namespace unsloth::engine_api

/// The engine library's one entry. The caller owns the result.
extern "C" unsloth::engine_api::Engine* unsloth_create_engine();
