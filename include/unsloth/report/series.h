// Curves over the steps of a run, thinned to what a display can show.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/report/run.h"

namespace unsloth::report {

using Points = std::vector<std::pair<double, double>>;  ///< (step, value), by step; values are finite

Points points_of(const Run& run, double StepRow::* field);
Points eval_points(const Run& run);
/// What an evaluation says first, by its name: "reward" of completions, else "loss".
std::pair<std::string, double> judged_by(const EvalRow& row);

/// At most about `most` points: of each stretch of steps its least and its greatest value, in their order, so that no
/// spike vanishes.
Points thinned(const Points& points, std::size_t most);
/// The exponential mean over as many points as fit about `windows` times, without a bias towards the first.
Points smoothed(const Points& points, int windows = 25);

/// What an axis shows.
struct Axis {
    double low = INFINITY, high = -INFINITY;

    /// Widens it to a value; one that is not finite is ignored.
    void include(double value);
    bool empty() const { return !(high >= low); }
    /// Gives it a width: by a share of it at both ends, or, where its values agree in five digits, by a tenth of them.
    /// Ends stay finite, and an axis of values from 0 on begins at 0 or above.
    void widen(double share = 0);
    /// A value's position between the ends of an axis that has a width: 0 at the low one, 1 at the high one.
    double share_of(double value) const;
};

/// At most count + 1 round values within the axis, each greater than the one before; its low end where there are none.
std::vector<double> ticks(const Axis& axis, int count);
/// "0.0012", "1.3k", "2.5M", "1e-05": short and readable.
std::string short_number(double value);

/// What both displays show of a run, in this order.
struct Curve {
    const char* key;
    const char* title;
    const char* unit;
    double StepRow::* field;  ///< null: the figure of that key among a row's `more`
};
const std::vector<Curve>& curves();
Points points_of(const Run& run, const Curve& curve);
/// What evaluations have of the same figure.
Points eval_points(const Run& run, const Curve& curve);

/// "10.5 GiB", "35.4 MiB"; "-" for none.
std::string memory_text(double gib);

}  // namespace unsloth::report
