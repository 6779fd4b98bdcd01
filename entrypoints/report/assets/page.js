"use strict";
// Draws the blocks of entrypoints/report/blocks.py. Texts of the data are only ever inserted as text nodes.

// Canvases with twice the pixels, so that prints are sharp. uPlot, the next script, reads this once.
const PIXELS = Math.max(2, window.devicePixelRatio || 1);
Object.defineProperty(window, "devicePixelRatio", { get: () => PIXELS });

const DASHES = [[], [7, 4], [3, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 4], [4, 6]];
const COLORS = 8;
const TABLE_ROWS = 100;
const HEIGHT = 230;
const PRINT_WIDTH = 315;
const ICONS = { finished: "✓", failed: "✕", open: "…", compare: "" };

const data = JSON.parse(document.getElementById("data").textContent);
const live = document.getElementById("live");
const charts = [];
let axis = "steps"; // of the charts that offer the choice
let printing = false;

function make(tag, settings = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function say(text) {
  live.textContent = text;
}

function format(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

// The unit in which a duration has few digits: its seconds and its name.
function timeUnit(seconds) {
  if (seconds >= 2 * 86400) return [86400, "d"];
  if (seconds >= 2 * 3600) return [3600, "h"];
  return seconds >= 180 ? [60, "min"] : [1, "s"];
}

// Tables

function table(block) {
  const right = new Set(block.right);
  const cell = (tag, place, text, more = {}) =>
    make(tag, { class: right.has(place) ? "right" : text.length <= 16 ? "short" : "", ...more }, text);
  const head = make("tr", {}, ...block.columns.map((text, place) => cell("th", place, text, { scope: "col" })));
  const rows = block.rows.map((row) => make("tr", {}, ...row.map((text, place) => cell("td", place, text))));
  const whole = make("table", block.even ? { class: "even" } : {}, make("thead", {}, head), make("tbody", {}, ...rows));
  const settings = { class: "scroll", tabindex: "0", role: "region", "aria-label": block.title };
  return make("div", settings, whole);
}

function drawTable(block) {
  const note = block.note ? make("span", { class: "soft" }, ` ${block.note}`) : null;
  if (!block.folded) return make("div", { class: "panel" }, make("h3", {}, block.title, note), table(block));
  const details = make("details", { class: "wide" }, make("summary", {}, block.title, note));
  details.addEventListener("toggle", () => details.append(table(block)), { once: true });
  return details;
}

// Facts and texts

function drawFacts(block) {
  const rows = block.rows.map(([name, value]) =>
    make("div", value.length > 70 ? { class: "long" } : {}, make("dt", {}, name), make("dd", {}, value)),
  );
  return make("div", { class: "panel" }, make("dl", { class: "facts" }, ...rows));
}

function drawCommand(block) {
  // A line does not end inside of a word, such as after the first dashes of a flag.
  const words = block.text.split(" ").flatMap((word) => [make("span", {}, word), " "]);
  const text = make("pre", { tabindex: "0", "aria-label": block.title }, ...words.slice(0, -1));
  const button = make("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(block.text);
      say("copied");
      button.textContent = "Copied";
    } catch {
      say("selected, press Ctrl+C to copy");
      button.textContent = "Selected: Ctrl+C";
    }
  });
  return make("div", { class: "command" }, text, button);
}

function drawTexts(block) {
  const items = block.items.map((text) => make("li", {}, text));
  return make("div", { class: `panel texts ${block.level}` }, make("h3", {}, block.title), make("ul", {}, ...items));
}

// Charts

function nearest(values, place) {
  for (let distance = 0; distance < values.length; distance += 1) {
    for (const other of [place - distance, place + distance]) {
      if (values[other] !== null && values[other] !== undefined) return other;
    }
  }
  return place;
}

class LineChart {
  constructor(block) {
    this.block = block;
    // Thin curves first: the others are drawn over them. Colors and dashes keep their places.
    this.curves = block.curves
      .map((curve, place) => ({ ...curve, place }))
      .sort((one, other) => (other.look === "thin") - (one.look === "thin"));
    const label = `${block.title}, ${block.unit}. Left and right arrow keys read the values.`;
    this.holder = make("div", { class: "plot", tabindex: "0", role: "application", "aria-label": label });
    this.holder.setAttribute("aria-roledescription", "chart");
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.holder.addEventListener("focus", () => this.place === null && this.move(this.plot.data[0].length - 1));
    this.details = make("details", {}, make("summary", {}, "Data"));
    this.details.addEventListener("toggle", () => this.fillTable());
    const note = block.note ? make("span", { class: "soft" }, block.note) : null;
    const half = block.half ? " half" : "";
    this.node = make(
      "figure",
      { class: `chart${half}` },
      make("figcaption", {}, make("h3", {}, block.title), note),
      this.holder,
      this.details,
    );
    charts.push(this);
  }

