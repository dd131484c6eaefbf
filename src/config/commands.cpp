#include "config/commands.h"

#include <algorithm>

#include "config/option_table.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

void declare_nothing(OptionSet&, CommandLine&) {}

void declare_launch(OptionSet& options, CommandLine& line) {
    LaunchRequest& launch = line.launch;
    options
        .add("nproc_per_node", launch.nproc_per_node,
             "Processes to start on this machine; auto: one for each GPU that CUDA_VISIBLE_DEVICES shows.")
        .value("N|auto")
        .suggested_for({"nproc", "num_processes", "num_gpus", "gpus", "np"});
    options.add("nnodes", launch.nnodes, "Machines that train together; launch runs on each of them.")
        .at_least(1)
        .suggested_for({"num_machines", "nodes"});
    options.add("node_rank", launch.node_rank, "Which of the machines this is, from 0.")
        .at_least(0)
        .suggested_for({"machine_rank"});
    options
        .add("master_addr", launch.master_addr, "Host of machine 0, where all ranks meet; with one machine this one.")
        .value("HOST")
        .suggested_for({"main_process_ip", "master_address"});
    options.add("master_port", launch.master_port, "Port there; 0: a free one with one machine, 29500 with several.")
        .at_least(0)
        .at_most(65535)
        .suggested_for({"main_process_port"});
    options
        .add("max_restarts", launch.max_restarts,
             "Start all ranks anew so many times after a failure (not after exit codes 2 and 3, which would come "
             "again). They "
             "continue where training.resume_from_checkpoint says. With one machine; torchrun restarts several.")
        .at_least(0);
    options
        .add("grace_period", launch.grace_period,
             "Seconds that the other ranks have to stop by themselves after the first failure; then SIGTERM, and "
             "SIGKILL 10 s later.")
        .at_least(0);
    options.add("silent", launch.silent,
                "Show the output of the machine's first rank alone, as it is; of a rank that failed its last lines on "
                "stderr too.");
    options.add("prefix", launch.prefix,
                "What stands before each line of a rank's output; {rank} and {local_rank} are replaced.");
    options.add("no_pin", launch.no_pin,
                "Leave the ranks' CPUs and memory to the kernel instead of keeping each on the NUMA node of its GPU.");
    options.add("program", launch.program, "Program to start instead of this one; what follows goes to it unchecked.")
        .path("PATH");
}

void declare_config(OptionSet& options, CommandLine& line) {
    options.add("schema", line.config.schema, "Print a JSON Schema of configuration files, for editors.");
    options.add("markdown", line.config.markdown, "Print the option reference, docs/options.md.");
    options.add("man", line.config.man, "Print the manual page, unsloth-train.1.");
    options.add("completion", line.config.completion, "Print a script that completes command lines in this shell.")
        .one_of({"", "bash", "zsh", "fish"})
        .value("bash|zsh|fish");
}

void declare_import(OptionSet& options, CommandLine& line) {
    ImportRequest& import = line.importing;
    options
        .add("path", import.path,
             "YAML or JSON file of axolotl or LLaMA-Factory, or of the arguments of a TRL or Unsloth script.")
        .path("FILE")
        .argument()
        .must_be_given();
    options.add_choice("from", import.from,
                       {{"auto", PeerProgram::automatic},
                        {"axolotl", PeerProgram::axolotl},
                        {"llamafactory", PeerProgram::llama_factory},
                        {"trl", PeerProgram::trl}},
                       "Whose configuration it is; trl: Unsloth's too. auto: by the names of its fields.");
    options.add("out", import.out, "File to write; empty: standard output.").path("FILE");
    options.add("strict", import.strict, "Exit code 2, and no file, where something cannot be carried over.");
}

void declare_data_command(OptionSet& options, CommandLine& line) {
    options
        .add("n", line.data.n,
             "Training rows to show; of the evaluation rows one, of those with all labels masked as many.")
        .at_least(0);
    options.add("json", line.data.json, "Print the findings as JSON.");
    options
        .add_choice("color", line.data.color,
                    {{"auto", ColorChoice::automatic}, {"always", ColorChoice::always}, {"never", ColorChoice::never}},
                    "Trained tokens by colour; never: between the brackets U+27E6 and U+27E7. auto: by colour on a "
                    "terminal, unless NO_COLOR is set.")
        .suggested_for({"colour"});
}

