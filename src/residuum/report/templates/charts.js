"use strict";
// Charts as SVG from the data of residuum.report.blocks. Numbers come rounded to the digits shown; here they are only padded.
const SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.6L4.4,3.4H-4.4z", "M0,-5L5,0L0,5L-5,0z", "M0,4.6L4.4,-3.4H-4.4z", "M-4.5,-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
  "M-4.5,-3L-3,-4.5L0,-1.5L3,-4.5L4.5,-3L1.5,0L4.5,3L3,4.5L0,1.5L-3,4.5L-4.5,3L-1.5,0z", "M-4.5,-2h9v4h-9z"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 3", "6 2 1 2"];
const WIDTH = 640, HEIGHT = 340, PAD = { left: 58, right: 14, top: 12, bottom: 44 };

function svg(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function html(name, attributes, parent, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined && text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

const colourOf = (colour) => (colour === "ink" ? "var(--ink)" : `var(--c${colour % 8})`);
const order = (colour) => (colour === "ink" ? 0 : colour % 8);
const pad = (value, digits) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits === undefined ? 3 : digits));

function niceTicks(low, high, count) {
  const span = high - low || 1, rough = span / (count || 5), power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step * 1e-6 ? 0 : tick);
  return ticks;
}

const tickText = (value) => String(Number(value.toPrecision(4)));

