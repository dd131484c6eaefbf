// What one row may take of the memory: ten times its bytes and 64 MiB, whatever is in it; else it is a bad row.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "data/toy.h"
#include "unsloth/core/memory_budget.h"
#include "unsloth/data/encoder.h"

namespace unsloth::data {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

int64_t resident_bytes() {
    int64_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
}

struct Outcome {
    int64_t growth = 0;  ///< of the process' memory at its peak, bytes
    std::string error;   ///< empty: the row was taken
};

/// Loads a file of one row with one thread in a process of its own.
Outcome load(const std::filesystem::path& file, const std::string& tokenizer, const std::string& chat_template) {
    const auto encoder =
        make_row_encoder(tokenizer::Tokenizer::load(toy::golden("tokenizer/" + tokenizer)), chat_template);
    encoder->text("warm");
    ::malloc_trim(0);  // what is free in this process would hide what the other one takes
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid == 0) {
        Outcome outcome;
        const int64_t before = resident_bytes();
        try {
            DatasetOptions options;
            options.workers = 1;
            Dataset::load(file, options, encoder.get());
        } catch (const Error& error) {
            outcome.error = error.what();
        } catch (const std::exception& error) {
            outcome.error = cat("escaped: ", error.what());
        }
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        const int64_t growth = usage.ru_maxrss * 1024 - before;
        const bool told = ::write(ends[1], &growth, sizeof growth) > 0 &&
                          ::write(ends[1], outcome.error.data(), outcome.error.size()) >= 0;
        ::_exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    Outcome outcome;
    const auto unread = ::read(ends[0], &outcome.growth, sizeof outcome.growth);
    char text[4096];
    for (ssize_t size; (size = ::read(ends[0], text, sizeof text)) > 0;)
        outcome.error.append(text, static_cast<std::size_t>(size));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(unread == sizeof outcome.growth && WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return outcome;
}

std::string repeated(const std::string& text, int64_t bytes) {
    std::string all;
    all.reserve(static_cast<std::size_t>(bytes) + text.size());
    while (static_cast<int64_t>(all.size()) < bytes) all += text;
    return all;
}

std::string as_text(const std::string& value) {
    return R"({"text": ")" + value + "\"}\n";
}

std::string as_turns(const std::string& value) {
    return R"({"messages": [{"role": "user", "content": ")" + value + R"("}, {"role": "assistant", "content": "x"}]})" +
           "\n";
}

std::string as_column(const std::string& value) {
    return R"({"text": "a", "x": )" + value + "}\n";
}

enum class Expect { taken, refused, either };

struct Case {
    const char* name;
    const char* tokenizer;
    const char* chat_template;  ///< its source; empty: auto
    Expect expect;
    std::string (*row)();
};

void PrintTo(const Case& row, std::ostream* out) {
    *out << row.name;
}

class RowMemory : public testing::TestWithParam<Case> {};

TEST_P(RowMemory, IsBounded) {
    if (!MemoryBudget::counts()) GTEST_SKIP() << "this build has a sanitizer's operator new";
    const Case& row = GetParam();
    const toy::Folder folder;
    const auto file = folder.write("a.jsonl", row.row());
    const std::string chat_template =
        *row.chat_template == '\0' ? "auto" : folder.write("t.jinja", row.chat_template).string();
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    const Outcome outcome = load(file, row.tokenizer, chat_template);
    RecordProperty("row_bytes", std::to_string(size));
    RecordProperty("growth_bytes", std::to_string(outcome.growth));
    EXPECT_LE(outcome.growth, 10 * size + 64 * mib) << outcome.error;
    EXPECT_TRUE(row.expect != Expect::taken || outcome.error.empty()) << outcome.error;
    EXPECT_TRUE(row.expect != Expect::refused || !outcome.error.empty());
    EXPECT_TRUE(outcome.error.empty() || outcome.error.find("a.jsonl:1: ") != std::string::npos) << outcome.error;
}

constexpr int64_t mb = 1'000'000;
constexpr const char* prose =
    "The quick brown fox jumps over the lazy dog, and 12 others (who were \\\"tired\\\") watched it; then they left. ";
constexpr const char *llama3 = "llama3_small", *qwen = "qwen_small", *llama2 = "llama2_small",
                     *letters = "thequickbrownfox";

const Case cases[] = {
    {"Prose", llama3, "", Expect::taken, [] { return as_text(repeated(prose, 6 * mb)); }},
    {"ProseSentencePiece", llama2, "", Expect::taken, [] { return as_text(repeated(prose, 6 * mb)); }},
    {"Conversation", llama3, "", Expect::taken, [] { return as_turns(repeated(prose, 2 * mb)); }},
    {"LongWord", llama3, "", Expect::either, [] { return as_text(repeated(letters, 10 * mb)); }},
    {"LongWordSentencePiece", llama2, "", Expect::either, [] { return as_text(repeated(letters, 10 * mb)); }},
    {"LongWordOfATurn", llama3, "", Expect::either, [] { return as_turns(repeated(letters, 10 * mb)); }},
    {"ShortWords", llama3, "", Expect::either, [] { return as_turns(repeated("a.b,c:", 10 * mb)); }},
    {"UnknownCharacters", llama2, "", Expect::either, [] { return as_turns(repeated("\u5b57", 10 * mb)); }},
    {"Accents", qwen, "", Expect::either, [] { return as_turns(repeated("e\u0301", 10 * mb)); }},
    {"SpecialTokens", llama3, "", Expect::either, [] { return as_text(repeated("<|eot_id|>", 10 * mb)); }},
    {"TemplateRepeats", llama3, "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}", Expect::refused,
     [] { return as_turns(repeated(prose, mb)); }},
    {"TemplateDoubles", llama3,
     "{% set ns = namespace(s=messages[0].content) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
     "{{ ns.s }}",
     Expect::refused, [] { return as_turns(repeated(prose, mb)); }},
    {"TemplateKeeps", llama3,
     "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l, messages[0].content ~ i] %}"
     "{% endfor %}",
     Expect::refused, [] { return as_turns(repeated(prose, mb)); }},
    {"DeepJson", llama3, "", Expect::refused, [] { return as_column(std::string(10 * mb, '[')); }},
    {"Lists", llama3, "", Expect::refused, [] { return as_column("[" + repeated("[0],", 10 * mb) + "0]"); }},
    {"Objects", llama3, "", Expect::refused, [] { return as_column("[" + repeated(R"({"":{}},)", 10 * mb) + "0]"); }},
    {"Turns", llama3, "", Expect::either,
     [] {
         return R"({"messages": [)" +
                repeated(R"({"role":"user","content":""},{"role":"assistant","content":""},)", 10 * mb) +
                R"({"role":"user","content":""}]})" + "\n";
     }},
    {"Tokens", llama3, "", Expect::either, [] { return R"({"input_ids": [)" + repeated("1,", 10 * mb) + "1]}\n"; }},
};

INSTANTIATE_TEST_SUITE_P(Rows, RowMemory, testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace unsloth::data
