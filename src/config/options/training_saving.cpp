// Options of a run's evaluations, checkpoints and reports.
#include "config/options/sections.h"
#include "unsloth/config/option_table.h"

namespace unsloth::config {
namespace {

/// Which evaluation is the best, and what follows from that.
void declare_best(OptionSet& options, TrainingOptions& training) {
    options
        .add("early_stopping_patience", training.early_stopping_patience,
             "Early stopping: end the run after this many evaluations in a row without an improvement of more than "
             "early_stopping_threshold; 0: never.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"early_stopping_steps", "patience"})
        .needs(evaluation_intervals)
        .error("option.no-evaluation")
        .because("the only evaluation is the one at the end")
        .on_resume(OnResume::mutable_);
    options
        .add("early_stopping_threshold", training.early_stopping_threshold,
             "Smallest improvement that counts for early_stopping_patience.")
        .at_least(0)
        .only_with("training.early_stopping_patience")
        .synonym(nullptr, 0)
        .on_resume(OnResume::logged);
    options
        .add("load_best_model_at_end", training.load_best_model_at_end,
             "Leave the adapter (or model) of the best evaluation in output_dir at the end, instead of the last "
             "step's. An evaluation that is the best so far then saves a checkpoint.")
        .needs(evaluation_intervals)
        .error("option.no-evaluation")
        .because("the only evaluation is the one at the end")
        .on_resume(OnResume::mutable_);
    options
        .add("metric_for_best_model", training.metric_for_best_model,
             "Metric that selects the best evaluation, with or without eval_. It may be loss, token_accuracy, "
             "NAME_loss of data.eval_files, or exact_match of eval_metric. For preferences, metrics such as "
             "rewards/margins are valid too. With objective grpo, loss means reward.")
        .value("NAME")
        .synonym(nullptr, "eval_loss")
        .synonym("", "eval_loss")
        .on_resume(OnResume::immutable);
    options
        .add("greater_is_better", training.greater_is_better,
             "Whether more of metric_for_best_model is better; null: of all metrics but perplexity and those whose "
             "names end in loss.")
        .on_resume(OnResume::immutable);
}

/// transformers' names.
void declare_upload(OptionSet& options, TrainingOptions& training) {
    options
        .add("push_to_hub", training.push_to_hub,
             "Upload the adapter (or model) with a model card to the Hugging Face hub when the run has finished. Token "
             "and address come from HF_TOKEN and HF_ENDPOINT, as for downloads. A run checks both before it starts.")
        .suggested_for({"upload_to_hub"})
        .on_resume(OnResume::mutable_);
    options
        .add("hub_model_id", training.hub_model_id,
             "Repository to upload to: ORG/NAME, or NAME of the token's account. null: the name of output_dir.")
        .value("ORG/NAME")
        .suggested_for({"repo_id", "hub_repo", "push_to_hub_model_id"})
        .only_with("training.push_to_hub")
        .on_resume(OnResume::mutable_);
    options
        .add("hub_private_repo", training.hub_private_repo,
             "Create the repository as a private one. One that exists stays as it is.")
        .synonym(nullptr, true)
        .unused_with("training.push_to_hub", {false})
        .on_resume(OnResume::mutable_);
}

void declare_evaluations(OptionSet& options, TrainingOptions& training) {
    options.add("eval_on_start", training.eval_on_start, "Evaluate before the first step too.")
        .needs(evaluation_rows)
        .error("option.no-evaluation")
        .on_resume(OnResume::mutable_);
    options
        .add("eval_steps", training.eval_steps,
             "Evaluate every N steps, and at the end; below 1: a share of the run's steps, rounded up; 0: only at the "
             "end.")
        .at_least(0)
        .at_most(1e9)
        .synonym(nullptr, 0)
        .suggested_for({"eval_interval", "eval_every"})
        .needs(evaluation_rows)
        .error("option.no-evaluation")
        .not_with("training.evals_per_epoch")
        .because("each says how often to evaluate")
        .on_resume(OnResume::logged);
    options
        .add("evals_per_epoch", training.evals_per_epoch,
             "Evaluate N times an epoch of S steps: after the steps i S / N, rounded up, for i from 1 to N. 0.5: every "
             "second epoch. 0: as eval_steps says.")
        .at_least(0)
        .synonym(nullptr, 0)
        .needs(evaluation_rows)
        .error("option.no-evaluation")
        .on_resume(OnResume::logged);
    declare_best(options, training);
}

void declare_checkpoints(OptionSet& options, TrainingOptions& training) {
    options
        .add(
            "save_steps", training.save_steps,
            "Save a resumable checkpoint-N every N steps, and at the end; below 1: a share of the run's steps, rounded "
            "up; 0: not by steps.")
        .at_least(0)
        .at_most(1e9)
        .suggested_for({"save_interval", "save_every", "checkpoint_steps"})
        .not_with("training.saves_per_epoch")
        .when_not({0})
        .because("each says how often to save")
        .default_with("training.saves_per_epoch", 0)
        .on_resume(OnResume::mutable_);
    options
        .add("saves_per_epoch", training.saves_per_epoch,
             "Save a checkpoint-STEP N times an epoch, after the same steps as evals_per_epoch. 0.5: every second "
             "epoch. 0: "
             "as save_steps says.")
        .at_least(0)
        .synonym(nullptr, 0)
        .on_resume(OnResume::mutable_);
    options
        .add("save_minutes", training.save_minutes,
             "Save checkpoint-N when this many minutes have passed since the last one; 0: not by time.")
        .at_least(0)
        .on_resume(OnResume::mutable_);
    options
        .add("save_total_limit", training.save_total_limit,
             "How many checkpoint-N folders are kept, the newest ones and in any case that of the best evaluation; 0: "
             "all.")
        .at_least(0)
        .synonym(nullptr, 0)
        .on_resume(OnResume::mutable_);
    options
        .add("save_grace_seconds", training.save_grace_seconds,
             "After SIGTERM, SIGINT or SIGHUP, a step that would take longer than this is dropped, and the state "
             "before it is saved. launch kills ranks that have not ended within 30 s more.")
        .at_least(0)
        .on_resume(OnResume::mutable_);
    options
        .add("stop_at_step", training.stop_at_step,
             "Stop after this step, with an evaluation and a checkpoint; below 1: a share of the run's steps, rounded "
             "up; 0: at the end. The learning-rate schedule still spans the whole run. "
             "resume_from_checkpoint auto continues it.")
        .at_least(0)
        .at_most(1e9)
        .synonym(nullptr, 0)
        .not_with("training.push_to_hub")
        .because("only a finished run is uploaded")
        .on_resume(OnResume::mutable_);
    options
        .add("overwrite_output_dir", training.overwrite_output_dir,
             "Start afresh in an output_dir that holds a run already; its checkpoints are removed.")
        .not_with("training.resume_from_checkpoint")
        .because("a run either resumes or starts afresh")
        .on_resume(OnResume::mutable_);
}

void declare_reports(OptionSet& options, TrainingOptions& training) {
    options
        .add("logging_steps", training.logging_steps,
             "Log metrics every N steps; below 1: a share of the run's steps, rounded up.")
        .above(0)
        .at_most(1e9)
        .on_resume(OnResume::mutable_);
    options
        .add("report_to", training.report_to,
             "Reports in addition to logging.metrics_file. tensorboard: event files in logging.tensorboard_dir. "
             "prometheus: an endpoint at logging.metrics_port. html: report.html in output_dir, updated during the "
             "run. wandb: TensorBoard files, and the command that uploads them.")
        .one_of({"tensorboard", "prometheus", "html", "wandb"})
        .suggested_for({"wandb", "use_wandb"})
        .synonym(nullptr, Json::array())
        .synonym("", Json::array())
        .synonym("none", Json::array())
        .synonym(Json::array({"none"}), Json::array())
        .synonym("tensorboard", Json::array({"tensorboard"}))
        .synonym("prometheus", Json::array({"prometheus"}))
        .synonym("html", Json::array({"html"}))
        .synonym("wandb", Json::array({"wandb"}))
        .on_resume(OnResume::mutable_);
    options
        .add("sample_prompts", training.sample_prompts,
             "Prompts, as `generate --file` reads them, that every evaluation completes greedily into samples.jsonl in "
             "output_dir. The run's report shows them.")
        .path("FILE")
        .on_resume(OnResume::mutable_);
    options.add("sample_max_new_tokens", training.sample_max_new_tokens, "Most tokens of such an answer.")
        .at_least(1)
        .at_most(1e9)
        .on_resume(OnResume::mutable_);
    options
        .add_choice("eval_metric", training.eval_metric, answer_metrics(),
                    "Judge answers in every evaluation, as `evaluate --metric` does: eval_exact_match or eval_regex, "
                    "and all answers in answers.jsonl in output_dir.")
        .needs(evaluation_rows)
        .error("option.no-evaluation")
        .only_with("training.objective", {"sft"})
        .error("option.unsupported")
        .because("other objectives have metrics of their own")
        .needs({"training.eval_answer_regex"})
        .when({"regex"})
        .on_resume(OnResume::mutable_);
    options
        .add("eval_answer_regex", training.eval_answer_regex, "What counts of an answer, as `evaluate --answer_regex`.")
        .only_with("training.eval_metric", {"exact_match", "regex"})
        .value("REGEX")
        .on_resume(OnResume::mutable_);
    options.add("eval_max_new_tokens", training.eval_max_new_tokens, "Most tokens of an answer that is judged.")
        .at_least(1)
        .at_most(1e9)
        .on_resume(OnResume::mutable_);
}

void declare_resuming(OptionSet& options, TrainingOptions& training) {
    options
        .add("resume_from_checkpoint", training.resume_from_checkpoint,
             "auto: resume from the newest complete checkpoint in output_dir, or start if there is none. true: resume; "
             "a checkpoint must exist. Otherwise, the checkpoint folder.")
        .path("auto|true|DIR")
        .synonym(true, "true")
        .synonym(false, "false")
        .suggested_for({"resume"})
        .on_resume(OnResume::mutable_);
    declare_upload(options, training);
}

}  // namespace

void declare_saving(OptionSet& options, TrainingOptions& training) {
    declare_evaluations(options, training);
    declare_checkpoints(options, training);
    declare_reports(options, training);
    declare_resuming(options, training);
}

}  // namespace unsloth::config
