// The mesh that `plan` proposes, against all meshes one by one, and what changes it.
#include "commands/mesh_proposals.h"

#include <gtest/gtest.h>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/planner/card.h"

namespace unsloth::commands {
namespace {

constexpr int64_t gib = int64_t{1} << 30;

config::LoadedConfig configured(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--save_steps", "0"});
    return config::load_config(std::nullopt, flags);
}

Target target(const char* card, int64_t gpus, double memory_gib = 0) {
    Target target;
    target.machine.card = planner::find_card(card);
    target.memory = memory_gib > 0 ? static_cast<int64_t>(memory_gib * gib) : target.machine.card.memory_bytes;
    target.gpus = gpus;
    target.machine.free = {target.memory - target.machine.card.context_bytes, 200 * gib};
    return target;
}

std::vector<Proposal> propose(const config::LoadedConfig& loaded, const Target& target, std::size_t most = 5) {
    return propose_meshes(loaded, target, open_or_describe(loaded.config), most);
}

const config::DistributedOptions& mesh_of(const Proposal& proposal) {
    return proposal.forecast.config().distributed;
}

/// The least step of all meshes of the GPUs with the rows as given, each asked for by its flags.
double brute_force(const std::vector<std::string>& flags, const Target& target, int64_t accumulate) {
    double best = std::numeric_limits<double>::infinity();
    for (const int64_t tp : {1, 2, 4})
        for (const int64_t pp : {1, 2, 4})
            for (const int64_t cp : {1, 2, 4})
                for (const int64_t stage : {0, 3}) {
                    if (target.gpus % (tp * pp * cp) != 0) continue;
                    std::vector<std::string> with = flags;
                    with.insert(with.end(),
                                {"--tp_size", cat(tp), "--pp_size", cat(pp), "--cp_size", cat(cp), "--zero_stage",
                                 cat(stage), "--gradient_accumulation_steps", cat(accumulate * tp * pp * cp)});
                    try {
                        const config::LoadedConfig loaded = configured(with);
                        Forecast run(loaded, target, open_or_describe(loaded.config));
                        const double least = run.least_step_ms();
                        const Estimate estimate = run.choose();
                        EXPECT_LE(least, estimate.step_ms * 1.001) << tp << " " << pp << " " << cp << " " << stage;
                        if (estimate.fits) best = std::min(best, estimate.step_ms);
                    } catch (const Error& error) {
                        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
                    }
                }
    return best;
}

TEST(MeshProposals, EqualBruteForce) {
    // One row a pass, so that there are no other passes to take.
    for (const auto& [card, memory, length] :
         {std::tuple{"H200", 0.0, 512}, {"H200", 0.0, 32768}, {"A100", 20.0, 8192}, {"RTX 3090", 8.0, 2048}}) {
        const std::vector<std::string> flags = {
            "--model.path", "llama-3.2-1b", "--per_device_train_batch_size", "1", "--max_seq_length", cat(length)};
        const Target where = target(card, 4, memory);
        const std::vector<Proposal> found = propose(configured([&] {
                                                        std::vector<std::string> with = flags;
                                                        with.insert(with.end(), {"--gradient_accumulation_steps", "4"});
                                                        return with;
                                                    }()),
                                                    where);
        const double best = brute_force(flags, where, 4), ms = found.front().estimate.step_ms;
        EXPECT_TRUE(found.front().estimate.fits);
        EXPECT_LE(ms, best / (1 - 0.0051)) << card << " " << length;
        EXPECT_GE(ms, best * 0.9999);
        for (const Proposal& proposal : found)
            EXPECT_EQ(proposal.forecast.step_tokens(), found.front().forecast.step_tokens());
    }
}

TEST(MeshProposals, TakeTheMeshThatFits) {
    // 35 GiB of weights, and what training adds.
    const std::vector<Proposal> large =
        propose(configured({"--model.path", "llama-3.1-70b", "--per_device_train_batch_size", "4"}), target("A100", 2));
    EXPECT_TRUE(large.front().estimate.fits);
    for (const model::ModelPlan& stage : large.front().estimate.stages)
        EXPECT_LE(stage.total_bytes(), large.front().forecast.budget().device);
    // Of 32-bit values and moments 13 x 16 GiB, more than four cards have.
    const std::vector<Proposal> full =
        propose(configured({"--model.path", "llama-2-13b", "--finetuning_type", "full", "--load_in_4bit", "false",
                            "--optim", "adamw_torch", "--per_device_train_batch_size", "1"}),
                target("A100", 4, 40));
    EXPECT_TRUE(full.front().estimate.fits);
    EXPECT_EQ(mesh_of(full.front()).offload_optimizer, config::OptimizerPlace::cpu);
    EXPECT_NE(full.front().flags.find("--offload_optimizer cpu"), std::string::npos) << full.front().flags;
}

TEST(MeshProposals, ASlowLinkTurnsThemAwayFromTensorParallel) {
    // A single row a step of each copy, of a model whose layers one card does not hold.
    const config::LoadedConfig loaded =
        configured({"--model.path", "llama-3.1-70b", "--load_in_4bit", "false", "--per_device_train_batch_size", "1",
                    "--gradient_accumulation_steps", "1", "--max_seq_length", "1024", "--objective", "dpo"});
    Target where = target("H100", 4);
    const auto rank_of_tp = [&] {
        const std::vector<Proposal> found = propose(loaded, where, 50);
        for (std::size_t i = 0; i < found.size(); ++i)
            if (mesh_of(found[i]).tp_size == 4) return std::pair(i, found[i].estimate.step_ms);
        return std::pair(found.size(), 0.0);
    };
    where.machine.card.peer = 2000;
    where.machine.card.peer_us = 1;
    const auto [fast_place, fast_ms] = rank_of_tp();
    where.machine.card.peer = 10;
    where.machine.card.peer_us = 50;
    const auto [slow_place, slow_ms] = rank_of_tp();
    EXPECT_LT(fast_place, slow_place);
    EXPECT_GT(slow_ms, 2 * fast_ms);
}

TEST(MeshProposals, RefuseAsARunDoes) {
    const config::LoadedConfig loaded = configured({"--model.path", "llama-3.2-1b", "--tp_size", "2"});
    EXPECT_FALSE(leaves_mesh_open(loaded));
    EXPECT_TRUE(leaves_mesh_open(configured({"--model.path", "llama-3.2-1b"})));
    try {
        Forecast(loaded, target("H200", 3), open_or_describe(loaded.config));
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "parallel.wrong-rank-count");
        EXPECT_NE(std::string(error.what()).find("Start 2 or 4 processes"), std::string::npos) << error.what();
    }
    // 3 divides neither heads nor, without pp_size, much else: what is left is what a run accepts.
    for (const Proposal& proposal :
         propose(configured({"--model.path", "llama-3.2-1b", "--objective", "dpo"}), target("H200", 3), 50)) {
        EXPECT_EQ(mesh_of(proposal).tp_size, 1);
        EXPECT_EQ(mesh_of(proposal).cp_size, 1) << "dpo";
    }
}

TEST(MeshProposals, SayWhatComesNearestWhereNothingFits) {
    const std::vector<Proposal> found =
        propose(configured({"--model.path", "llama-3.1-70b", "--finetuning_type", "full", "--load_in_4bit", "false"}),
                target("RTX 3090", 2));
    ASSERT_EQ(found.size(), 1U);
    EXPECT_FALSE(found.front().estimate.fits);
}

TEST(MeshProposals, ComeNearestByWhatTheirBudgetsLack) {
    const std::vector<std::string> flags = {"--model.path", "llama-3.1-8b", "--gradient_checkpointing", "full"};
    const auto lacking = [](const Forecast& run, const Estimate& estimate) {
        EXPECT_FALSE(estimate.fits);
        return estimate.plan().total_bytes() - run.budget().device;
    };
    const Target where = target("RTX 3090", 4, 3);
    const std::vector<Proposal> found = propose(configured(flags), where);
    const int64_t least = lacking(found.front().forecast, found.front().estimate);
    int64_t fewest_bytes = std::numeric_limits<int64_t>::max();
    for (const int64_t tp : {1, 2, 4}) {  // with stages of a pipeline there are more communicators
        std::vector<std::string> with = flags;
        with.insert(with.end(), {"--tp_size", cat(tp), "--pp_size", cat(4 / tp), "--zero_stage", tp == 2 ? "3" : "0"});
        const config::LoadedConfig loaded = configured(with);
        try {
            Forecast run(loaded, where, open_or_describe(loaded.config));
            const Estimate estimate = run.choose();
            EXPECT_LE(least, lacking(run, estimate)) << tp;
            fewest_bytes = std::min(fewest_bytes, estimate.plan().total_bytes());
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        }
    }
    EXPECT_LT(fewest_bytes, found.front().estimate.plan().total_bytes());
}

}  // namespace
}  // namespace unsloth::commands