void declare_augment(OptionSet& options, CommandLine& line) {
    AugmentRequest& augment = line.augment;
    options.add("in", augment.in, "Rows to augment: a file, folder or glob; empty: data.train_file.")
        .path("FILE")
        .suggested_for({"input"});
    options.add("out", augment.out, "JSON Lines file to write: the rows, each followed by its copies.")
        .path("FILE")
        .must_be_given();
    options
        .add("eval_out", augment.eval_out,
             "JSON Lines file for the rows that data.val_size holds out, for data.eval_file. They get no copies.")
        .path("FILE");
    options
        .add("thesaurus", augment.thesaurus,
             "Synonyms for copies: a JSON object {\"word\": [\"synonym\", …]}, or JSON Lines of {\"word\", "
             "\"synonyms\"}.")
        .path("FILE");
    options.add("synonym_rate", augment.synonym_rate, "Share of the words with synonyms that become one.")
        .at_least(0)
        .at_most(1);
    options
        .add("swap_rate", augment.swap_rate,
             "Copies in which this share of the words changes places with another one of the line; 0: none.")
        .at_least(0)
        .at_most(1);
    options.add("delete_rate", augment.delete_rate, "Copies without this share of the words; 0: none.")
        .at_least(0)
        .at_most(1);
    options.add("copies", augment.copies, "Copies of a row by each of these three ways.").at_least(1).at_most(1000);
    options
        .add("back_translations", augment.back_translations,
             "Rows {id, …} whose texts make one more copy each of the row with that id: a file, folder or glob.")
        .path("FILE");
    options
        .add("id_column", augment.id_column,
             "Column that names a row; where rows have none, they go by their number, from 0.")
        .value("NAME");
    options
        .add("fields", augment.fields,
             "Whose texts change: columns of alpaca, prompt_completion and text rows, roles of conversations. Empty: "
             "instruction and input; "
             "prompt; user.")
        .value("LIST");
}

void declare_score(OptionSet& options, CommandLine& line) {
    options
        .add("out", line.score.out,
             "JSON Lines file to write: per row the ids, log-probabilities, loss and number of labels.")
        .path("FILE")
        .must_be_given();
    options.add("logits", line.score.logits, "safetensors file for the logits of every row, in float32.").path("FILE");
    options
        .add("top_k", line.score.top_k,
             "Write a teacher's file for distill.teacher instead: of each target's position so many of the likeliest "
             "tokens with their log-probabilities (at distill.temperature), and that of all others together.")
        .at_least(0);
}

void declare_sampling(OptionSet& options, GenerateRequest& generate) {
    spec::Sampling& sampling = generate.sampling;
    options
        .add("temperature", sampling.temperature,
             "What logits are divided by before a token is drawn; 0: always the likeliest.")
        .at_least(0);
    options.add("top_p", sampling.top_p, "Draw from the fewest likeliest tokens whose probabilities sum to this.")
        .above(0)
        .at_most(1);
    options.add("top_k", sampling.top_k, "Draw from so many of the likeliest tokens; 0: from all.").at_least(0);
    options.add("min_p", sampling.min_p, "Draw from tokens that are at least this times as likely as the likeliest.")
        .at_least(0)
        .at_most(1);
    options
        .add("repetition_penalty", sampling.repetition_penalty,
             "Logits of tokens that stand in prompt or answer: over this if positive, else times this.")
        .above(0);
    options.add("presence_penalty", sampling.presence_penalty, "Taken off the logits of tokens that the answer has.")
        .at_least(-2)
        .at_most(2);
    options.add("logit_bias", generate.logit_bias, "What is added to the logits of ids: {\"id\": number}.")
        .value("JSON");
    options.add("seed", generate.seed, "Of the random numbers: an answer's do not depend on those beside it.")
        .at_least(0);
}

