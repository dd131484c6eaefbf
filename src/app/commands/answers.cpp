// What score, generate and evaluate take.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {
namespace {

void declare_sampling(OptionSet& options, GenerateRequest& generate) {
    spec::Sampling& sampling = generate.sampling;
    options.add("temperature", sampling.temperature, "Sampling temperature; 0: greedy.").at_least(0);
    options
        .add("top_p", sampling.top_p,
             "Sample from the smallest set of most likely tokens whose probabilities sum to this (nucleus sampling).")
        .above(0)
        .at_most(1)
        .only_with("temperature")
        .because("without it, decoding is greedy")
        .or_else("Set --temperature 0.7, for instance.");
    options.add("top_k", sampling.top_k, "Sample from this many of the most likely tokens; 0: from all.")
        .at_least(0)
        .only_with("temperature")
        .because("without it, decoding is greedy")
        .or_else("Set --temperature 0.7, for instance.");
    options
        .add("min_p", sampling.min_p, "Sample from tokens whose probability is at least this share of the highest one.")
        .at_least(0)
        .at_most(1)
        .only_with("temperature")
        .because("without it, decoding is greedy")
        .or_else("Set --temperature 0.7, for instance.");
    options
        .add("repetition_penalty", sampling.repetition_penalty,
             "Penalty on tokens of the prompt or completion: positive logits are divided by it, negative ones "
             "multiplied.")
        .above(0);
    options
        .add("presence_penalty", sampling.presence_penalty,
             "Subtracted from the logits of tokens that the completion already has.")
        .at_least(-2)
        .at_most(2);
    options.add("logit_bias", generate.logit_bias, "Added to the logits of token ids: {\"id\": number}.").value("JSON");
    options.add("seed", generate.seed, "Random seed. A completion does not depend on other requests of its batch.")
        .at_least(0);
}

}  // namespace

void declare_batches(OptionSet& options, GenerateRequest& generate, const std::string& without_length) {
    options.add("max_num_seqs", generate.max_rows, "Sequences that are decoded in one batch; others wait.")
        .at_least(1)
        .at_most(4096)
        .alias("", "max_rows");
    options
        .add("max_model_len", generate.max_context,
             "Longest sequence (prompt and completion) in tokens. " + without_length)
        .at_least(0)
        .at_most(1e9)
        .alias("", "max_context");
    options
        .add("kv_cache_memory", generate.kv_memory,
             "KV cache size: bytes, or with a unit (MB, GiB). Empty: what --max_num_seqs of the prompts can use, or "
             "the free memory.")
        .value("BYTES")
        .alias("", "kv_memory")
        .suggested_for({"kv_cache_memory_bytes"});
    declare_kv_cache_dtype(options, generate.kv_cache_dtype, "");
    options
        .add("max_num_batched_tokens", generate.max_batch_tokens,
             "Tokens per scheduled step. Longer prompts are prefilled in chunks, together with running decodes.")
        .at_least(16)
        .at_most(1e9)
        .alias("", "max_batch_tokens");
}

void declare_adapters(OptionSet& options, NamedFolders& adapters, std::string help) {
    options.add("adapter", adapters.typed, std::move(help))
        .value("NAME=DIR,…")
        .adds_up()
        .suggested_for({"lora_modules", "adapters"});
}

void declare_score(OptionSet& options, CommandLine& line) {
    options
        .add("out", line.score.out,
             "JSON Lines file to write: per row the ids, log-probabilities, loss and number of labels.")
        .output("FILE")
        .must_be_given();
    options.add("logits", line.score.logits, "safetensors file for the logits of every row, in float32.")
        .output("FILE");
    declare_force(options, line);
    options
        .add("top_k", line.score.top_k,
             "Write a file for distill.teacher instead. It has this many most likely tokens of each label position, "
             "with their log-probabilities at distill.temperature. The other tokens are one entry.")
        .at_least(0);
}

