// What score, generate and evaluate take.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {
namespace {

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

}  // namespace

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
    options
        .add("top_k", line.score.top_k,
             "Write a teacher's file for distill.teacher instead: of each target's position so many of the likeliest "
             "tokens with their log-probabilities (at distill.temperature), and that of all others together.")
        .at_least(0);
}

void declare_generate(OptionSet& options, CommandLine& line) {
    options.add("prompt", line.generate.prompt,
                "Text to answer: a user's message to the chat template that data.template or the run of the adapter "
                "names, or that the model has; as it is where there is none.");
    options.add("raw", line.generate.raw, "Give --prompt to the model as it is, without a chat template.");
    options
        .add("file", line.generate.file,
             "File of prompts, instead of --prompt: JSON Lines of {\"text\"} (as it is), {\"prompt\"} (as --prompt) or "
             "{\"messages\"}; or one text.")
        .path("FILE");
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
    options
        .add("max_num_seqs", line.generate.max_rows, "Answers that are decoded at a time; others wait until one ends.")
        .at_least(1)
        .at_most(4096)
        .alias("", "max_rows");
    options
        .add("max_model_len", line.generate.max_context,
             "Longest prompt and answer together, in tokens; 0: what the prompts and --max_new_tokens come to, with "
             "--chat the model's longest.")
        .at_least(0)
        .alias("", "max_context");
    options
        .add("kv_cache_memory", line.generate.kv_memory,
             "Memory for the keys and values of all answers at a time: bytes, or with a unit (MB, GiB). Empty: what "
             "--max_num_seqs of the prompts can take, or what is free.")
        .value("BYTES")
        .alias("", "kv_memory")
        .suggested_for({"kv_cache_memory_bytes"});
    declare_kv_cache_dtype(options, line.generate.kv_cache_dtype, "");
    options
        .add("max_num_batched_tokens", line.generate.max_batch_tokens,
             "Tokens of a pass: longer prompts go in by pieces, beside answers that are under way.")
        .at_least(16)
        .alias("", "max_batch_tokens");
}

void declare_kv_cache_dtype(OptionSet& options, KvCacheDtype& dtype, const std::string& of) {
    options.add_choice("kv_cache_dtype", dtype, {{"auto", KvCacheDtype::automatic}, {"fp8", KvCacheDtype::fp8}},
                       of + "Keys and values of answers under way: in model.dtype, or in 8 bit (e4m3, with a power of "
                            "two for each token's head), which is half the memory; log-probabilities change a little.");
}

void declare_evaluate(OptionSet& options, CommandLine& line) {
    EvaluateRequest& evaluate = line.evaluate;
    options.add_choice("metric", evaluate.metric, answer_metrics(),
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
        .output("FILE");
    options.add("json", evaluate.json, "Print the results as one JSON object.");
}

}  // namespace unsloth::app
