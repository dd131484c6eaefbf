#include "config/options/sections.h"

#include "unsloth/config/option_table.h"

namespace unsloth::config {

void declare_hardware(OptionSet& options, HardwareOptions& hardware) {
    options.section("hardware", "Hardware", "Where the run takes place.", OnResume::mutable_);
    options.add("device", hardware.device, "auto (CUDA if there is one), cpu, cuda, or cuda:N.").value("DEVICE");
    options
        .add_choice("dequantized_weights", hardware.weight_cache,
                    {{"auto", WeightCache::automatic}, {"on", WeightCache::on}, {"off", WeightCache::off}},
                    "Dequantize 4-bit weights to the compute type once, on a GPU, instead of a layer at a time in "
                    "every step. Results are the same, at 2 bytes per weight instead of 0.5. auto: when there is room.")
        .formerly("hardware", "weight_cache")
        .synonym(true, "on")
        .synonym(false, "off");
    options
        .add("weight_mantissa_bits", hardware.weight_mantissa_bits,
             "Experimental. Mantissa bits, of 7, of dequantized bfloat16 weights in training; 0: all. Fewer bits take "
             "less energy, so a power-limited GPU multiplies faster. The model then differs from the checkpoint: "
             "docs/how-to/8-bit-training.md states the cost.")
        .at_least(0)
        .at_most(6)
        .only_with("hardware.dequantized_weights", {"on"})
        .only_with("model.dtype", {"bfloat16"})
        .only_with("model.compute_dtype", {"auto", "fp8_backward"})
        .not_with("lora.finetuning_type", {"full"})
        .because("it is for a frozen base")
        .on_resume(OnResume::logged);
    options.add("offload_embedding", hardware.offload_embedding,
                "Leave the input embeddings in pinned host memory; a GPU reads the rows that it needs.");
    options
        .add("kernels", hardware.kernels,
             "auto: for each matmul the kernel that measured fastest on this GPU. library: cuBLASLt's own choice, as "
             "on GPUs that were not measured; use it to compare wrong-looking results. Or a file that `unsloth-train "
             "tune` wrote on this GPU.")
        .path("auto|library|FILE")
        .on_resume(OnResume::logged);
    options
        .add_object(
            "allocator", hardware.allocator,
            "How LibTorch's allocator takes a GPU's memory, instead of what PYTORCH_CUDA_ALLOC_CONF says: throughput, "
            "low_memory or long_context, or {\"backend\": \"native\", \"max_split_size_mb\": 512, "
            "\"expandable_segments\": true, \"roundup_power2_divisions\": 4, \"garbage_collection_threshold\": 0.8}, "
            "each optional.")
        .one_of({"throughput", "low_memory", "long_context"})
        .synonym(nullptr, Json::object());
    options.add("cuda_graphs", hardware.cuda_graphs,
                "Use CUDA graphs: capture the work of a micro-batch and replay it for micro-batches of the same shape. "
                "Small micro-batches then do not wait for the host.");
}

void declare_distributed(OptionSet& options, DistributedOptions& distributed) {
    options.section(
        "distributed", "Distributed",
        "Several processes, a GPU each, that train one model (unsloth-train launch, torchrun, srun, mpirun).",
        OnResume::mutable_);
    options
        .add("tp_size", distributed.tp_size,
             "Tensor parallel size: ranks that share each layer's matmuls. The remaining factor of the processes is "
             "data parallelism.")
        .at_least(1)
        .at_most(1e6)
        .not_with("training.objective", {"grpo"})
        .because("completions are sampled by whole models");
    options.add("pp_size", distributed.pp_size, "Stages that the layers are cut into (pipeline parallel).")
        .at_least(1)
        .at_most(1e6)
        .not_with("training.objective", {"grpo"})
        .because("completions are sampled by whole models");
    options.add("cp_size", distributed.cp_size, "Ranks that share a row's tokens (context parallel).")
        .at_least(1)
        .at_most(1e6)
        .only_with("training.objective", {"sft"})
        .error("parallel.unsupported")
        .because("its ranks hold parts of the rows")
        .or_else("Train sft, or use tp_size, pp_size or zero_stage.")
        .not_with("model.dtype", {"float16"})
        .error("parallel.unsupported")
        .because("sums over ranks are in bf16 or fp32");
    options
        .add("zero_stage", distributed.zero_stage,
             "ZeRO stage: what data-parallel ranks shard instead of replicating. 1: optimizer states. 2: also "
             "gradients. 3: also trained parameters and the frozen base. 0: nothing.")
        .at_least(0)
        .at_most(3)
        .not_with("training.objective", {"grpo"})
        .when({3})
        .because("completions are sampled by whole models");
    options
        .add_choice("offload_optimizer", distributed.offload_optimizer,
                    {{"none", OptimizerPlace::device}, {"cpu", OptimizerPlace::cpu}},
                    "cpu: optimizer moments and fp32 parameters are kept and updated in host memory.")
        .synonym(nullptr, "none")
        .synonym(false, "none");
    options
        .add_choice(
            "pipeline_schedule", distributed.pipeline_schedule,
            {{"1f1b", PipelineSchedule::one_forward_one_backward}, {"interleaved", PipelineSchedule::interleaved}},
            "Order in which the pipeline stages of pp_size process micro-batches.")
        .only_with("distributed.pp_size");
    options
        .add("pipeline_micro_batches", distributed.pipeline_micro_batches,
             "Micro-batches in flight in the pipeline stages of pp_size; 0: as many as stages.")
        .at_least(0)
        .at_most(1e6)
        .only_with("distributed.pp_size");
    options
        .add("ddp_timeout", distributed.ddp_timeout,
             "Seconds that ranks wait for each other before they stop with an error.")
        .at_least(1)
        .at_most(1e9)
        .alias("training", "ddp_timeout");
    options
        .add("ddp_bucket_cap_mb", distributed.ddp_bucket_cap_mb,
             "Gradient bucket size in MiB; buckets are reduced during the backward pass. 0: one reduction after it. "
             "-1: 0 within one machine, 25 between several.")
        .at_least(-1)
        .at_most(1e6)
        .alias("training", "ddp_bucket_cap_mb")
        .synonym(nullptr, -1);
    options.add("nccl", distributed.nccl,
                "Settings of NCCL as its environment variables name them, with or without NCCL_: {\"SOCKET_IFNAME\": "
                "\"eth0\", \"DEBUG\": \"WARN\"}. They win "
                "over the environment.");
}

void declare_logging(OptionSet& options, LoggingOptions& logging) {
    options.section("logging", "Logging", "Log output and metrics files.", OnResume::mutable_);
    options.add("level", logging.level, "Least level that is printed; debug also shows the details of internal errors.")
        .one_of(log_levels())
        .value("LEVEL")
        .alias("logging", "log_level")
        .shorthand("logging", "quiet", "warning")
        .suggested_for({"verbosity", "verbose"});
    options
        .add("metrics_file", logging.metrics_file, "JSON Lines file of metrics, relative to output_dir; empty: none.")
        .path("FILE");
    options.add_choice(
        "progress", logging.progress, {{"auto", ProgressStyle::automatic}, {"json", ProgressStyle::json}},
        "How far a run is. auto: a bar on a terminal, log lines elsewhere; json: an object a logged step, "
        "evaluation and ending on standard output, for programs.");
    options
        .add("tensorboard_dir", logging.tensorboard_dir, "Folder of TensorBoard event files, relative to output_dir.")
        .path("DIR")
        .alias("training", "logging_dir");
    options.add("layer_norms", logging.layer_norms,
                "Log per-layer gradient norms before clipping (grad_norm/layers.0, …).");
    options
        .add("metrics_port", logging.metrics_port,
             "Port of http://metrics_address:PORT/metrics for Prometheus, on rank 0; 0: none, or 9400 where "
             "training.report_to has prometheus.")
        .at_least(0)
        .at_most(65535);
    options
        .add("metrics_address", logging.metrics_address,
             "Where the endpoint listens; 0.0.0.0: for everybody who reaches this machine.")
        .value("ADDRESS");
    options
        .add(
            "profile", logging.profile,
            "Time the third step's operators: a table in the log, a Chrome trace (Perfetto) in this file; empty: none.")
        .path("FILE");
}

}  // namespace unsloth::config