function frame(root, spec, range) {
  // Axes and grid; returns the two scales.
  const log = spec.x.log, map = (v) => (log ? Math.log10(v) : v);
  let [x0, x1] = range.x.map(map), [y0, y1] = range.y;
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) { y0 -= 0.5; y1 += 0.5; }
  const sx = (v) => PAD.left + ((map(v) - x0) / (x1 - x0)) * (WIDTH - PAD.left - PAD.right);
  const sy = (v) => HEIGHT - PAD.bottom - ((v - y0) / (y1 - y0)) * (HEIGHT - PAD.top - PAD.bottom);
  for (const tick of niceTicks(y0, y1).filter((t) => !range.counts || Number.isInteger(t))) {
    svg("line", { class: "grid", x1: PAD.left, x2: WIDTH - PAD.right, y1: sy(tick), y2: sy(tick) }, root);
    svg("text", { x: PAD.left - 6, y: sy(tick) + 4, "text-anchor": "end" }, root, tickText(tick));
  }
  svg("line", { class: "axis", x1: PAD.left, x2: WIDTH - PAD.right, y1: HEIGHT - PAD.bottom, y2: HEIGHT - PAD.bottom }, root);
  if (range.ticks !== null) {
    for (const tick of range.ticks || niceTicks(x0, x1, 8).filter((t) => !range.whole || Number.isInteger(t))) {
      svg("line", { class: "axis", x1: sx(tick), x2: sx(tick), y1: HEIGHT - PAD.bottom, y2: HEIGHT - PAD.bottom + 4 }, root);
      svg("text", { x: sx(tick), y: HEIGHT - PAD.bottom + 17, "text-anchor": "middle" }, root, log ? tick.toExponential().replace("e-", "e-") : tickText(tick));
    }
  }
  svg("text", { x: (PAD.left + WIDTH - PAD.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, root, spec.x.label);
  svg("text", { x: 14, y: (HEIGHT - PAD.bottom + PAD.top) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(HEIGHT - PAD.bottom + PAD.top) / 2})` }, root, spec.y.label);
  return { sx, sy };
}

function extent(values, fixed, margin) {
  const there = values.filter((v) => v !== null && v !== undefined);
  let low = fixed && fixed.min !== undefined ? fixed.min : Math.min(...there), high = fixed && fixed.max !== undefined ? fixed.max : Math.max(...there);
  if (!there.length) { low = 0; high = 1; }
  const more = (high - low || 1) * (margin || 0);
  return [fixed && fixed.min !== undefined ? low : low - more, fixed && fixed.max !== undefined ? high : high + more];
}

function marksOn(root, spec, { sx, sy }) {
  for (const mark of spec.marks || []) {
    const upright = mark.x !== undefined;
    const at = upright ? { x1: sx(mark.x), x2: sx(mark.x), y1: PAD.top, y2: HEIGHT - PAD.bottom } : { x1: PAD.left, x2: WIDTH - PAD.right, y1: sy(mark.y), y2: sy(mark.y) };
    svg("line", { ...at, stroke: "var(--ink)", "stroke-dasharray": "4 3" }, root);
    svg("text", upright ? { x: at.x1 + 4, y: PAD.top + 12 } : { x: WIDTH - PAD.right - 2, y: at.y1 - 4, "text-anchor": "end" }, root, mark.label);
  }
}

const DRAW = {
  lines(root, spec) {
    const points = spec.series.flatMap((s) => s.points);
    const ys = points.flatMap((p) => p.slice(1, 4)).concat((spec.marks || []).filter((m) => m.y !== undefined).map((m) => m.y));
    const xs = points.map((p) => p[0]).concat((spec.marks || []).filter((m) => m.x !== undefined).map((m) => m.x));
    const scales = frame(root, spec, { x: extent(xs), y: extent(ys, spec.y, 0.04), ticks: spec.x.names ? null : spec.x.ticks, whole: xs.every(Number.isInteger) });
    marksOn(root, spec, scales);
    const { sx, sy } = scales;
    for (const s of spec.series) {
      const there = s.points.filter((p) => p[1] !== null), colour = colourOf(s.colour);
      const band = there.filter((p) => p[2] !== null && p[3] !== null && p[2] !== undefined);
      if (band.length > 1 && !spec.points_only) {
        const path = band.map((p) => `${sx(p[0])},${sy(p[3])}`).concat(band.slice().reverse().map((p) => `${sx(p[0])},${sy(p[2])}`));
        svg("polygon", { points: path.join(" "), fill: colour, opacity: 0.18 }, root);
      } else for (const p of band) svg("line", { x1: sx(p[0]), x2: sx(p[0]), y1: sy(p[2]), y2: sy(p[3]), stroke: colour, "stroke-width": 1.5 }, root);
      if (!spec.points_only) svg("polyline", { points: there.map((p) => `${sx(p[0])},${sy(p[1])}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[order(s.colour)] }, root);
      for (const p of there) {
        const dot = svg("path", { d: SHAPES[order(s.colour)], transform: `translate(${sx(p[0])},${sy(p[1])}) scale(${there.length > 60 ? 0.6 : 0.9})`, fill: colour }, root);
        const ends = p[2] === null || p[2] === undefined ? "" : ` (${pad(p[2], spec.digits)} to ${pad(p[3], spec.digits)})`;
        svg("title", {}, dot, `${p[4] || s.name}, ${spec.x.names ? "" : `${spec.x.label} ${p[0]}: `}${pad(p[1], spec.digits)}${ends}`);
      }
    }
  },
  scatter(root, spec) {
    const points = spec.series.flatMap((s) => s.points), front = spec.front || [];
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const both = spec.diagonal ? extent(xs.concat(ys), null, 0.06) : null;
    const scales = frame(root, spec, { x: both || extent(xs, spec.x, 0.06), y: both || extent(ys, spec.y, 0.08) });
    const { sx, sy } = scales;
    if (both) svg("line", { x1: sx(both[0]), y1: sy(both[0]), x2: sx(both[1]), y2: sy(both[1]), stroke: "var(--ink)", "stroke-dasharray": "4 3" }, root);
    if (front.length > 1) svg("polyline", { points: front.map((p) => `${sx(p[0])},${sy(p[1])}`).join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }, root);
    for (const s of spec.series) for (const p of s.points) {
      const dot = svg("path", { d: SHAPES[order(s.colour)], transform: `translate(${sx(p[0])},${sy(p[1])})`, fill: colourOf(s.colour), "fill-opacity": 0.85, stroke: "var(--paper)", "stroke-width": 0.5 }, root);
      svg("title", {}, dot, `${p[2]} (${s.name}): ${spec.x.label} ${pad(p[0], spec.digits)}, ${spec.y.label} ${pad(p[1], spec.digits)}`);
    }
  },
  histogram(root, spec) {
    const edges = spec.edges, most = Math.max(1, ...spec.series.flatMap((s) => s.counts));
    if (spec.rows) return DRAW.ridges(root, spec);
    const scales = frame(root, spec, { x: [edges[0], edges[edges.length - 1]], y: [0, most * 1.05], counts: true });
    const { sx, sy } = scales;
    for (const s of spec.series) s.counts.forEach((count, i) => {
      if (!count) return;
      const bar = svg("rect", { x: sx(edges[i]), width: Math.max(1, sx(edges[i + 1]) - sx(edges[i]) - 1), y: sy(count), height: sy(0) - sy(count), fill: colourOf(s.colour), "fill-opacity": spec.series.length > 1 ? 0.65 : 1 }, root);
      svg("title", {}, bar, `${s.name}, ${edges[i]} to ${edges[i + 1]}: ${count}`);
    });
    marksOn(root, spec, scales);
  },
  ridges(root, spec) {
    // One row per series: many histograms on one axis would hide each other.
    const edges = spec.edges, rows = spec.series.length, each = (HEIGHT - PAD.top - PAD.bottom) / rows;
    const { sx } = frame(root, { x: spec.x, y: { label: "" } }, { x: [edges[0], edges[edges.length - 1]], y: [0, rows] });
    root.querySelectorAll("text[text-anchor=end]").forEach((node) => node.remove());
    spec.series.forEach((s, row) => {
      const top = PAD.top + row * each, most = Math.max(1, ...s.counts);
      svg("text", { x: PAD.left - 6, y: top + each / 2 + 4, "text-anchor": "end" }, root, s.name);
      s.counts.forEach((count, i) => {
        const height = (each - 4) * count / most;
        const bar = svg("rect", { x: sx(edges[i]), width: Math.max(1, sx(edges[i + 1]) - sx(edges[i]) - 1), y: top + each - height, height, fill: colourOf(s.colour) }, root);
        svg("title", {}, bar, `${s.name}, ${edges[i]} to ${edges[i + 1]}: ${count}`);
      });
    });
  },
  bars(root, spec) {
    const values = spec.series.flatMap((s) => s.values.flat()).concat([0]);
    const groups = spec.groups.length, { sx, sy } = frame(root, spec, { x: [0, groups], y: extent(values, spec.y, 0.05), ticks: null });
    const wide = (sx(1) - sx(0)) * 0.84 / spec.series.length;
    spec.series.forEach((s, i) => s.values.forEach(([value, low, high], group) => {
      if (value === null) return;
      const x = sx(group) + (sx(1) - sx(0)) * 0.08 + i * wide, top = Math.min(sy(value), sy(0));
      const bar = svg("rect", { x, width: Math.max(1, wide - 1), y: top, height: Math.max(1, Math.abs(sy(value) - sy(0))), fill: colourOf(s.colour) }, root);
      svg("title", {}, bar, `${spec.groups[group]}, ${s.name}: ${pad(value, spec.digits)}${low === null ? "" : ` (${pad(low, spec.digits)} to ${pad(high, spec.digits)})`}`);
      if (low !== null && low !== undefined) svg("line", { x1: x + wide / 2, x2: x + wide / 2, y1: sy(low), y2: sy(high), stroke: "var(--ink)", "stroke-width": 1.5 }, root);
    }));
    marksOn(root, spec, { sx, sy });
    if (groups <= 12) spec.groups.forEach((name, group) => {
      const room = Math.floor((sx(1) - sx(0)) / 6.4);
      svg("text", { x: (sx(group) + sx(group + 1)) / 2, y: HEIGHT - PAD.bottom + 16, "text-anchor": "middle" }, root, name.length > room ? name.slice(0, Math.max(1, room - 1)) + "…" : name);
    });
  },
  heat(root, spec) {
    const rows = spec.y.names.length, columns = spec.x.names.length, left = PAD.left, right = WIDTH - PAD.right - 70, top = PAD.top, bottom = HEIGHT - PAD.bottom;
    const wide = (right - left) / columns, high = (bottom - top) / rows;
    const shade = (value) => {
      const share = Math.min(1, Math.max(0, (value - spec.min) / (spec.max - spec.min)));
      return share < 0.5 ? `color-mix(in srgb, var(--bad) ${(100 - 200 * share).toFixed(0)}%, var(--paper))` : `color-mix(in srgb, var(--good) ${(200 * share - 100).toFixed(0)}%, var(--paper))`;
    };
    const many = rows * columns > 2500, shapes = new Map();  // of thousands of cells, one shape per shade
    spec.values.forEach((row, r) => row.forEach((value, c) => {
      const x = left + c * wide, y = bottom - (r + 1) * high, fill = value === null ? "var(--line)" : shade(value);
      if (many) return shapes.set(fill, `${shapes.get(fill) || ""}M${x.toFixed(2)},${y.toFixed(2)}h${(wide + 0.3).toFixed(2)}v${(high + 0.3).toFixed(2)}h${(-wide - 0.3).toFixed(2)}z`);
      const cell = svg("rect", { x, y, width: wide + 0.3, height: high + 0.3, fill }, root);
      svg("title", {}, cell, `${spec.y.label} ${spec.y.names[r]}, ${spec.x.label.split(",")[0]} ${spec.x.names[c]}: ${pad(value, spec.digits)}`);
    }));
    for (const [fill, d] of shapes) svg("path", { d, fill }, root);
    const every = Math.ceil(rows / 16);
    spec.y.names.forEach((name, r) => { if (r % every === 0) svg("text", { x: left - 6, y: bottom - (r + 0.5) * high + 4, "text-anchor": "end" }, root, name); });
    const step = Math.ceil(columns / 10);
    spec.x.names.forEach((name, c) => { if (c % step === 0) svg("text", { x: left + (c + 0.5) * wide, y: bottom + 16, "text-anchor": "middle" }, root, name); });
    svg("text", { x: (left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, root, spec.x.label);
    svg("text", { x: 14, y: (bottom + top) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(bottom + top) / 2})` }, root, spec.y.label);
    for (let i = 0; i < 20; i++) svg("rect", { x: right + 14, width: 12, y: bottom - (i + 1) * (bottom - top) / 20, height: (bottom - top) / 20 + 0.3, fill: shade(spec.min + (i + 0.5) / 20 * (spec.max - spec.min)) }, root);
    svg("text", { x: right + 30, y: top + 10 }, root, String(spec.max)); svg("text", { x: right + 30, y: bottom }, root, String(spec.min));
    svg("text", { x: WIDTH - 8, y: (bottom + top) / 2, "text-anchor": "middle", transform: `rotate(-90 ${WIDTH - 8} ${(bottom + top) / 2})` }, root, spec.legend);
  },
};

function numbersOf(spec) {
  // The chart as a table, for those who want or need the numbers.
  const digits = spec.digits;
  if (spec.kind === "heat") return { columns: [spec.y.label, ...spec.x.names], rows: spec.values.map((row, r) => [spec.y.names[r], ...row.map((v) => pad(v, digits))]) };
  if (spec.kind === "histogram") return { columns: ["from", "to", ...spec.series.map((s) => s.name)], rows: spec.edges.slice(0, -1).map((edge, i) => [edge, spec.edges[i + 1], ...spec.series.map((s) => s.counts[i])]) };
  if (spec.kind === "bars") return { columns: ["", "", "value", "low", "high"], rows: spec.groups.flatMap((group, g) => spec.series.map((s) => [group, s.name, ...s.values[g].map((v) => pad(v, digits))])) };
  if (spec.kind === "scatter") return { columns: ["model", "group", spec.x.label, spec.y.label], rows: spec.series.flatMap((s) => s.points.map((p) => [p[2], s.name, pad(p[0], digits), pad(p[1], digits)])) };
  return { columns: ["series", spec.x.label, spec.y.label, "low", "high"], rows: spec.series.flatMap((s) => s.points.map((p) => [p[4] || s.name, spec.x.names ? spec.x.names[p[0]] : p[0], ...p.slice(1, 4).map((v) => pad(v, digits))])) };
}

function plainTable(spec) {
  const box = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": spec.caption || "numbers" }), table = html("table", {}, box);
  if (spec.caption) html("caption", {}, table, spec.caption);
  const head = html("tr", {}, html("thead", {}, table)), body = html("tbody", {}, table);
  for (const column of spec.columns) html("th", { scope: "col" }, head, column);
  for (const row of spec.rows) { const line = html("tr", {}, body); for (const cell of row) html("td", {}, line, cell); }
  return box;
}

function chart(spec) {
  const figure = html("figure", { "data-chart": spec.name });
  html("figcaption", {}, figure, spec.title);
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${spec.title}; its numbers are below` }, figure);
  DRAW[spec.kind](root, spec);
  if (spec.series && spec.series.length > 1) {
    const legend = html("ul", { class: "legend" }, figure);
    for (const s of spec.series) {
      const item = html("li", {}, legend), key = svg("svg", { viewBox: "-11 -6 22 12", "aria-hidden": "true" }, item);
      svg("path", { d: spec.kind === "bars" || spec.kind === "histogram" ? "M-7,-5h14v10h-14z" : SHAPES[order(s.colour)], fill: colourOf(s.colour) }, key);
      if (spec.kind === "lines" && !spec.points_only) svg("line", { x1: -11, x2: 11, y1: 0, y2: 0, stroke: colourOf(s.colour), "stroke-width": 2, "stroke-dasharray": DASHES[order(s.colour)] }, key);
      item.append(` ${s.name}`);
    }
  }
  const details = html("details", {}, figure);
  html("summary", {}, details, "numbers");
  details.addEventListener("toggle", () => { if (details.open && details.children.length < 2) details.append(plainTable(numbersOf(spec))); });
  return figure;
}