void declare_adapters(OptionSet& options, NamedFolders& adapters, std::string help) {
    options.add("adapter", adapters.typed, std::move(help))
        .value("NAME=DIR,…")
        .adds_up()
        .suggested_for({"lora_modules", "adapters"});
}

void declare_generate(OptionSet& options, CommandLine& line) {
    options.add("prompt", line.generate.prompt,
                "Text to answer: a user's message where the model has a chat template, or data.template names one.");
    options.add("raw", line.generate.raw, "Give --prompt to the model as it is, without a chat template.");
    options.add("file", line.generate.file, "File of prompts, instead of --prompt.").path("FILE");
    declare_adapters(
        options, line.generate.adapters,
        "Adapters that rows of --file name (\"adapter\": \"NAME\"), answered together; rows that name none "
        "are answered by the base. May be given several times.");
    options.add("max_new_tokens", line.generate.max_new_tokens, "Longest answer in tokens.")
        .at_least(1)
        .suggested_for({"max_tokens", "max_length"});
    options.add("json", line.generate.json, "Print prompt_ids, ids and text as JSON, an object an answer.");
    options.add("logprobs", line.generate.logprobs,
                "With --json: the log-probability of each id, given those before it, as the model has it.");
    declare_sampling(options, line.generate);
    options.add("n", line.generate.n, "Answers to each prompt, with numbers of their own.")
        .at_least(1)
        .suggested_for({"num_return_sequences", "best_of"});
    options
        .add("stop", line.generate.stop,
             "Text that ends an answer and is no part of it. May be given several times, or as a JSON list of texts.")
        .value("TEXT")
        .verbatim()
        .suggested_for({"stop_strings", "stop_sequences"});
    options.add("stream", line.generate.stream, "Print --prompt's answer as it comes.");
    options.add("chat", line.generate.chat,
                "Answer the lines of standard input, each a user's message that goes on from what was said before; "
                "--prompt is the first.");
    options.add("max_rows", line.generate.max_rows, "Answers that are decoded at a time; others wait until one ends.")
        .at_least(1)
        .at_most(4096)
        .suggested_for({"max_num_seqs"});
    options
        .add("max_context", line.generate.max_context,
             "Longest prompt and answer together, in tokens; 0: what the prompts and --max_new_tokens come to, with "
             "--chat the model's longest.")
        .at_least(0)
        .suggested_for({"max_model_len"});
    options
        .add("kv_memory", line.generate.kv_memory,
             "Memory for the keys and values of all answers at a time: bytes, or with a unit (MB, GiB). Empty: what "
             "--max_rows of the prompts can take, or what is free.")
        .value("BYTES")
        .suggested_for({"kv_cache_memory_bytes"});
    options
        .add("max_batch_tokens", line.generate.max_batch_tokens,
             "Tokens of a pass: longer prompts go in by pieces, beside answers that are under way.")
        .at_least(16)
        .suggested_for({"max_num_batched_tokens"});
}

void declare_evaluate(OptionSet& options, CommandLine& line) {
    EvaluateRequest& evaluate = line.evaluate;
    options.add_choice(
        "metric", evaluate.metric,
        {{"none", AnswerMetric::none}, {"exact_match", AnswerMetric::exact_match}, {"regex", AnswerMetric::regex}},
        "Judge answers too: each row's prompt is continued with the likeliest tokens. exact_match: the "
        "share of answers that are the row's own, after --answer_regex where that is given; regex: the "
        "share in which --answer_regex is found.");
    options
        .add("answer_regex", evaluate.answer_regex,
             "Regular expression (PCRE) whose first group, or all of it, is what counts of an answer: '#### "
             "(-?[0-9.,]+)' of GSM8K. The last match holds.")
        .value("REGEX")
        .suggested_for({"regex", "pattern"});
    options.add("max_new_tokens", evaluate.max_new_tokens, "Longest answer in tokens.")
        .at_least(1)
        .suggested_for({"max_tokens", "max_length"});
    options
        .add("answers", evaluate.answers,
             "JSON Lines file to write, with --metric: prompt, expected and given answer of every row, and whether it "
             "is right.")
        .path("FILE");
    options.add("json", evaluate.json, "Print the results as one JSON object.");
}

