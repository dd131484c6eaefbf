// What bench, tune and plan take.
#include "app/commands/declarations.h"

namespace unsloth::app {

namespace {

void declare_images(OptionSet& options, int64_t& count, int64_t& size, const std::string& begin) {
    options.add("images", count, begin + "for models that see some.").at_least(0).at_most(1e6);
    options.add("image_size", size, "Pixels of the images' sides.").at_least(1).at_most(1e5);
}

}  // namespace

void declare_bench(OptionSet& options, CommandLine& line) {
    BenchRequest& bench = line.bench;
    options
        .add_choice(
            "what", bench.what,
            {{"step", BenchSubject::step},
             {"ops", BenchSubject::ops},
             {"gemm", BenchSubject::gemm},
             {"nf4", BenchSubject::nf4},
             {"scaling", BenchSubject::scaling},
             {"comm", BenchSubject::comm},
             {"generate", BenchSubject::generate},
             {"grpo", BenchSubject::grpo}},
            "step: whole training steps of model.path; ops: each operator against the device's ceiling; gemm: "
            "the matrix "
            "products, by the library's choice of algorithm and by ours; nf4: products by 4-bit weights, from "
            "tiles and by dequantising; scaling: "
            "steps of several processes, started by a launcher, each alone and then together; comm: their sums "
            "alone, which needs no model; generate: answers of model.path, against the memory's rate; grpo: the "
            "configuration's run of reinforcement learning, part by part.")
        .value("step|ops|gemm|nf4|scaling|comm|generate|grpo")
        .argument()
        .default_value = nullptr;  // --check may stand in its place, and nothing else
    options.add("check", bench.check,
                "Run the rows of --floors instead, and print how much of its ceiling each reaches. Exit code 4 means "
                "that one is below its regression threshold for this GPU.");
    options.add("floors", bench.floors, "With --check: the file of rows and their regression thresholds.")
        .path("FILE")
        .only_with("check");
    options.add("rows", bench.rows, "With --check: the rows to run; empty: all.").value("NAME,…").only_with("check");
    options
        .add("batch", bench.batch,
             "Rows of a step; 0: training.per_device_train_batch_size; of generate: answers at a time; 0: 1, 64 and "
             "256.")
        .at_least(0);
    options.add("seq", bench.seq, "Tokens of a row; 0: model.max_seq_length; of generate: of a prompt; 0: 256.")
        .at_least(0);
    options.add("new_tokens", bench.new_tokens, "With generate: tokens per completion.").at_least(2).at_most(1e9);
    declare_adapters(options, bench.adapters, "With generate: adapters, assigned to the rows in turn.");
    declare_kv_cache_dtype(options, bench.kv_cache_dtype, "With generate. ");
    options
        .add("min_seq", bench.min_seq,
             "Rows of unequal length, from this to seq (the same ones in each run); 0: all of seq.")
        .at_least(0);
    declare_images(options, bench.images, bench.image_size, "With step: images that each row begins with, ");
    options.add("keep_features", bench.keep_features,
                "With images: their features are in host memory, as from a run's second epoch on "
                "(training.image_features), and the tower does not run.");
    options.add("accumulate", bench.accumulate, "With step: micro-batches per step.").at_least(1).at_most(1e6);
    options.add("steps", bench.steps, "Steps to measure.").at_least(1).at_most(1e9);
    options
        .add("warmup", bench.warmup,
             "Steps before measuring; -1: five, or as many as are predicted to end within a minute.")
        .at_least(-1);
    options.add("tune", bench.tune,
                "With gemm: time the library's algorithms and print choices in the format of cards/.");
    options.add("json", bench.json, "Print the results as JSON.");
}

void declare_tune(OptionSet& options, CommandLine& line) {
    TuneRequest& tune = line.tune;
    options.add("out", tune.out, "File to write, for hardware.kernels; empty: standard output.").output("FILE");
    declare_force(options, line);
    options.add("batch", tune.batch, "Rows of a step; 0: training.per_device_train_batch_size.").at_least(0);
    options.add("seq", tune.seq, "Tokens of a row; 0: model.max_seq_length.").at_least(0);
    options.add("steps", tune.steps, "Steps that a trial is timed over, three times.").at_least(1).at_most(1e9);
    options
        .add("seconds", tune.seconds,
             "After which no further product is begun; those that are left keep the kernels they have.")
        .above(0);
}

void declare_plan(OptionSet& options, CommandLine& line) {
    PlanRequest& plan = line.plan;
    options
        .add("gpu", plan.gpu,
             "Card to plan for: H200, H100, A100, L40S, RTX 4090, RTX 3090, RTX 5090, B200, or a JSON file of rates as "
             "in cards/. Empty: the card whose memory is nearest to gpu_memory, or else this machine's GPU, or its CPU "
             "where hardware.device is cpu.")
        .path("NAME|FILE")
        .suggested_for({"card"});
    options.add("gpu_memory", plan.gpu_memory, "Memory of the card, such as 24GiB; empty: what such a card has.")
        .value("SIZE")
        .suggested_for({"vram", "memory"});
    options
        .add("gpus", plan.gpus,
             "GPUs of the machine, each with a process; on the CPU, processes. Where neither tp_size, pp_size, "
             "cp_size, zero_stage nor offload_optimizer is given, "
             "the fastest mesh that fits is proposed, with the options that make it.")
        .at_least(1)
        .suggested_for({"num_gpus", "nproc_per_node"});
    declare_images(options, plan.images, plan.image_size, "Images that each row has, ");
    options.add("svg", plan.svg, "SVG file to write: memory of a step over time.").output("FILE");
    declare_force(options, line);
    options.add("json", plan.json, "Print the plan as one JSON object.");
}

}  // namespace unsloth::app
