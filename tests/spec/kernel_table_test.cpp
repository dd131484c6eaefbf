// Tables of measured kernels: the built-in ones, the form of their files, and what of one holds elsewhere.
#include "unsloth/spec/kernel_table.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

const KernelCard h200 = {"NVIDIA H200", 90, 132}, h100 = {"NVIDIA H100 80GB HBM3", 90, 132};

const char* const file = R"({"name": "a card, whose rates are read elsewhere", "kernels": {
  "card": "NVIDIA Test", "compute_capability": 8.9, "multiprocessors": 128, "source": "a test",
  "versions": {"driver": "580.1", "cublaslt": 130100, "cudnn": 91900, "own": 1},
  "choices": [
    {"op": "gemm", "form": "nt", "tokens": [1, 128], "n": 6144, "k": [4096, 5119], "kernel": "library",
     "parameters": [66, 15, 35, 1, 0, 0, 1, 0, 5]},
    {"op": "gemm", "form": "nt", "tokens": [1024, null], "kernel": "library",
     "parameters": [66, 20, 35, 1, 0, 0, 1, 0, 5], "wave": [6.17, 776.1]},
    {"op": "gemm_nf4", "form": "nn", "tokens": [0, 8], "n": 4096, "k": 4096, "kernel": "portable",
     "parameters": [1, 2, 16]},
    {"op": "lora_dy", "rank": [0, 16], "kernel": "sm90"}]}})";

ProductKey forward(int64_t tokens, int64_t n, int64_t k) {
    return {.op = KernelOperator::gemm, .form = ProductForm::nt, .tokens = tokens, .n = n, .k = k};
}

TEST(KernelTable, AChoiceServesWhatItsIntervalsHold) {
    const KernelTable table = parse_kernels(file, "test.json");
    EXPECT_EQ(table.card, (KernelCard{"NVIDIA Test", 89, 128}));
    EXPECT_EQ(table.versions, (KernelVersions{"580.1", 130100, 91900, 1}));
    for (const int64_t k : {4096, 4112, 5119}) {
        const KernelChoice* found = table.find(forward(128, 6144, k));
        ASSERT_NE(found, nullptr) << k;
        EXPECT_EQ(found->parameters.at(1), 15);
    }
    for (const ProductKey& other :
         {forward(0, 6144, 4096), forward(129, 6144, 4096), forward(128, 6143, 4096), forward(128, 6144, 4095),
          forward(128, 6144, 5120),
          ProductKey{.op = KernelOperator::gemm, .form = ProductForm::nn, .tokens = 128, .n = 6144, .k = 4096},
          ProductKey{.op = KernelOperator::gemm_fp8, .tokens = 128, .n = 6144, .k = 4096}})
        EXPECT_EQ(table.find(other), nullptr);
    EXPECT_EQ(table.find(forward(4096, 6144, 4096)), nullptr) << "a candidate is no choice by itself";
    ASSERT_EQ(table.candidates(forward(int64_t{1} << 40, 8, 8)).size(), 1U);
    EXPECT_TRUE(table.candidates(forward(1023, 8, 8)).empty());
    EXPECT_TRUE(table.measured(forward(4096, 6144, 4096)));
    EXPECT_FALSE(table.measured(forward(512, 6144, 4096)));
    const KernelChoice* any_form = table.find({.op = KernelOperator::lora_dy, .form = ProductForm::tt, .rank = 16});
    ASSERT_NE(any_form, nullptr);
    EXPECT_EQ(any_form->kernel, KernelSource::sm90);
}

TEST(KernelTable, WhatIsWrittenIsReadBack) {
    const KernelTable table = parse_kernels(file, "test.json");
    EXPECT_EQ(parse_kernels(kernels_text(table), "again"), table);
    for (const KernelCard& card : {h200, h100}) {
        const auto built_in = built_in_kernels(card);
        ASSERT_NE(built_in, nullptr) << card.name;
        EXPECT_EQ(parse_kernels(kernels_text(*built_in), "again"), *built_in);
    }
}

TEST(KernelTable, ADriverThatIsNotKnownIsLeftOut) {
    KernelTable table = parse_kernels(file, "test.json");
    EXPECT_TRUE(kernels_text(table).find(R"("driver":"580.1")") != std::string::npos) << kernels_text(table);
    table.versions.driver.clear();
    EXPECT_EQ(kernels_text(table).find("driver"), std::string::npos) << kernels_text(table);
    EXPECT_EQ(parse_kernels(kernels_text(table), "again"), table);
}

TEST(KernelTable, OnlyAMeasuredCardHasABuiltInTable) {
    for (const KernelCard& other :
         {KernelCard{"NVIDIA H100 PCIe", 90, 114}, KernelCard{"NVIDIA H200", 90, 60},
          KernelCard{"NVIDIA H200 MIG 3g.71gb", 90, 60}, KernelCard{"NVIDIA A100-SXM4-80GB", 80, 108}, KernelCard{}})
        EXPECT_EQ(built_in_kernels(other), nullptr) << other.name;
}

TEST(KernelTable, AnH100TakesFromTheH200WhatItsDieDecides) {
    const auto own = built_in_kernels(h100), of_h200 = built_in_kernels(h200);
    for (const KernelChoice& choice : of_h200->choices) {
        const bool of_memory = choice.op == KernelOperator::gemm && choice.wave.empty();
        const bool thin = choice.op == KernelOperator::lora_u || choice.op == KernelOperator::lora_dy;
        EXPECT_EQ(std::count(own->choices.begin(), own->choices.end(), choice), of_memory || thin ? 0 : 1)
            << choice_text(choice);
    }
}