void declare_tokenize(OptionSet& options, CommandLine& line) {
    options.add("tokenizer", line.tokenize.tokenizer, "Folder that holds tokenizer.json or tokenizer.model.")
        .path("DIR")
        .must_be_given();
    options.add("template", line.tokenize.chat_template, "Chat template for rows of messages, as data.template.")
        .value("NAME");
    options.add_object("chat_template_kwargs", line.tokenize.chat_template_kwargs,
                       "Variables of the chat template, as data.chat_template_kwargs.");
    options.add("decode", line.tokenize.decode, "Turn ids into text; rows are {\"ids\"}.");
    options.add("no_special", line.tokenize.no_special,
                "Add no special tokens to a text; leave them out when decoding.");
    options
        .add("measure", line.tokenize.measure,
             "Encode the rows of {\"text\"} so many times and print the seconds of each round instead of ids.")
        .at_least(0);
}

void declare_inspect(OptionSet& options, CommandLine& line) {
    options.add("path", line.inspect.path, "Folder of a model or an adapter, or a .gguf file.")
        .path("DIR|FILE")
        .argument()
        .must_be_given();
    options.add("json", line.inspect.json, "Print the findings as JSON.");
}

void declare_init(OptionSet& options, CommandLine& line) {
    InitRequest& init = line.init;
    options.add("shape", init.shape, "Shape of a known model, such as llama-3.1-8b.").value("NAME");
    // The main name is not "config": that is a configuration of this program everywhere else.
    options.add("model_config", init.config_file, "Hugging Face config.json that gives the shape, instead of --shape.")
        .path("FILE")
        .alias("", "config")
        .suggested_for({"config_file"});
    options.add("layers", init.layers, "Layers, instead of as many as the shape has; 0: those of the shape.")
        .at_least(0);
    options.add("out", init.out, "Folder to write.").path("DIR").must_be_given();
    options.add_choice(
        "quantize", init.quantize, {{"none", InitQuantize::none}, {"nf4", InitQuantize::nf4}},
        "nf4: projections in bitsandbytes' NF4 with double quantisation, their codes drawn as they are.");
    options.add("tokenizer", init.tokenizer, "Folder whose tokenizer files are copied beside the weights.").path("DIR");
    options.add("seed", init.seed, "Seed of the random weights.").at_least(0);
    options.add_choice("dtype", init.dtype, compute_types(), "Type of the weights that are not quantised.");
}

void declare_export(OptionSet& options, CommandLine& line) {
    ExportRequest& request = line.exporting;
    options
        .add_choice("format", request.format, {{"gguf", ExportFormat::gguf}},
                    "gguf: a file for llama.cpp and what builds on it.")
        .value("gguf")
        .argument()
        .must_be_given();
    options.add("model", request.model, "Model to export, as model.path: 16/32-bit, or 4-bit, which is dequantised.")
        .path("DIR")
        .suggested_for({"path", "model_path", "merged"});
    options.add("adapter", request.adapter, "PEFT adapter to export alone, instead of --model.")
        .path("DIR")
        .suggested_for({"lora"});
    options
        .add("base", request.base,
             "The adapter's base (of which config.json alone is read); empty: as the adapter names it.")
        .path("DIR")
        .suggested_for({"base_model"});
    options.add("out", request.out, "File to write, which must not exist.")
        .path("FILE")
        .must_be_given()
        .suggested_for({"output", "outfile"});
    options
        .add_choice(
            "type", request.type,
            {{"auto", ExportType::automatic},
             {"f32", ExportType::f32},
             {"f16", ExportType::f16},
             {"bf16", ExportType::bf16},
             {"q8_0", ExportType::q8_0},
             {"q4_0", ExportType::q4_0},
             {"q4_k_m", ExportType::q4_k_m},
             {"q5_k_m", ExportType::q5_k_m},
             {"q6_k", ExportType::q6_k}},
            "Type of the weights, mixed as llama-quantize mixes it; auto: the checkpoint's own. q4_k means q4_k_m. "
            "Adapters: f32, f16, bf16 or q8_0.")
        .synonym("q4_k", "q4_k_m")
        .synonym("q5_k", "q5_k_m")
        .suggested_for({"outtype", "quantize", "quantization_method"});
    options.add("tokenizer", request.tokenizer, "Folder of the tokenizer; empty: the model's.").path("DIR");
    options
        .add("pre", request.pre,
             "llama.cpp's name of the tokenizer's way of splitting (tokenizer.ggml.pre), where it is not found.")
        .value("NAME");
    options
        .add("threads", request.threads,
             "Threads that quantise; 0: as many as the machine has. The file does not depend on it.")
        .at_least(0);
}