  draw() {
    if (this.plot) this.plot.destroy();
    this.place = null;
    this.byTime = this.block.axis === "time" || axis === "seconds";
    const longest = Math.max(...this.curves.map((curve) => curve.seconds[curve.seconds.length - 1]));
    const [size, unit] = this.byTime ? timeUnit(longest) : [1, ""];
    this.unit = unit;
    const xs = (curve) => (this.byTime ? curve.seconds.map((one) => one / size) : curve.steps);
    const joined = uPlot.join(this.curves.map((curve) => [xs(curve), curve.values]));
    this.plot = new uPlot(this.options(), joined, this.holder);
    if (this.details.open) this.fillTable();
  }

  options() {
    const ink = color("soft");
    const grid = { stroke: color("grid"), width: 1 };
    const font = "11px system-ui, sans-serif";
    const common = { stroke: ink, grid, ticks: { ...grid, size: 5 }, font, labelFont: font, labelSize: 18, labelGap: 0 };
    const zero = (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1];
    const ticks = (_, values) => values.map(format);
    const width = (_, values) => 14 + 6.3 * Math.max(2, ...(values || []).map((text) => text.length));
    return {
      width: this.width(),
      height: HEIGHT,
      padding: [8, 14, 0, 0],
      scales: { x: { time: false }, y: this.block.from_zero ? { range: zero } : {} },
      axes: [
        { ...common, size: 28, values: ticks, label: this.byTime ? `elapsed time, ${this.unit}` : "step" },
        { ...common, size: width, values: ticks, label: this.block.unit },
      ],
      series: [
        {
          label: this.byTime ? "elapsed" : "step",
          value: (plot, value) => this.position(value ?? plot.data[0][plot.data[0].length - 1]),
        },
        ...this.curves.map((curve) => this.series(curve)),
      ],
      legend: { markers: { width: 2, dash: (_, place) => this.markerDash(place) } },
      cursor: {
        dataIdx: (plot, series, place) => (series ? nearest(plot.data[series], place) : place),
        sync: { key: this.byTime ? `time ${this.unit}` : "steps", scales: ["x", null] },
        points: { size: 6 },
        y: false,
      },
    };
  }

  series(curve) {
    const thin = curve.look === "thin";
    const alone = curve.values.length < 3;
    return {
      label: curve.label,
      stroke: thin ? color("thin") : color(`c${curve.place % COLORS}`),
      width: thin ? 1 : 2,
      dash: thin ? [] : DASHES[curve.place % DASHES.length],
      points: { show: alone || curve.look === "points", size: 6, fill: color(`c${curve.place % COLORS}`) },
      value: (plot, value, place) => format(value ?? plot.data[place][nearest(plot.data[place], plot.data[0].length - 1)]),
    };
  }

  markerDash(place) {
    const curve = this.curves[place - 1];
    if (!curve || curve.look === "thin") return "solid";
    const dash = DASHES[curve.place % DASHES.length];
    return dash.length === 0 ? "solid" : dash[0] > 2 ? "dashed" : "dotted";
  }

  width() {
    return printing ? (this.block.half ? PRINT_WIDTH : 2 * PRINT_WIDTH + 30) : Math.max(200, this.holder.clientWidth);
  }

  position(value) {
    return this.byTime ? `${format(value)} ${this.unit}` : format(value);
  }

  values(place) {
    return this.curves.map((_, series) => {
      const values = this.plot.data[series + 1];
      return values[nearest(values, place)];
    });
  }

  key(event) {
    const last = this.plot.data[0].length - 1;
    const stride = event.shiftKey ? 10 : 1;
    const now = this.place ?? last;
    const places = { ArrowLeft: now - stride, ArrowRight: now + stride, Home: 0, End: last };
    if (!(event.key in places)) return;
    event.preventDefault();
    this.move(Math.min(last, Math.max(0, places[event.key])));
  }

