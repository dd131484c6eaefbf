#include "ops/distill_cases.h"

#include "common/files.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace unsloth {
namespace {

TEST(Distill, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::distill_cases(1));
}

TEST(Distill, ALossThatIsNotFiniteNamesItsSite) {
    testing::OpCase c = testing::accumulate_distilled_case(5);
    c.args[1].value[2] = NAN;
    EXPECT_EQ(testing::run_case(c, at::kCPU).outcome.first_bad_site, 17U);
}

TEST(Distill, ATeacherThatIsNotANumberIsNotTakenForOneThatAgrees) {
    for (const auto type :
         {spec::DivergenceType::forward_kl, spec::DivergenceType::reverse_kl, spec::DivergenceType::jsd}) {
        testing::OpCase c =
            testing::distill_case({.type = type}, {1, 8, 8, 0}, at::kFloat, testing::Layout::packed, false);
        c.args[4].value[0][3] = NAN;
        EXPECT_FALSE(std::isfinite(testing::run_case(c, at::kCPU).args[3].item<float>())) << testing::name_of(type);
    }
}

// Values and gradients, in fp64, of TRL's generalised Jensen-Shannon divergence.
TEST(Distill, DivergencesAreThoseOfTrl) {
    std::ifstream file(test::golden("distill/divergences.json"));
    const nlohmann::json cases = nlohmann::json::parse(file);
    ASSERT_GE(cases.size(), 9U);
    for (const nlohmann::json& c : cases) {
        const double beta = c["beta"], temperature = c["temperature"];
        SCOPED_TRACE(testing::case_name(beta, temperature));
        const auto type = beta == 0   ? spec::DivergenceType::forward_kl
                          : beta == 1 ? spec::DivergenceType::reverse_kl
                                      : spec::DivergenceType::jsd;
        const auto values = [&](const char* name) { return c[name].get<std::vector<double>>(); };
        const auto log_probabilities = [&](const char* name) {
            return at::log_softmax(at::tensor(values(name), at::kDouble) / temperature, 0);
        };
        const at::Tensor log_p = log_probabilities("teacher"), log_q = log_probabilities("student");
        const auto at = [](const at::Tensor& t, int64_t i) { return t.const_data_ptr<double>()[i]; };
        double loss = 0, centre = 0;
        for (int64_t i = 0; i < log_p.numel(); ++i) {
            const auto term = spec::divergence_term(type, beta, at(log_p, i), at(log_q, i));
            loss += term.loss;
            centre += term.centre;
        }
        EXPECT_NEAR(loss, c["loss"], 1e-13);
        const std::vector<double> gradient = values("gradient");
        for (int64_t i = 0; i < log_p.numel(); ++i)
            EXPECT_NEAR(spec::divergence_slope(type, beta, at(log_p, i), at(log_q, i), centre) / temperature,
                        gradient[static_cast<std::size_t>(i)], 1e-13);
    }
}

}  // namespace
}  // namespace unsloth
