#include "unsloth/formats/safetensors.h"

#include <sys/resource.h>

#include <csignal>

#include "formats/support.h"

namespace unsloth::formats {
namespace {

using namespace test;

struct Malformed {
    const char* name;
    std::string header;
    std::string data;
    std::vector<std::string> words;  ///< what the message must say
};

const std::string eight(8, '\0');

std::vector<Malformed> malformed_files() {
    const auto entry = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
    return {
        {"EmptyHeader", "", "", {"does not start with '{'"}},
        {"ArrayHeader", "[1]", "", {"does not start with '{'"}},
        {"LeadingSpace", " {}", "", {"does not start with '{'"}},
        {"InvalidJson", "{\"w\":", "", {"not valid JSON"}},
        {"InvalidUtf8",
         "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         eight,
         {"not valid JSON"}},
        {"TrailingGarbage", "{} x", "", {"not valid JSON"}},
        {"DuplicateName",
         R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
         eight,
         {"'w'", "twice"}},
        {"DuplicateField",
         entry(R"("dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8])"),
         eight,
         {"'dtype'", "twice"}},
        {"UnknownDtype", entry(R"("dtype":"F3","shape":[8],"data_offsets":[0,8])"), eight, {"'w'", "'F3'"}},
        {"HalfAByte", entry(R"("dtype":"F4","shape":[15],"data_offsets":[0,8])"), eight, {"'w'", "60 bits"}},
        {"SixBitsTooLarge", entry(R"("dtype":"F6_E2M3","shape":[8],"data_offsets":[0,8])"), eight, {"takes 6"}},
        {"NumericDtype", entry(R"("dtype":3,"shape":[8],"data_offsets":[0,8])"), eight, {"'w'", "dtype"}},
        {"MissingDtype", entry(R"("shape":[8],"data_offsets":[0,8])"), eight, {"'w'", "no dtype"}},
        {"MissingShape", entry(R"("dtype":"U8","data_offsets":[0,8])"), eight, {"'w'", "no shape"}},
        {"MissingOffsets", entry(R"("dtype":"U8","shape":[8])"), eight, {"'w'", "no data_offsets"}},
        {"EntryIsNoObject", R"({"w":[1]})", eight, {"'w'", "no object"}},
        {"NegativeSize", entry(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])"), eight, {"'w'", "-8"}},
        {"FractionalSize", entry(R"("dtype":"U8","shape":[8.0],"data_offsets":[0,8])"), eight, {"'w'", "8.0"}},
        {"SizeAbove63Bits",
         entry(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8])"),
         eight,
         {"'w'", "9223372036854775808"}},
        {"ProductOverflows",
         entry(R"("dtype":"U8","shape":[4294967296,4294967296,2],"data_offsets":[0,8])"),
         eight,
         {"'w'", "overflows"}},
        // 2^61 + 1 elements of 8 bytes wrap around to exactly the 8 bytes that are there.
        {"BytesOverflow",
         entry(R"("dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8])"),
         eight,
         {"'w'", "overflows"}},
        {"ShapeTooSmall",
         entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"),
         eight,
         {"'w'", "[0, 8]", "takes 4"}},
        {"ShapeTooLarge", entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), eight, {"'w'", "takes 12"}},
        {"ReversedOffsets",
         entry(R"("dtype":"U8","shape":[8],"data_offsets":[8,0])"),
         eight,
         {"'w'", "[8, 0]", "reversed"}},
        {"BeyondTheEnd", entry(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), eight, {"'w'", "[0, 9]", "beyond"}},
        {"HugeOffset",
         entry(R"("dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615])"),
         eight,
         {"'w'", "beyond"}},
        {"OffsetOverflow",
         entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551624])"),
         eight,
         {"'w'", "not two offsets"}},
        {"NegativeOffset", entry(R"("dtype":"U8","shape":[8],"data_offsets":[-8,0])"), eight, {"'w'", "-8"}},
        {"OneOffset", entry(R"("dtype":"U8","shape":[8],"data_offsets":[8])"), eight, {"'w'", "not two offsets"}},
        {"Overlap",
         R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
         eight,
         {"'b'", "[4, 8]", "overlap"}},
        {"SameBytes",
         R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
         eight,
         {"overlap"}},
        {"HoleAtStart", entry(R"("dtype":"U8","shape":[4],"data_offsets":[4,8])"), eight, {"'w'", "[4, 8]", "hole"}},
        {"HoleBetween",
         R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
         eight,
         {"'b'", "hole", "ends at 3"}},
        {"EndsTooEarly", entry(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), eight, {"end at 4", "8"}},
        {"DataWithoutTensors", "{}", eight, {"end at 0", "8"}},
        {"MetadataIsNoObject", R"({"__metadata__":3})", "", {"__metadata__"}},
        {"MetadataOfNumbers", R"({"__metadata__":{"step":3}})", "", {"__metadata__", "step"}},
        {"DeepNesting", "{\"w\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "", {"nests deeper"}},
    };
}