/// The first choice that serves a product is taken: what one before it covers was measured for nothing.
TEST(KernelTable, ChoicesOfTheBuiltInTablesAreOfUseAndAddSplitsInAFixedOrder) {
    for (const KernelCard& card : {h200, h100}) {
        const auto table = built_in_kernels(card);
        EXPECT_EQ(table->versions.own, own_kernels_version);
        for (auto a = table->choices.begin(); a != table->choices.end(); ++a) {
            if (a->op == KernelOperator::gemm) {
                constexpr int64_t compute_type = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                EXPECT_EQ(a->parameters.at(4), a->parameters.at(3) > 1 ? compute_type : 0) << choice_text(*a);
            }
            if (!a->wave.empty()) {
                EXPECT_GT(a->wave[0], 0) << choice_text(*a);
                EXPECT_GE(a->wave[1], 0) << choice_text(*a);
            }
            for (auto before = table->choices.begin(); before != a; ++before)
                EXPECT_FALSE(before->covers(*a)) << choice_text(*before) << " and " << choice_text(*a);
        }
    }
}

TEST(KernelTable, AChoicePutFirstReplacesWhatItCovers) {
    KernelTable table = parse_kernels(file, "test.json");
    KernelChoice choice = table.choices[0];
    choice.parameters[1] = 17;
    choice.tokens = {64, 256};
    table.put_first(choice);
    EXPECT_EQ(table.choices.size(), 5U) << "rows 1 to 63 are the other's";
    EXPECT_EQ(table.find(forward(128, 6144, 4096))->parameters[1], 17);
    EXPECT_EQ(table.find(forward(63, 6144, 4096))->parameters[1], 15);
    choice.tokens = {};
    table.put_first(choice);
    EXPECT_EQ(table.choices.size(), 4U) << "candidates of waves stay";
    EXPECT_EQ(table.find(forward(63, 6144, 4096))->parameters[1], 17);
}

TEST(KernelTable, AnotherLibraryKeepsOurKernelsAndOtherKernelsTheLibrarys) {
    const KernelTable table = parse_kernels(file, "test.json");
    EXPECT_EQ(still_valid(table, 130100), table);
    const KernelTable newer = still_valid(table, 130200);
    ASSERT_EQ(newer.choices.size(), 2U);
    EXPECT_EQ(newer.choices[0].op, KernelOperator::gemm_nf4);
    EXPECT_EQ(newer.choices[1].op, KernelOperator::lora_dy);
    KernelTable older = table;
    older.versions.own = own_kernels_version - 1;
    ASSERT_EQ(still_valid(older, 130100).choices.size(), 2U);
    EXPECT_EQ(still_valid(older, 130100).choices[1].op, KernelOperator::gemm);
}

TEST(KernelTable, AttentionHasEnginesByDirectionAndLengthOfRows) {
    const std::string text = std::string(file).replace(
        std::string(file).find(R"({"op": "lora_dy")"), 0,
        R"({"op": "attention", "form": "nn", "n": [0, 64], "k": 128, "kernel": "portable"},)");
    const KernelTable table = parse_kernels(text, "test.json");
    ProductKey key{.op = KernelOperator::attention, .form = ProductForm::nn, .tokens = 16384, .n = 32, .k = 128};
    ASSERT_NE(table.find(key), nullptr);
    EXPECT_EQ(table.find(key)->kernel, KernelSource::portable);
    key.form = ProductForm::nt;
    EXPECT_EQ(table.find(key), nullptr);
    key.form = ProductForm::nn, key.n = 65;
    EXPECT_EQ(table.find(key), nullptr);
    EXPECT_EQ(parse_kernels(kernels_text(table), "again"), table);
    EXPECT_EQ(still_valid(table, 130200).choices.size(), 3U) << "our kernels' bits do not depend on the library";
    EXPECT_THROW(parse_kernels(std::string(text).replace(text.find("portable"), 8, "sm90"), "test.json"), Error);
}

TEST(KernelTable, RefusesWhatItCannotRun) {
    const auto with = [](const std::string& what, const std::string& instead) {
        std::string text = file;
        const std::size_t at = text.find(what);
        EXPECT_NE(at, std::string::npos) << what;
        return text.replace(at, what.size(), instead);
    };
    EXPECT_THROW(parse_kernels("{", "test.json"), Error);
    EXPECT_THROW(parse_kernels("{}", "test.json"), Error);
    for (const auto& [what, instead] : std::initializer_list<std::pair<std::string, std::string>>{
             {R"("op": "lora_dy")", R"("op": "lora")"},
             {R"("kernel": "portable")", R"("kernel": "sm90")"},          // takes two parameters, not three
             {R"("kernel": "portable")", R"("kernel": "library")"},       // there is no such product
             {R"("parameters": [1, 2, 16])", R"("parameters": [1, 2])"},  //
             {R"("parameters": [1, 2, 16])", R"("parameters": [1, 2, -16])"},
             {R"("tokens": [1, 128])", R"("tokens": [128, 1])"},
             {R"("tokens": [1, 128])", R"("token": [1, 128])"},
             {R"("wave": [6.17, 776.1])", R"("wave": [6.17])"},
             {R"("multiprocessors": 128)", R"("multiprocessors": 0)"},
             {R"("cublaslt": 130100)", R"("cublaslt": "13.1")"}})
        EXPECT_THROW(parse_kernels(with(what, instead), "test.json"), Error) << instead;
}

}  // namespace
}  // namespace unsloth::spec