Option& weight_type_names(Option& option) {
    return option.synonym("bfloat16", "bf16").synonym("float16", "fp16").synonym("float32", "fp32");
}

void declare_shard_size(OptionSet& options, std::string& field) {
    options.add("max_shard_size", field, "Largest file of weights: bytes, or with a unit (MB, GB, MiB, GiB).")
        .value("SIZE");
}

void declare_merge(OptionSet& options, CommandLine& line) {
    MergeRequest& merge = line.merge;
    options.add("adapter", merge.adapter, "Folder of the adapter.")
        .path("DIR")
        .must_be_given()
        .suggested_for({"adapter_name_or_path"});
    options
        .add("base", merge.base,
             "Model to merge into, in 4, 8 or 16/32 bit; empty: the one that the adapter's config names.")
        .path("DIR")
        .suggested_for({"model", "path"});
    options.add("out", merge.out, "Folder to make; it must not exist, or be empty.").path("DIR").must_be_given();
    weight_type_names(options.add_choice("dtype", merge.dtype,
                                         {{"auto", spec::WeightType::automatic},
                                          {"bf16", spec::WeightType::bf16},
                                          {"fp16", spec::WeightType::f16},
                                          {"fp32", spec::WeightType::f32},
                                          {"nf4", spec::WeightType::nf4}},
                                         "Type of the merged weights. auto: the 16- or 32-bit type that the base's "
                                         "config.json names; nf4: 4 bit as bitsandbytes stores it."));
    options.add("load_in_4bit", merge.load_in_4bit,
                "Merge into the NF4 values that training with model.load_in_4bit made of a 16/32-bit base, instead of "
                "the base's own.");
    options.add("precision", merge.precision,
                "Merge into the values that training with this model.precision made of the base.");
    declare_shard_size(options, merge.max_shard_size);
    options
        .add("verify", merge.verify,
             "Text, or file of rows, on which the merged model's logits are compared with those of base and adapter; "
             "empty: a text and token rows of the program's own.")
        .path("TEXT|FILE");
    options.add("no_verify", merge.no_verify, "Do not compare the logits.");
    options
        .add("tolerance", merge.tolerance,
             "Largest relative difference of the logits; none: 1e-4 for fp32, 1e-2 for fp16, 5e-2 for bf16, 0.7 for "
             "nf4.")
        .at_least(0);
    options
        .add("device", merge.device,
             "Where the logits are computed, in float32: auto, cpu, cuda or cuda:N. On the CPU a layer at a time.")
        .value("DEVICE");
}

void declare_quantize(OptionSet& options, CommandLine& line) {
    QuantizeRequest& quantize = line.quantize;
    options.add("model", quantize.model, "Model in 16 or 32 bit.")
        .path("DIR")
        .must_be_given()
        .suggested_for({"path", "base"});
    options.add("out", quantize.out, "Folder to make; it must not exist, or be empty.").path("DIR").must_be_given();
    options
        .add_choice("type", quantize.type,
                    {{"nf4", spec::WeightType::nf4}, {"fp4", spec::WeightType::fp4}, {"int8", spec::WeightType::int8}},
                    "nf4 and fp4: 4 bit with double quantisation; int8: 8 bit with a scale for each row (LLM.int8). As "
                    "bitsandbytes stores them.")
        .suggested_for({"dtype"});
    options.add("precision", quantize.precision,
                "Types of single modules, as in model.precision, whose default holds before --type. What transformers "
                "cannot load of the result is told.");
    declare_shard_size(options, quantize.max_shard_size);
}

