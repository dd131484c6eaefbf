// The container: what is written is read back, what others wrote is read, and nothing damaged is.
#include <cstring>

#include "formats/support.h"
#include "unsloth/formats/gguf.h"
#include "unsloth/formats/inspect.h"

namespace unsloth::formats {
namespace {

using namespace test;

const std::string foreign_file = golden("gguf/every_type.gguf").string();

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

/// A file of two tensors, the first of a size that needs padding.
void write_small(const fs::path& path) {
    GgufMetadata metadata;
    metadata.add("general.architecture", "llama");
    metadata.add("a.number", uint32_t{7});
    metadata.add("a.real", 0.5F);
    metadata.add("a.flag", true);
    metadata.add("a.texts", std::vector<std::string>{"x", "", "longer"});
    metadata.add("a.integers", std::vector<int32_t>{-1, 5});
    metadata.add("a.reals", std::vector<float>{1.5F});
    GgufWriter writer(path, metadata, {{"first", GgmlType::f32, {1, 3}}, {"second", GgmlType::q8_0, {2, 32}}});
    writer.append("first", bytes_of({1, 2}));
    writer.append("first", bytes_of({3}));
    writer.append("second", std::vector<std::byte>(68, std::byte{9}));
    EXPECT_FALSE(fs::exists(path));
    writer.finish();
}

TEST(Gguf, ReadsBackWhatItWrote) {
    const ScratchFolder folder;
    write_small(folder / "m.gguf");
    const GgufFile file(folder / "m.gguf");
    EXPECT_EQ(file.version(), 3U);
    EXPECT_EQ(file.size() % 32, 0U);
    ASSERT_EQ(file.fields().size(), 7U);
    EXPECT_EQ(file.find_field("general.architecture")->text(), "llama");
    EXPECT_EQ(file.find_field("a.number")->integer(), 7);
    EXPECT_EQ(file.find_field("a.real")->number(), 0.5);
    EXPECT_EQ(file.find_field("a.flag")->summary(), "true");
    EXPECT_EQ(file.find_field("a.texts")->texts(), (std::vector<std::string>{"x", "", "longer"}));
    EXPECT_EQ(file.find_field("a.integers")->summary(), "2 x i32");
    EXPECT_EQ(file.find_field("b"), nullptr);
    ASSERT_EQ(file.tensors().size(), 2U);
    const GgufTensor& first = *file.find_tensor("first");
    EXPECT_EQ(first.shape, (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(std::vector<std::byte>(first.data.begin(), first.data.end()), bytes_of({1, 2, 3}));
    EXPECT_EQ(file.find_tensor("second")->type->name, "Q8_0");
    EXPECT_EQ(file.find_tensor("second")->data[67], std::byte{9});
}

TEST(Gguf, ReadsWhatThePythonPackageWrote) {
    const GgufFile file(foreign_file);
    const auto integer = [&](const char* key) { return file.find_field(key)->integer(); };
    EXPECT_EQ(integer("test.u8"), 200);
    EXPECT_EQ(integer("test.i8"), -100);
    EXPECT_EQ(integer("test.u16"), 60000);
    EXPECT_EQ(integer("test.i16"), -30000);
    EXPECT_EQ(integer("test.u32"), 4000000000);
    EXPECT_EQ(integer("test.i32"), -2000000000);
    EXPECT_EQ(integer("test.i64"), -(int64_t{1} << 62));
    EXPECT_EQ(integer("test.u64"), std::nullopt);
    EXPECT_EQ(file.find_field("test.f32")->number(), 0.5);
    EXPECT_EQ(file.find_field("test.f64")->number(), -0.25);
    EXPECT_EQ(file.find_field("test.string")->text(), "snowman ☃ and more");
    EXPECT_EQ(file.find_field("test.strings")->texts(), (std::vector<std::string>{"a", "", "ccc"}));
    EXPECT_EQ(file.find_tensor("a.weight")->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.find_tensor("b.weight")->data.size(), 3 * 2 * 34U);
    EXPECT_EQ(file.find_tensor("c.weight")->type->name, "F16");
}

TEST(Gguf, RefusesAFileThatWasCutOffAnywhere) {
    const ScratchFolder folder;
    for (const fs::path& source : {fs::path(foreign_file), folder / "m.gguf"}) {
        if (!fs::exists(source)) write_small(source);
        const std::string whole = read_file(source);
        const std::size_t padding = 32;  // behind the last tensor, which readers need not find
        for (std::size_t size = 0; size + padding < whole.size(); ++size) {
            write_text(folder / "cut.gguf", whole.substr(0, size));
            EXPECT_THROW(GgufFile(folder / "cut.gguf"), Error) << size << " bytes of " << whole.size();
        }
    }
}

TEST(Gguf, NeverReadsBeyondAFileWithAChangedByte) {
    const ScratchFolder folder;
    write_small(folder / "m.gguf");
    const std::string whole = read_file(folder / "m.gguf");
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (const char value : {'\0', '\x01', '\x7F', '\xFF'}) {
            std::string changed = whole;
            changed[at] = value;
            write_text(folder / "changed.gguf", changed);
            try {
                const GgufFile file(folder / "changed.gguf");
                for (const GgufField& field : file.fields()) (void)field.summary(), (void)field.texts();
                for (const GgufTensor& tensor : file.tensors()) EXPECT_LE(tensor.data.size(), whole.size());
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::input);
                ++refused;
            }
        }
    EXPECT_GT(refused, 500);
}

/// Bytes of a file by hand: numbers are little-endian.
struct Raw {
    std::string bytes;
    template <class T>
    Raw& put(T value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Raw& text(const std::string& value) { return put<uint64_t>(value.size()).raw(value); }
    Raw& raw(const std::string& value) { return bytes += value, *this; }
    static Raw header(uint64_t tensors, uint64_t fields) {
        return Raw{}.raw("GGUF").put<uint32_t>(3).put(tensors).put(fields);
    }
    Raw& tensor(const std::string& name, uint64_t cols, uint32_t type, uint64_t offset) {
        return text(name).put<uint32_t>(1).put(cols).put(type).put(offset);
    }
};

void expect_refused(const Raw& raw, const std::vector<std::string>& words) {
    const ScratchFolder folder;
    write_text(folder / "bad.gguf", raw.bytes + std::string(256, '\0'));
    expect_input_error(words, [&] { GgufFile(folder / "bad.gguf"); });
}

/// As the Python package writes a number, and llama.cpp reads it.
TEST(Gguf, ReadsAScalar) {
    const ScratchFolder folder;
    const auto scalar = [&](uint32_t type) {
        Raw raw = Raw::header(1, 0).text("one").put<uint32_t>(0).put(type).put<uint64_t>(0);
        raw.bytes.resize((raw.bytes.size() + 31) / 32 * 32);
        write_text(folder / "scalar.gguf", raw.put(3.5F).bytes);
        return GgufFile(folder / "scalar.gguf");
    };
    const GgufFile file = scalar(0);
    const GgufTensor& one = file.tensors().at(0);
    EXPECT_TRUE(one.shape.empty());
    EXPECT_EQ(one.elements(), 1);
    EXPECT_EQ(one.data.size(), sizeof(float));
    expect_error("checkpoint.damaged-file", {"rows of 1 are no multiple of Q8_0's block of 32"}, [&] { scalar(8); });
}

TEST(Gguf, NamesWhatIsWrong) {
    const auto field = [](const std::string& key, uint32_t type) { return Raw::header(0, 1).text(key).put(type); };
    expect_refused(Raw{}.raw("PK\x03\x04"), {"not a GGUF file"});
    expect_refused(Raw{}.raw("GGUF").put<uint32_t>(1), {"version 1"});
    expect_refused(Raw::header(0, uint64_t{1} << 62), {"a field's key"});
    expect_refused(field("", 4), {"key has 0 bytes"});
    expect_refused(field("k\n", 4), {"printable ASCII"});
    expect_refused(field("k", 13), {"'k'", "value type 13"});
    expect_refused(field("k", 8).put<uint64_t>(uint64_t{1} << 63), {"'k'", "takes 9223372036854775808 bytes"});
    expect_refused(field("k", 9).put<uint32_t>(9).put<uint64_t>(1), {"array of arrays"});
    expect_refused(field("k", 9).put<uint32_t>(12).put<uint64_t>(uint64_t{1} << 61), {"do not fit"});
    expect_refused(Raw::header(0, 2).text("k").put<uint32_t>(7).raw("\1").text("k").put<uint32_t>(7).raw("\1"),
                   {"twice"});
    expect_refused(field("general.alignment", 4).put<uint32_t>(24), {"power of two"});
    expect_refused(Raw::header(1, 0).tensor(std::string(64, 'n'), 4, 0, 0), {"64 bytes; expected 1 to 63"});
    expect_refused(Raw::header(1, 0).tensor("t", 4, 36, 0), {"'t'", "type 36"});
    expect_refused(Raw::header(1, 0).tensor("t", 33, 8, 0), {"rows of 33", "Q8_0"});
    expect_refused(Raw::header(1, 0).tensor("t", 0, 0, 0), {"dimension 0 of 0"});
    expect_refused(Raw::header(1, 0).tensor("t", uint64_t{1} << 63, 0, 0), {"dimension 0"});
    expect_refused(Raw::header(1, 0).tensor("t", uint64_t{1} << 40, 0, 0), {"more than the file"});
    expect_refused(Raw::header(1, 0).tensor("t", 4, 0, 64), {"offset 64", "ends at 0"});
    expect_refused(Raw::header(2, 0).tensor("t", 4, 0, 0).tensor("t", 4, 0, 32), {"'t' is there twice"});
    expect_refused(Raw::header(1, 0).text("t").put<uint32_t>(5), {"5 dimensions"});
}

TEST(Gguf, WritesOnlyWhatWasDeclared) {
    const ScratchFolder folder;
    GgufMetadata metadata;
    metadata.add("k", "v");
    EXPECT_THROW(metadata.add("k", "w"), CheckError);
    const fs::path path = folder / "m.gguf";
    const auto declared = [&](std::vector<GgufTensorDecl> tensors) { GgufWriter(path, metadata, std::move(tensors)); };
    EXPECT_THROW(declared({{"t", GgmlType::q8_0, {33}}}), CheckError);
    EXPECT_THROW(declared({{"t", GgmlType::f32, {1}}, {"t", GgmlType::f32, {1}}}), CheckError);
    EXPECT_THROW(declared({{std::string(64, 'n'), GgmlType::f32, {1}}}), CheckError);
    {
        GgufWriter writer(path, metadata, {{"a", GgmlType::f32, {2}}, {"b", GgmlType::f32, {1}}});
        EXPECT_THROW(writer.append("b", bytes_of({1})), CheckError);
        EXPECT_THROW(writer.append("a", bytes_of({1, 2, 3})), CheckError);
        writer.append("a", bytes_of({1, 2}));
        EXPECT_THROW(writer.finish(), CheckError);
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
    expect_error("disk.cannot-write", {"nowhere"}, [&] { GgufWriter(folder / "nowhere/m.gguf", metadata, {}); });
}

TEST(Gguf, IsInspected) {
    const ScratchFolder folder;
    write_small(folder / "m.gguf");
    const Inspection sound = inspect_path((folder / "m.gguf").string());
    EXPECT_TRUE(sound.ok());
    EXPECT_EQ(sound.kind, "gguf");
    EXPECT_EQ(sound.parameters, 3 + 64);
    EXPECT_EQ(sound.kinds, (std::map<std::string, int64_t>{{"F32", 1}, {"Q8_0", 1}}));
    const std::string text = inspect_text(sound);
    for (const char* const words :
         {"kind          gguf", "a.texts: 3 x string", "second  Q8_0 [2, 32]", "problems      none"})
        EXPECT_NE(text.find(words), std::string::npos) << words << " is not in:\n" << text;
    EXPECT_EQ(nlohmann::json::parse(inspect_json(sound)).at("fields").at("a.number"), "7");
    write_text(folder / "bad.gguf", "GGUF");
    EXPECT_FALSE(inspect_path((folder / "bad.gguf").string()).ok());
}

}  // namespace
}  // namespace unsloth::formats