class MalformedSafetensors : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRefused) {
    const ScratchFolder folder;
    const fs::path path = folder / "bad.safetensors";
    write_raw(path, GetParam().header, GetParam().data);
    auto words = GetParam().words;
    words.push_back("bad.safetensors");
    expect_input_error(words, [&] { SafetensorsFile file(path); });
}

INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedSafetensors, testing::ValuesIn(malformed_files()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsFile, RefusesAHeaderThatTheFileCannotHold) {
    const ScratchFolder folder;
    const fs::path path = folder / "bad.safetensors";
    write_text(path, "");
    expect_error("checkpoint.damaged-file", {"shorter"}, [&] { SafetensorsFile file(path); });
    write_text(path, "{}");
    expect_error("checkpoint.damaged-file", {"shorter"}, [&] { SafetensorsFile file(path); });
    write_raw(path, 3, "{}", "");
    expect_error("checkpoint.damaged-file", {"longer than the file", "incomplete"},
                 [&] { SafetensorsFile file(path); });
    for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
        write_raw(path, length, "{}", "");
        expect_error("checkpoint.damaged-file", {"more than 100000000"}, [&] { SafetensorsFile file(path); });
    }
    expect_error("disk.cannot-read", {"no-such-file"}, [&] { SafetensorsFile file(folder / "no-such-file"); });
}

TEST(SafetensorsFile, EveryTruncationIsRefused) {
    const std::string whole = read_file(golden("formats/adapters/patterns/adapter_model.safetensors"));
    const ScratchFolder folder;
    const fs::path path = folder / "cut.safetensors";
    for (std::size_t size = 0; size < whole.size(); size += 1 + size / 16) {
        write_text(path, whole.substr(0, size));
        EXPECT_THROW(SafetensorsFile file(path), Error) << size << " bytes";
    }
    write_text(path, whole + "x");
    EXPECT_THROW(SafetensorsFile file(path), Error);
}

TEST(SafetensorsFile, ReadsWhatIsUnusualButRight) {
    const ScratchFolder folder;
    const fs::path path = folder / "odd.safetensors";
    write_raw(
        path,
        R"({"z":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"scalar":{"dtype":"BF16","shape":[],"data_offsets":[3,5]},)"
        R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[3,3]},"__metadata__":{"format":"pt"}}   )",
        "abc\x80\x3f");
    const SafetensorsFile file(path);
    ASSERT_EQ(file.tensors().size(), 3U);
    EXPECT_EQ(file.at("scalar").shape, std::vector<int64_t>{});
    EXPECT_EQ(file.at("scalar").elements(), 1);
    EXPECT_FALSE(file.at("scalar").is_aligned(2) && file.at("z").is_aligned(2)) << "3 bytes apart";
    EXPECT_EQ(file.at("empty").data.size(), 0U);
    EXPECT_EQ(file.at("z").data[2], std::byte{'c'});
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.find("absent"), nullptr);
    expect_error("checkpoint.missing-tensor", {"'absent'", "missing"}, [&] { file.at("absent"); });
    write_raw(path, "{}", "");
    EXPECT_TRUE(SafetensorsFile(path).tensors().empty());
}