void declare_bench(OptionSet& options, CommandLine& line) {
    BenchRequest& bench = line.bench;
    options
        .add_choice("what", bench.what,
                    {{"step", BenchSubject::step},
                     {"ops", BenchSubject::ops},
                     {"gemm", BenchSubject::gemm},
                     {"nf4", BenchSubject::nf4},
                     {"scaling", BenchSubject::scaling},
                     {"comm", BenchSubject::comm},
                     {"generate", BenchSubject::generate}},
                    "step: whole training steps of model.path; ops: each operator against the device's ceiling; gemm: "
                    "the matrix "
                    "products, by the library's choice of algorithm and by ours; nf4: products by 4-bit weights, from "
                    "tiles and by dequantising; scaling: "
                    "steps of several processes, started by a launcher, each alone and then together; comm: their sums "
                    "alone, which needs no model; generate: answers of model.path, against the memory's rate.")
        .value("step|ops|gemm|nf4|scaling|comm|generate")
        .argument()
        .must_be_given();
    options
        .add("batch", bench.batch,
             "Rows of a step; 0: training.per_device_train_batch_size; of generate: answers at a time; 0: 1, 64 and "
             "256.")
        .at_least(0);
    options.add("seq", bench.seq, "Tokens of a row; 0: model.max_seq_length; of generate: of a prompt; 0: 256.")
        .at_least(0);
    options.add("new_tokens", bench.new_tokens, "Of generate: tokens of an answer.").at_least(2);
    declare_adapters(options, bench.adapters, "Of generate: adapters that the rows have in turn.");
    options
        .add("min_seq", bench.min_seq,
             "Rows of unequal length, from this to seq (the same ones in each run); 0: all of seq.")
        .at_least(0);
    options.add("accumulate", bench.accumulate, "Of step: micro-batches of a step, each of so many rows.").at_least(1);
    options.add("steps", bench.steps, "Steps to measure.").at_least(1);
    options
        .add("warmup", bench.warmup,
             "Steps before measuring; -1: five, or as many as are predicted to end within a minute.")
        .at_least(-1);
    options.add("tune", bench.tune,
                "Of gemm: time the library's algorithms, and print choices as the tables in cards/ hold them.");
    options.add("json", bench.json, "Print the results as JSON.");
}

void declare_tune(OptionSet& options, CommandLine& line) {
    TuneRequest& tune = line.tune;
    options.add("out", tune.out, "File to write, for hardware.kernels; empty: standard output.").path("FILE");
    options.add("batch", tune.batch, "Rows of a step; 0: training.per_device_train_batch_size.").at_least(0);
    options.add("seq", tune.seq, "Tokens of a row; 0: model.max_seq_length.").at_least(0);
    options.add("steps", tune.steps, "Steps that a trial is timed over, three times.").at_least(1);
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
             "in cards/. Empty: this machine's GPU, or else the card whose memory is nearest to gpu_memory.")
        .path("NAME|FILE")
        .suggested_for({"card"});
    options.add("gpu_memory", plan.gpu_memory, "Memory of the card, such as 24GiB; empty: what such a card has.")
        .value("SIZE")
        .suggested_for({"vram", "memory"});
    options
        .add("gpus", plan.gpus,
             "GPUs of the machine. Where neither tp_size, pp_size, cp_size, zero_stage nor offload_optimizer is given, "
             "the fastest mesh that fits is proposed, with the options that make it.")
        .at_least(1)
        .suggested_for({"num_gpus", "nproc_per_node"});
    options.add("svg", plan.svg, "File for a picture of a step's memory over time, beside what is printed.")
        .path("FILE");
    options.add("json", plan.json, "Print the plan as one JSON object.");
}

void declare_watch(OptionSet& options, CommandLine& line) {
    options.add("run", line.watch.run, "Folder of a run (its training.output_dir).")
        .path("RUN")
        .argument()
        .must_be_given();
    options.add("once", line.watch.once, "Draw once; so it is also where standard output is no terminal.");
    options.add("interval", line.watch.interval, "Seconds between two looks.").at_least(0.1).at_most(3600);
}