void declare_generate(OptionSet& options, CommandLine& line) {
    options.add("prompt", line.generate.prompt,
                "Prompt: a user message for the chat template of data.template, the adapter's run or the model. "
                "Without any template, plain text.");
    options
        .add("image", line.generate.images,
             "Image file of --prompt: JPEG, PNG or WebP. May be given several times. Images stand before the prompt's "
             "text, or each at a `<image>` of it. With --chat: of the first message.")
        .path("FILE")
        .verbatim()
        .not_with("file")
        .because("its rows have images of their own");
    options.add("raw", line.generate.raw, "Use --prompt as plain text, without a chat template.")
        .not_with("file")
        .because("its rows of {\"text\"} are plain text already");
    options
        .add("file", line.generate.file,
             "File of prompts, instead of --prompt. JSON Lines of {\"text\"} (plain text), {\"prompt\"} (as --prompt) "
             "or {\"messages\"}; the latter two perhaps with \"images\"; or one text. "
             "-: standard input.")
        .path("FILE");
    declare_adapters(options, line.generate.adapters,
                     "Adapters for rows of --file (\"adapter\": \"NAME\"), decoded in one batch. Rows without a name "
                     "use the base. May be given several times.");
    options.at("adapter").needs({"file"}).or_else("One adapter for all prompts is --model.adapter_name_or_path DIR.");
    options.add("max_new_tokens", line.generate.max_new_tokens, "Longest answer in tokens.")
        .at_least(1)
        .at_most(1e9)
        .suggested_for({"max_tokens", "max_length"});
    options.add("json", line.generate.json, "Print one JSON object with prompt_ids, ids and text per completion.");
    options
        .add("logprobs", line.generate.logprobs, "With --json: the model's log-probability of each completion token.")
        .needs({"json"});
    declare_sampling(options, line.generate);
    options.add("n", line.generate.n, "Completions per prompt, sampled independently.")
        .at_least(1)
        .at_most(1e6)
        .suggested_for({"num_return_sequences", "best_of"})
        .only_with("temperature")
        .because("without it, decoding is greedy")
        .or_else("Set --temperature 0.7, for instance.");
    options
        .add("stop", line.generate.stop,
             "Stop text, which is not part of the completion. May be given several times, or as a JSON list of texts.")
        .value("TEXT")
        .verbatim()
        .suggested_for({"stop_strings", "stop_sequences"});
    options.add("stream", line.generate.stream, "Stream the completion of --prompt.")
        .not_with("file")
        .not_with("json")
        .not_with("n")
        .because("it prints one completion");
    options
        .add("chat", line.generate.chat,
             "Chat: each line of standard input is the next user message of one conversation. --prompt is the first. "
             "A line /image FILE adds an image to the next message.")
        .not_with("file")
        .not_with("raw")
        .not_with("json")
        .not_with("n");
    declare_batches(options, line.generate,
                    "0: as the prompts and --max_new_tokens need; with --chat the model's maximum.");
}

void declare_kv_cache_dtype(OptionSet& options, KvCacheDtype& dtype, const std::string& of) {
    options.add_choice("kv_cache_dtype", dtype, {{"auto", KvCacheDtype::automatic}, {"fp8", KvCacheDtype::fp8}},
                       of + "KV cache type. auto: model.dtype. fp8: e4m3 with a power-of-two scale per token and head, "
                            "in half the memory; log-probabilities change a little.");
}

void declare_evaluate(OptionSet& options, CommandLine& line) {
    EvaluateRequest& evaluate = line.evaluate;
    options
        .add_choice(
            "metric", evaluate.metric, answer_metrics(),
            "Also score greedy completions of each example's prompt. exact_match: share of completions equal to the "
            "expected one, after --answer_regex if given. regex: share in which --answer_regex matches.")
        .needs({"answer_regex"})
        .when({"regex"});
    options
        .add("answer_regex", evaluate.answer_regex,
             "Regular expression (PCRE) that extracts the answer, by its first group or the whole match. The last "
             "match counts. GSM8K: '#### (-?[0-9.,]+)'.")
        .value("REGEX")
        .suggested_for({"regex", "pattern"})
        .only_with("metric");
    options.add("max_new_tokens", evaluate.max_new_tokens, "Longest answer in tokens.")
        .at_least(1)
        .at_most(1e9)
        .suggested_for({"max_tokens", "max_length"});
    options
        .add("answers", evaluate.answers,
             "JSON Lines file to write, with --metric: prompt, expected and actual completion of every example, and "
             "whether it is correct.")
        .output("FILE")
        .only_with("metric");
    options
        .add_choice(
            "sensitivity", evaluate.sensitivity,
            {{"nf4", spec::WeightType::nf4}, {"fp4", spec::WeightType::fp4}, {"int8", spec::WeightType::int8}},
            "Measure what this type costs: the loss with each kind of projection quantized alone, and with all. "
            "Prints a value of model.precision that keeps the most sensitive ones unquantized.")
        .not_with("metric")
        .not_with("model.precision");
    declare_force(options, line);
    options.add("json", evaluate.json, "Print the results as one JSON object.");
}

}  // namespace unsloth::app
