// `unsloth-train tokenize --measure N`: the speed of encoding, without reading and writing JSON.
#pragma once

#include <istream>
#include <ostream>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

/// Reads all rows of {"text"}, encodes them `rounds` times on the calling thread, and writes one object:
///   {"rows", "bytes", "tokens", "seconds": [of each round]}
/// Input Error with the line number for anything but rows with a text.
void measure_encoding(const Tokenizer& tokenizer, bool add_special, int rounds, std::istream& in, std::ostream& out);

}  // namespace unsloth::tokenizer