/// Of the format's own library (0.8.0), which reads all of these.
TEST(SafetensorsFile, IsNoStricterThanTheFormatsLibrary) {
    const ScratchFolder folder;
    const fs::path path = folder / "odd.safetensors";
    const std::string entry = R"("shape":[8],"data_offsets":[0,8])";
    write_raw(path, R"({"__metadata__":null,"w":{"dtype":"U8",)" + entry + "}}", eight);
    EXPECT_TRUE(SafetensorsFile(path).metadata().empty());
    EXPECT_EQ(SafetensorsFile(path).at("w").elements(), 8);
    write_raw(path, R"({"w":{"dtype":"U8","later":1,)" + entry + "}}", eight);
    EXPECT_EQ(SafetensorsFile(path).at("w").elements(), 8);
    const std::vector<std::pair<const char*, int>> types = {
        {"U64", 64},        {"U32", 32},    {"U16", 16},    {"C64", 64},    {"F8_E4M3FNUZ", 8},
        {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
    for (const auto& [name, bits] : types) {
        const std::string data(static_cast<std::size_t>(bits), '\xff');
        write_raw(path, cat(R"({"w":{"dtype":")", name, R"(","shape":[2,4],"data_offsets":[0,)", bits, "]}}"), data);
        const SafetensorsFile file(path);
        EXPECT_EQ(safetensors_name(file.at("w").dtype), name);
        EXPECT_EQ(file.at("w").data.size(), data.size());
    }
}

TEST(SafetensorsFile, ViewsOutliveAMove) {
    SafetensorsFile first(golden("formats/adapters/patterns/adapter_model.safetensors"));
    const TensorView* const view = &first.tensors().front();
    const auto byte = view->data[0];
    const SafetensorsFile second = std::move(first);
    EXPECT_EQ(view, &second.tensors().front());
    EXPECT_EQ(view->data[0], byte);
    EXPECT_EQ(view->file->path(), second.path());
    view->drop();
    EXPECT_EQ(view->data[0], byte) << "dropped pages come back from the file";
}

std::vector<std::byte> bytes_of(const std::string& text) {
    const auto span = std::as_bytes(std::span(text));
    return {span.begin(), span.end()};
}

TEST(SafetensorsWriter, SortsNamesAndAlignsData) {
    const ScratchFolder folder;
    const fs::path path = folder / "out.safetensors";
    SafetensorsWriter writer(path, {{"b", spec::DType::u8, {3}},
                                    {"c", spec::DType::f32, {2}},
                                    {"a", spec::DType::u8, {5}},
                                    {"d", spec::DType::bf16, {1}}});
    ASSERT_EQ(writer.tensors().size(), 4U);
    EXPECT_EQ(writer.tensors().front().name, "c");
    writer.append("b", bytes_of("xyz"));
    writer.append("a", bytes_of("he"));
    writer.append("d", bytes_of("\x80?"));
    writer.append("a", bytes_of("llo"));  // piece by piece, between others
    writer.append("c", bytes_of(std::string("\0\0\x80\x3f\0\0\0\x40", 8)));
    EXPECT_FALSE(fs::exists(path)) << "a half-written file must not stand under its name";
    writer.finish();

    const std::string raw = read_file(path);
    EXPECT_EQ(raw.size(), writer.file_size());
    uint64_t length = 0;
    std::memcpy(&length, raw.data(), sizeof length);
    EXPECT_EQ(length % 8, 0U);
    const std::string header = raw.substr(8, length);
    EXPECT_EQ(
        header.substr(0, header.find_last_not_of(' ') + 1),
        R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[10,15],"dtype":"U8","shape":[5]},"b":{"data_offsets":[15,18],)"
        R"("dtype":"U8","shape":[3]},"c":{"data_offsets":[0,8],"dtype":"F32","shape":[2]},"d":{"data_offsets":[8,10],"dtype":"BF16","shape":[1]}})");
    const SafetensorsFile file(path);
    for (const TensorView& tensor : file.tensors())
        EXPECT_EQ(tensor.file_offset % spec::size_of(tensor.dtype), 0U) << tensor.name;
    EXPECT_EQ(std::memcmp(file.at("a").data.data(), "hello", 5), 0);
    EXPECT_EQ(reinterpret_cast<const float*>(file.at("c").data.data())[1], 2.0F);
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenAbandoned) {
    const ScratchFolder folder;
    write_text(folder / "out.safetensors", "the old file");
    {
        SafetensorsWriter writer(folder / "out.safetensors", {{"a", spec::DType::u8, {4}}});
        writer.append("a", bytes_of("abc"));
        EXPECT_THROW(writer.append("a", bytes_of("de")), CheckError);
        EXPECT_THROW(writer.append("b", bytes_of("d")), CheckError);
        EXPECT_THROW(writer.finish(), CheckError) << "a byte is missing";
    }
    EXPECT_EQ(read_file(folder / "out.safetensors"), "the old file");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
    EXPECT_THROW(SafetensorsWriter(folder / "x", {{"a", spec::DType::u8, {1}}, {"a", spec::DType::u8, {1}}}),
                 CheckError);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(SafetensorsWriter, ReportsAFolderThatIsNotThere) {
    const ScratchFolder folder;
    expect_error("disk.cannot-write", {"nowhere/out.safetensors"},
                 [&] { SafetensorsWriter writer(folder / "nowhere/out.safetensors", {{"a", spec::DType::u8, {1}}}); });
}

TEST(SafetensorsWriter, ReportsAFullDiskAndCleansUp) {
    // A limit on file sizes stands in for a full disk: the system refuses the same calls, with EFBIG.
    const ScratchFolder folder;
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit small = before;
    small.rlim_cur = 4096;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_error("disk.full", {"big.safetensors"}, [&] {
        SafetensorsWriter writer(folder / "big.safetensors", {{"a", spec::DType::u8, {100'000}}});
        writer.append("a", std::vector<std::byte>(100'000));
        writer.finish();
    });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, old_handler);
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace unsloth::formats
