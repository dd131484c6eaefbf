// What ranks must agree on within a step: two of them, as threads that meet at a real store.
#include <ATen/ATen.h>

#include <limits>
#include <thread>

#include "bench/model.h"
#include "comm/ranks.h"
#include "train/support.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/spec/finite_sites.h"

namespace unsloth {
namespace {

using namespace test;

/// A rank's model, batch and steps.
struct Rank {
    Rank(const config::LoadedConfig& config, comm::Group& shared)
        : group(shared),
          benched(config, at::kCPU, {12, 12}, &shared),
          stepper(benched.ctx(), benched.model(), {.max_grad_norm = 1, .seed = 1, .group = &shared}) {}

    void issue(int64_t step) {
        stepper.issue(bench::random_step(benched.spec(), {12, 12}, static_cast<uint32_t>(group.rank()), group.size()),
                      step, 0.01);
    }
    bool skipped() { return stepper.take(/*must=*/true)->outcome.skipped != 0; }
    at::Tensor values() { return benched.model().parameters()->state().params_P; }

    comm::Group& group;
    bench::BenchedModel benched;
    train::Stepper stepper;
};

class RanksTest : public ::testing::Test {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    config::LoadedConfig config() const {
        return make_config({"--model.path", model_folder("small_llama/nf4_dq").string(), "--lora.r", "8"});
    }
};

TEST_F(RanksTest, AStepBehindOneThatWasNotFiniteIsSkippedByAll) {
    comm::on_ranks(2, [&](comm::Group& group) {
        Rank rank(config(), group);
        rank.issue(1);
        EXPECT_FALSE(rank.skipped());
        const at::Tensor good = rank.values().clone();
        if (group.rank() == 1) rank.values().fill_(std::numeric_limits<float>::quiet_NaN());
        rank.benched.model().parameters_changed();
        rank.issue(2);
        rank.values().copy_(good);
        rank.benched.model().parameters_changed();
        rank.issue(3);  // finite everywhere, but the host has not read step 2 yet
        EXPECT_TRUE(rank.skipped());
        EXPECT_TRUE(rank.skipped()) << "rank " << group.rank() << " applied a step behind one that was not finite";
        EXPECT_TRUE(at::equal(rank.values(), good)) << "rank " << group.rank();
        rank.issue(4);
        EXPECT_FALSE(rank.skipped());
        EXPECT_FALSE(at::equal(rank.values(), good));
    });
}

TEST_F(RanksTest, AValueThatTheSumsDoNotShowIsEveryonesToSkip) {
    comm::on_ranks(2, [&](comm::Group& group) {
        Rank rank(config(), group);
        rank.issue(1);
        const at::Tensor good = rank.values().clone();
        if (group.rank() == 0) rank.benched.ctx().outcome->first_bad_site = 3;
        rank.issue(2);
        EXPECT_FALSE(rank.skipped());
        const auto second = *rank.stepper.take(/*must=*/true);
        EXPECT_EQ(second.outcome.skipped, 1U) << "rank " << group.rank();
        EXPECT_EQ(second.outcome.first_bad_site, group.rank() == 0 ? 3U : spec::bad_elsewhere);
        EXPECT_TRUE(at::equal(rank.values(), good)) << "rank " << group.rank();
    });
}

TEST(Agreement, OtherValuesEndAllRanksByTheirNumbers) {
    const at::Tensor values = at::arange(5000000, at::kFloat);
    comm::on_ranks(3, [&](comm::Group& group) {
        at::Tensor own = values.clone();
        placement::require_equal_hashes(group, placement::values_hash(own), 6);
        if (group.rank() == 1) own[4999999].fill_(1);
        try {
            placement::require_equal_hashes(group, placement::values_hash(own), 7);
            ADD_FAILURE() << "rank " << group.rank() << " goes on";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("after step 7"), std::string::npos) << text;
            EXPECT_TRUE(text.find("0, 2 | 1") != std::string::npos || text.find("1 | 0, 2") != std::string::npos)
                << text;
        }
    });
}

}  // namespace
}  // namespace unsloth