  move(place) {
    this.place = place;
    const x = this.plot.data[0][place];
    this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: this.plot.over.clientHeight / 2 });
    const texts = this.values(place).map((value, series) => `${this.curves[series].label} ${format(value)}`);
    say(`${this.byTime ? "" : "step "}${this.position(x)}: ${texts.join(", ")}`);
  }

  fillTable() {
    const [x] = this.plot.data;
    const every = Math.ceil(x.length / TABLE_ROWS);
    const places = x.map((_, place) => place).filter((place) => place % every === 0 || place === x.length - 1);
    const note = every > 1 ? `${places.length} of ${x.length} rows` : "";
    const columns = [this.byTime ? `elapsed, ${this.unit}` : "step", ...this.curves.map((curve) => curve.label)];
    const rows = places.map((place) => [format(x[place]), ...this.values(place).map(format)]);
    const right = columns.map((_, place) => place);
    this.details.querySelectorAll("div, p").forEach((node) => node.remove());
    this.details.append(make("p", { class: "readout" }, note), table({ title: this.block.title, columns, rows, right }));
  }
}

// Bars and the time line: a focused picture with one active item

function walkable(holder, items, readout, keys) {
  let active = -1;
  const show = (place) => {
    if (active >= 0) items[active].node.classList.remove("active");
    active = Math.min(items.length - 1, Math.max(0, place));
    items[active].node.classList.add("active");
    readout.textContent = items[active].text;
  };
  holder.addEventListener("keydown", (event) => {
    const places = { [keys[0]]: active - 1, [keys[1]]: active + 1, Home: 0, End: items.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    show(places[event.key]);
    say(items[active].text);
  });
  items.forEach((item, place) => item.node.addEventListener("mouseenter", () => show(place)));
}

function drawBars(block) {
  const sum = (bar) => bar.values.reduce((one, other) => one + other, 0);
  const longest = Math.max(...block.bars.map(sum)) || 1;
  const many = block.bars.length > 16;
  const label = `${block.title}, ${block.unit}. Up and down arrow keys read the values.`;
  const readout = make("p", { class: "readout" }, many ? "Point at a bar, or use the arrow keys, to read its values." : "");
  const holder = make("div", { class: many ? "bars many" : "bars", tabindex: "0", role: "application", "aria-label": label });
  const items = block.bars.map((bar) => {
    const track = make("span", { class: "track" });
    bar.values.forEach((value, part) => {
      const inside = !many && value / longest > 0.06 ? `${format(value)} s` : "";
      const piece = make("span", { class: `part${part}`, title: `${block.parts[part]}: ${format(value)} s` }, inside);
      piece.style.width = `${(100 * value) / longest}%`;
      track.append(piece);
    });
    const mark = bar.mark ? make("b", {}, ` ◀ ${bar.mark}`) : null;
    const node = make("div", { class: "bar" }, make("span", {}, bar.label), track, make("span", {}, `${format(sum(bar))} s`, mark));
    holder.append(node);
    const texts = bar.values.map((value, part) => `${block.parts[part]} ${format(value)} s`);
    return { node, text: `${bar.label}${bar.mark ? ` (${bar.mark})` : ""}: ${texts.join(", ")}` };
  });
  walkable(holder, items, readout, ["ArrowUp", "ArrowDown"]);
  const keys = block.parts.map((part, place) => make("li", {}, make("i", { class: `part${place}` }), part));
  const note = make("span", { class: "soft" }, [block.unit, block.note].filter(Boolean).join("; "));
  const caption = make("figcaption", {}, make("h3", {}, block.title), note);
  return make("figure", {}, caption, make("ul", { class: "keys" }, ...keys), holder, readout);
}

function drawStrip(block) {
  const label = `${block.title}. Left and right arrow keys read the events.`;
  const holder = make("div", { class: "strip", tabindex: "0", role: "application", "aria-label": label });
  const items = [];
  for (const lane of block.lanes) {
    const track = make("div", { class: `lane ${lane.kind}` });
    for (const mark of lane.marks) {
      const node = make("i", { title: mark.text });
      node.style.left = `min(${(100 * mark.at) / block.seconds}%, 100% - 3px)`;
      node.style.width = `${(100 * mark.seconds) / block.seconds}%`;
      track.append(node);
      items.push({ node, text: mark.text, at: mark.at });
    }
    holder.append(make("span", {}, lane.label), track);
  }
  const ticks = make("div", { class: "ticks", "aria-hidden": "true" });
  const [size, unit] = timeUnit(block.seconds);
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const tick = make("span", {}, part ? `${Number(((part * block.seconds) / size).toPrecision(3))} ${unit}` : "0");
    tick.style.left = `${100 * part}%`;
    ticks.append(tick);
  }
  holder.append(make("span"), ticks);
  const readout = make("p", { class: "readout" });
  items.sort((one, other) => one.at - other.at);
  walkable(holder, items, readout, ["ArrowLeft", "ArrowRight"]);
  return make("figure", {}, make("figcaption", {}, make("h3", {}, block.title)), holder, readout);
}