void declare_compare(OptionSet& options, CommandLine& line) {
    options.add("runs", line.compare.runs, "Folders of runs.").path("RUN …").argument().must_be_given();
}

void declare_report(OptionSet& options, CommandLine& line) {
    options.add("run", line.report.run, "Folder of a run (its training.output_dir).")
        .path("RUN")
        .argument()
        .must_be_given();
    options.add("out", line.report.out, "File to write; empty: report.html in the run's folder.").path("FILE");
    options.add("svg", line.report.svg, "Write a picture instead: the curve of the loss, and the memory's plan.")
        .path("FILE");
}

void declare_replay(OptionSet& options, CommandLine& line) {
    options
        .add("file", line.replay.file,
             "What a run wrote of a step that was not finite, or a spike: RUN/anomalies/step-N.json. Of the run's "
             "folder run_config.json and the checkpoints are needed too.")
        .path("FILE")
        .argument()
        .must_be_given();
    options.add("device", line.replay.device, "auto, cpu, cuda or cuda:N; empty: as the run had it.").value("DEVICE");
    options.add("json", line.replay.json, "Print the findings as one JSON object.");
}

void declare_doctor(OptionSet& options, CommandLine& line) {
    options.add("json", line.doctor.json, "Print the findings as one JSON object.");
}

}  // namespace

const std::vector<CommandInfo>& commands() {
    static const std::vector<CommandInfo> all = {
        {Command::train, "train", "--config FILE [--section.key VALUE …]",
         "Train an adapter (or the whole model); the default command.", true, declare_nothing},
        {Command::launch, "launch",
         "[--nproc_per_node N|auto] [--nnodes N --node_rank I --master_addr HOST] [--] [train] --config FILE …",
         "Start a process a GPU, all of which train one model.", false, declare_launch},
        {Command::config, "config",
         "[--config FILE] [--schema | --markdown | --man | --completion SHELL] [--section.key VALUE …]",
         "Print the effective configuration as JSON.", true, declare_config},
        {Command::importing, "import-config", "FILE [--from axolotl|llamafactory|trl] [--out run.json] [--strict]",
         "Make a configuration from one of axolotl, LLaMA-Factory, TRL or Unsloth.", false, declare_import},
        {Command::data, "data", "--config FILE [--n N] [--json] [--color auto|always|never] [--section.key VALUE …]",
         "Show rows as the model will see them, and count what a run would train on.", true, declare_data_command},
        {Command::augment, "data augment",
         "--in FILE --out FILE [--val_size N --eval_out FILE] [--thesaurus FILE] [--section.key VALUE …]",
         "Write training rows with copies: synonyms, swapped and deleted words, back-translations.", true,
         declare_augment},
        {Command::score, "score", "--model.path DIR --data.train_file FILE --out FILE [--logits FILE] [--top_k N]",
         "Log-probabilities and losses of the rows of a file.", true, declare_score},
        {Command::generate, "generate",
         "--model.path DIR --prompt TEXT | --file FILE | --chat [--max_new_tokens N] [--temperature T]",
         "Answer prompts, with the likeliest tokens or with drawn ones.", true, declare_generate},
        {Command::evaluate, "evaluate",
         "--model.path DIR [--adapter_name_or_path DIR] --eval_file FILE [--metric exact_match] [--answer_regex REGEX] "
         "[--json]",
         "Loss, perplexity and accuracy on rows, and how many generated answers are right.", true, declare_evaluate},
        {Command::tokenize, "tokenize", "--tokenizer DIR [--template NAME] [--decode] < in.jsonl > out.jsonl",
         "Turn text or messages into ids, or ids into text.", false, declare_tokenize},
        {Command::inspect, "inspect", "DIR|FILE [--json]",
         "What a model or adapter folder or a GGUF file holds, and whether it is sound.", false, declare_inspect},
        {Command::init, "init", "--shape NAME --out DIR [--quantize nf4]", "Write a model with random weights.", false,
         declare_init},
        {Command::exporting, "export", "gguf --model DIR | --adapter DIR [--base DIR] --out FILE.gguf [--type TYPE]",
         "Write a model or an adapter for llama.cpp.", false, declare_export},
        {Command::merge, "merge",
         "--adapter DIR --base DIR --out DIR [--dtype bf16|fp16|fp32|nf4] [--verify TEXT|FILE | --no_verify]",
         "Merge an adapter into its base: a model folder without adapter.", false, declare_merge},
        {Command::quantize, "quantize", "--model DIR --out DIR [--type nf4|fp4|int8]",
         "Write a model in 4 or 8 bit, as bitsandbytes does.", false, declare_quantize},
        {Command::bench, "bench", "step|ops|gemm|nf4|scaling|comm|generate [--batch N] [--seq N] [--json]",
         "Measure speed.", true, declare_bench},
        {Command::tune, "tune", "--config FILE [--out FILE] [--batch N] [--seq N] [--seconds S]",
         "Measure which kernels serve a run's products fastest on this card.", true, declare_tune},
        {Command::plan, "plan", "--config FILE [--gpu NAME|FILE] [--gpu_memory 24GiB] [--gpus N] [--svg FILE] [--json]",
         "What a run takes of a GPU's memory and of time, without a GPU.", true, declare_plan},
        {Command::watch, "watch", "RUN [--once] [--interval SECONDS]",
         "Draw a run's losses and figures in the terminal.", false, declare_watch},
        {Command::compare, "compare", "RUN …",
         "Lay runs over each other: losses, figures, and the options that differ.", false, declare_compare},
        {Command::report, "report", "RUN [--out FILE | --svg FILE]",
         "Write a run's page: one HTML file with its curves and configuration.", false, declare_report},
        {Command::replay, "replay", "RUN/anomalies/step-N.json [--device DEVICE] [--json]",
         "Run a step that was not finite, or a spike, again: which layer, which row.", false, declare_replay},
        {Command::doctor, "doctor", "[--config FILE] [--json]",
         "Look at this machine: what is missing, what is scarce, and what to say in a report.", true, declare_doctor},
    };
    return all;
}

