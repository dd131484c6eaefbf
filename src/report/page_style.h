// The fixed parts of a run's page.
#pragma once

namespace unsloth::report {

// Of the drawings, on a page and as a file of their own.
inline constexpr const char* chart_style = R"css(
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #fff; --ink: #1b2330; --soft: #5d6b7e; --rule: #dde2ea;
  --line: #1769d2; --faint: #9cc0ee; --second: #d2541b; --good: #1c7c3c; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --bg: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #9aa7b8; --rule: #303948;
  --line: #6db1ff; --faint: #2f5580; --second: #ff9d6b; --good: #6fd48f; --bad: #ff8a80; } }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .title { fill: var(--ink); font-size: 15px; font-weight: 600; }
svg .card { fill: var(--card); stroke: var(--rule); } svg .cursor { stroke: var(--soft); visibility: hidden; }
svg .grid { stroke: var(--rule); } svg polyline { fill: none; stroke-linejoin: round; }
svg .raw { stroke: var(--faint); stroke-width: 1; } svg .main { stroke: var(--line); stroke-width: 1.8; }
svg .plan { stroke: var(--second); stroke-width: 1.5; stroke-dasharray: 5 4; } svg .eval, svg .second { fill: var(--second); }
svg .column { fill: var(--line); } svg .rule { fill: var(--rule); }
)css";

inline constexpr const char* page_style = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: .95rem; margin: 0 0 6px; font-weight: 600; }
.state { color: var(--soft); margin: 2px 0 10px; overflow-wrap: anywhere; }
.state .finished { color: var(--good); } .state .failed { color: var(--bad); }
.bar { height: 6px; background: var(--rule); border-radius: 3px; overflow: hidden; margin-bottom: 14px; }
.bar div { height: 100%; background: var(--line); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); gap: 10px; margin-bottom: 14px; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; min-width: 0; }
.tile b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); font-size: .82rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); gap: 12px; }
svg { display: block; width: 100%; height: auto; }
.legend { color: var(--soft); font-size: .82rem; margin-top: 4px; min-height: 1.3em; }
.legend .second { color: var(--second); }
details { margin-top: 14px; } summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; margin-top: 6px; } td { border-top: 1px solid var(--rule); padding: 3px 6px; vertical-align: top; }
td:last-child { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; }
.answers td:first-child { color: var(--soft); white-space: nowrap; } .answers td:last-child { white-space: pre-wrap; }
figure { display: inline-block; margin: 6px 12px 0 0; vertical-align: top; } figcaption { color: var(--soft); font-size: .82rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 8px 0 0; font: .85rem/1.45 ui-monospace, monospace; }
th { text-align: left; padding-top: 10px; } footer { color: var(--soft); font-size: .8rem; margin-top: 16px; }
)css";

// The value under the pointer or the finger; without scripts the page loses nothing else.
inline constexpr const char* page_script = R"js(
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const points = JSON.parse(svg.dataset.points), legend = svg.parentNode.querySelector(".legend");
  const words = legend.innerHTML, cursor = svg.querySelector(".cursor");
  const left = +svg.dataset.left, right = +svg.dataset.right, from = +svg.dataset.from, to = +svg.dataset.to;
  const show = event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const step = from + (x - left) / (right - left) * (to - from);
    let near = points[0];
    for (const point of points) if (Math.abs(point[0] - step) < Math.abs(near[0] - step)) near = point;
    const at = left + (near[0] - from) / (to - from) * (right - left);
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.style.visibility = "visible";
    legend.textContent = "step " + near[0] + ": " + near[1];
  };
  svg.addEventListener("pointermove", show); svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; legend.innerHTML = words; });
}
)js";

}  // namespace unsloth::report