function drawDrawing(block) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const settings = { viewBox: `0 0 ${block.width} ${block.height}`, width: block.width, height: block.height };
  for (const [name, value] of Object.entries({ ...settings, role: "img", "aria-label": block.alternative })) {
    svg.setAttribute(name, value);
  }
  for (const shape of block.shapes) {
    const node = document.createElementNS(space, shape.text ? "text" : "rect");
    const { x, y, width, height } = shape;
    for (const [name, value] of Object.entries(shape.text ? { x, y } : { x, y, width, height })) node.setAttribute(name, value);
    node.setAttribute("class", shape.look);
    if (shape.color !== null) node.style.setProperty("--fill", `var(--c${shape.color % COLORS})`);
    if (shape.text) node.textContent = shape.text;
    if (shape.title) {
      const title = document.createElementNS(space, "title");
      title.textContent = shape.title;
      node.append(title);
    }
    svg.append(node);
  }
  const caption = make("figcaption", {}, make("h3", {}, block.title));
  const words = make("p", { class: "alternative soft" }, block.alternative);
  return make("figure", {}, caption, make("div", { class: "drawing" }, svg, words));
}

// The page

const DRAW = {
  chart: (block) => new LineChart(block).node,
  table: drawTable,
  facts: drawFacts,
  command: drawCommand,
  texts: drawTexts,
  bars: drawBars,
  strip: drawStrip,
  drawing: drawDrawing,
};

function choice() {
  const set = make("fieldset", {}, make("legend", {}, "Horizontal axis:"));
  for (const [value, text] of [["steps", "steps"], ["seconds", "elapsed time"]]) {
    const input = make("input", { type: "radio", name: "axis", value });
    input.checked = value === axis;
    input.addEventListener("change", () => {
      axis = value;
      charts.filter((chart) => chart.block.axis === "choice").forEach((chart) => chart.draw());
    });
    set.append(make("label", {}, input, text));
  }
  return set;
}

function header() {
  const tiles = data.tiles.map((tile) =>
    make(
      "div",
      { class: "tile" },
      make("dt", {}, tile.label),
      make("dd", {}, make("span", { class: "value" }, tile.value), make("span", { class: "note" }, tile.note)),
    ),
  );
  const notices = data.notices.map((notice) =>
    make("div", { class: `notice ${notice.level}` }, make("h3", {}, notice.title), ...notice.items.map((text) => make("p", {}, text))),
  );
  const icon = { class: `state ${data.state}`, "aria-hidden": "true" };
  return make(
    "header",
    {},
    make("p", { class: "about" }, data.about),
    make("h1", {}, ICONS[data.state] ? make("span", icon, `${ICONS[data.state]} `) : null, data.verdict),
    tiles.length ? make("dl", { class: "tiles" }, ...tiles) : null,
    ...notices,
  );
}

function section(part) {
  // Charts next to each other; the first one of an odd number takes both columns.
  const half = part.blocks.filter((block) => block.is === "chart");
  half.forEach((block, place) => (block.half = place > 0 || half.length % 2 === 0));
  const blocks = part.blocks.map((block) => {
    const node = DRAW[block.is](block);
    node.classList.add("block");
    return node;
  });
  const heading = make("div", { class: "heading" }, make("h2", {}, part.title), part.axis ? choice() : null);
  return make("section", { id: part.name }, heading, make("div", { class: "blocks" }, ...blocks));
}

function drawAll() {
  charts.forEach((chart) => chart.draw());
}

function resize() {
  if (!printing) charts.forEach((chart) => chart.plot.setSize({ width: chart.width(), height: HEIGHT }));
}

function print(now) {
  printing = now;
  document.documentElement.toggleAttribute("data-print", now);
  drawAll();
}

document.addEventListener("DOMContentLoaded", () => {
  const links = data.sections.map((part) => make("a", { href: `#${part.name}` }, part.title));
  const main = document.getElementById("page");
  main.replaceChildren(header(), make("nav", { "aria-label": "Sections" }, ...links), ...data.sections.map(section));
  drawAll();
  let width = main.clientWidth;
  window.addEventListener("resize", () => {
    if (main.clientWidth !== width) requestAnimationFrame(resize);
    width = main.clientWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  // uPlot draws at the end of the current task. Tests read the milliseconds since the page was opened.
  setTimeout(() => (document.documentElement.dataset.drawn = performance.now().toFixed(0)), 0);
});