bool names_config_file(const std::string& argument) {
    return argument.ends_with(".json") || argument.ends_with(".yaml") || argument.ends_with(".yml");
}

const CommandInfo& command_named(const std::string& name) {
    std::vector<std::string> names = {"help"};
    for (const auto& command : commands()) {
        if (command.name == name) return command;
        names.push_back(command.name);
    }
    const std::string advice = did_you_mean(nearest(name, names));
    throw usage_error(cat("unknown command '", name, "'"),
                      name.find_first_of("./") != std::string::npos
                          ? "A configuration's name ends in .json, .yaml or .yml; --config FILE takes any."
                      : advice.empty() ? "unsloth-train --help lists the commands."
                                       : advice);
}

void declare_own_options(const CommandInfo& command, OptionSet& options, CommandLine& line) {
    options.section("", command.name, command.summary);
    command.declare(options, line);
    if (command.takes_config) {
        options
            .add("config", line.config_file,
                 "JSON or YAML file of options; flags win over it. A name that ends in .json, .yaml or .yml needs no "
                 "--config.")
            .path("FILE")
            .or_bare(names_config_file)
            .suggested_for({"config_file", "cfg", "conf"});
    } else if (command.command != Command::launch) {  // its level is the ranks'
        options.add("log_level", line.log_level, "Least level that is printed.").one_of(log_levels()).value("LEVEL");
    }
}

std::string advice_on_foreign_option(const std::string& name) {
    std::string owners;
    for (const auto& command : commands()) {
        CommandLine unused;
        OptionSet own;
        declare_own_options(command, own, unused);
        const std::vector<std::string> meant = own.suggestions(name);
        const bool known = std::any_of(own.options().begin(), own.options().end(), [&](const Option& option) {
            const auto& others = option.other_names;
            return option.key == name || std::find(others.begin(), others.end(), name) != others.end();
        });
        if (known) owners += cat(owners.empty() ? "" : ", ", command.name, " (--", meant.front(), ")");
    }
    return owners.empty() ? "" : cat("Options of that name belong to other commands: ", owners, ".");
}

}  // namespace unsloth::config
