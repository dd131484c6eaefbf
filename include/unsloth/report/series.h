// Curves over the steps of a run, thinned to what a display can show.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/report/run.h"

namespace unsloth::report {

using Points = std::vector<std::pair<double, double>>;  ///< (step, value), by step; values are finite

Points points_of(const Run& run, double StepRow::* field);
Points eval_points(const Run& run);

/// At most about `most` points: of each stretch of steps its least and its greatest value, in their order, so that no
/// spike vanishes.
Points thinned(const Points& points, std::size_t most);
/// The exponential mean over so many points that about `windows` of them fit, without a bias towards the first.
Points smoothed(const Points& points, int windows = 25);

/// Round values, about `count` of them, that cover [low, high].
std::vector<double> ticks(double low, double high, int count);
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
