// Functions that every template can call.
#include <ctime>
#include <map>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/objects.h"
#include "tokenizer/jinja/print.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

constexpr int64_t longest_range = 100'000;  // the sandbox's own limit

Value make_range(Evaluator& evaluator, Arguments& arguments) {
    const Bound bound("range", arguments, {"start", "stop", "step"}, 1, true);
    for (std::size_t i = 0; i < 3; ++i) {
        if (bound.has(i) && !bound[i].is_integral())
            fail(cat("'", type_name(bound[i]), "' object cannot be interpreted as an integer"));
    }
    const bool one = !bound.has(1);
    auto range = std::make_shared<Sequence>(Sequence::Kind::range, Items());
    range->start = one ? 0 : bound.integer_or(0, 0);
    range->stop = one ? bound.integer_or(0, 0) : bound.integer_or(1, 0);
    range->step = bound.integer_or(2, 1);
    if (range->step == 0) fail("range() arg 3 must not be zero");
    const Integer span = range->step > 0 ? Integer{range->stop} - range->start : Integer{range->start} - range->stop;
    const Integer step = range->step > 0 ? Integer{range->step} : -Integer{range->step};
    const Integer count = span > 0 ? (span + step - 1) / step : 0;
    if (count > longest_range) {
        fail(cat("Range too big. The sandbox blocks ranges larger than MAX_RANGE (", longest_range, ")."));
    }
    evaluator.charge(static_cast<int64_t>(count));
    for (Integer i = 0; i < count; ++i) range->items.emplace_back(range->start + i * range->step);
    return range;
}

/// The entries of dict(pairs_or_mapping, **named) and namespace(…).
std::shared_ptr<Dict> entries(const char* function, const Arguments& arguments) {
    auto dict = std::make_shared<Dict>();
    if (arguments.positional.size() > 1)
        fail(cat(function, " expected at most 1 argument, got ", arguments.positional.size()));
    if (!arguments.positional.empty()) {
        const Value& source = arguments.positional[0];
        if (source.is(Value::Kind::dict)) {
            for (const auto& [key, value] : source.dict().entries()) dict->set(key, value);
        } else {
            for (const Value& pair : iterate(source)) {
                const Items parts = iterate(pair);
                if (parts.size() != 2)
                    fail(cat("dictionary update sequence element has length ", parts.size(), "; 2 is required"));
                dict->set(parts[0], parts[1]);
            }
        }
    }
    for (const auto& [name, value] : arguments.named) dict->set(Value(name), value);
    return dict;
}

Value make_dict(Evaluator&, Arguments& arguments) {
    return entries("dict", arguments);
}

Value make_namespace(Evaluator& evaluator, Arguments& arguments) {
    const auto space = std::make_shared<Namespace>();
    const std::shared_ptr<Dict> attributes = entries("namespace", arguments);
    for (const auto& [key, value] : attributes->entries()) {
        if (key.is_string()) space->set(key.string(), value);
    }
    evaluator.keep(space);
    return std::static_pointer_cast<Object>(space);
}

Value raise_exception(Evaluator&, Arguments& arguments) {
    const Bound bound("raise_exception", arguments, {"message"}, 1);
    fail(to_string(bound[0]));
}

Value strftime_now(Evaluator&, Arguments& arguments) {
    const Bound bound("strftime_now", arguments, {"format"}, 1);
    const std::string& format = bound.string(0);
    if (format.size() > 1000) fail("a time format of more than 1000 bytes");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    // An empty result and one that does not fit look the same to strftime: a space in front tells them apart.
    std::string out(16'384, '\0');
    out.resize(std::strftime(out.data(), out.size(), (" " + format).c_str(), &local));
    return out.empty() ? Value("") : Value(out.substr(1));
}

Value lipsum(Evaluator&, Arguments&) {
    fail("lipsum() is random: not supported in chat templates");
}

class Cycler : public Object {
  public:
    explicit Cycler(Items items) : items_(std::move(items)) {}
    ~Cycler() override { release(std::move(items_)); }
    const char* type_name() const override { return "Cycler"; }
    std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
    std::shared_ptr<Cycler> self() { return self_.lock(); }
    void set_self(const std::shared_ptr<Cycler>& self) { self_ = self; }
    Value next() {
        Value item = items_[position_];
        position_ = (position_ + 1) % items_.size();
        return item;
    }
    void reset() { position_ = 0; }

  private:
    Items items_;
    std::size_t position_ = 0;
    std::weak_ptr<Cycler> self_;
};

std::optional<Value> Cycler::attribute(Evaluator&, std::string_view name) {
    if (name == "current") return items_[position_];
    if (name != "next" && name != "reset") return std::nullopt;
    const bool moves = name == "next";
    return Value(std::shared_ptr<Object>(
        std::make_shared<NativeFunction>("method", [cycler = self(), moves](Evaluator&, Arguments&) -> Value {
            if (moves) return cycler->next();
            cycler->reset();
            return {};
        })));
}

Value make_cycler(Evaluator&, Arguments& arguments) {
    if (arguments.positional.empty()) fail("at least one item has to be provided");
    const auto cycler = std::make_shared<Cycler>(arguments.positional);
    cycler->set_self(cycler);
    return std::static_pointer_cast<Object>(cycler);
}

Value make_joiner(Evaluator&, Arguments& arguments) {
    const Bound bound("joiner", arguments, {"sep"}, 0);
    const Value separator = bound.value_or(0, Value(", "));
    return std::shared_ptr<Object>(
        std::make_shared<NativeFunction>("Joiner", [separator, used = false](Evaluator&, Arguments&) mutable -> Value {
            return std::exchange(used, true) ? separator : Value("");
        }));
}

Value function(const char* type, NativeFunction::Function f) {
    return std::shared_ptr<Object>(std::make_shared<NativeFunction>(type, std::move(f)));
}

}  // namespace

std::optional<Value> find_global(std::string_view name) {
    // Immutable, so that renderings on several threads share them.
    static const std::map<std::string, Value, std::less<>> globals = {
        {"range", function("function", make_range)},
        {"dict", function("TemplateDict", make_dict)},
        {"namespace", function("type", make_namespace)},
        {"raise_exception", function("function", raise_exception)},
        {"strftime_now", function("function", strftime_now)},
        {"lipsum", function("function", lipsum)},
        {"cycler", function("type", make_cycler)},
        {"joiner", function("type", make_joiner)},
    };
    const auto found = globals.find(name);
    return found == globals.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace unsloth::tokenizer::jinja
