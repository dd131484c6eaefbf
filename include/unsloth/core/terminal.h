// How large a terminal is, and what it may be sent in addition to text: decided here for all commands.
#pragma once

namespace unsloth {

/// Whether the descriptor is a terminal that takes escape sequences, so that lines may be drawn over: TERM=dumb is
/// none.
bool takes_escapes(int descriptor);

/// Whether its text may be coloured too: not where NO_COLOR is set to something (https://no-color.org).
bool takes_colours(int descriptor);

struct TextSize {
    int columns = 80, rows = 40;
};

/// Of the terminal that the descriptor is; where COLUMNS or LINES says less, that much. Where it is none, what they
/// say, or else the usual size.
TextSize text_size(int descriptor);

}  // namespace unsloth
