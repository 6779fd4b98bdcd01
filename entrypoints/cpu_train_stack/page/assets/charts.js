"use strict";
// Line charts by uPlot, which read their values by mouse and by keyboard. page.js has `make`, `format` and `table`.

// Canvases with twice the pixels, so that prints are sharp. uPlot, the next script, reads this once.
const PIXELS = Math.max(2, window.devicePixelRatio || 1);
Object.defineProperty(window, "devicePixelRatio", { get: () => PIXELS });

const DASHES = [[], [7, 4], [3, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 4], [4, 6]];
const COLORS = 8;
const TABLE_ROWS = 100;
const HEIGHT = 230;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const PRINT_WIDTH = 315;

const charts = [];
let axis = "steps"; // or "seconds": of the charts that offer the choice
let printing = false;

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
    // Thin curves and the edges of bands first: the others are drawn over them. Colors and dashes keep their places.
    const behind = (curve) => curve.look === "thin" || curve.look === "band";
    this.curves = block.curves
      .map((curve, place) => ({ ...curve, place, color: curve.color ?? place }))
      .sort((one, other) => behind(other) - behind(one));
    this.labels = block.curves.map((curve) => curve.label);
    const label = `${block.title}, ${block.unit}. Left and right arrow keys read the values.`;
    this.holder = make("div", { class: "plot", tabindex: "0", role: "application", "aria-label": label });
    this.holder.setAttribute("aria-roledescription", "chart");
    this.holder.addEventListener("keydown", (event) => this.key(event));
    // With the keyboard only: a click has a place of its own.
    this.holder.addEventListener("focus", () => {
      if (this.place === null && this.holder.matches(":focus-visible")) this.move(this.plot.data[0].length - 1);
    });
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
    this.byTime = this.block.axis === "time" || (this.block.axis === "choice" && axis === "seconds");
    this.ofX = this.block.axis === "nodes" ? "nodes" : "step";
    const longest = Math.max(...this.curves.map((curve) => curve.seconds[curve.seconds.length - 1]));
    const [size, unit] = this.byTime ? timeUnit(longest) : [1, ""];
    this.unit = unit;
    const xs = (curve) => (this.byTime ? curve.seconds.map((one) => one / size) : curve.steps);
    const joined = uPlot.join(this.curves.map((curve) => [xs(curve), curve.values]));
    this.plot = new uPlot(this.options(), joined, this.holder);
    const rows = [...this.holder.querySelectorAll(".u-series")];
    this.curves.forEach((curve, series) => curve.look === "thin" && rows[0].parentNode.append(rows[series + 1]));
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
      padding: [8, 20, 0, 0],
      scales: { x: { time: false }, y: this.block.from_zero ? { range: zero } : {} },
      axes: [
        { ...common, size: 28, values: ticks, ...(this.ofX === "nodes" ? { incrs: WHOLE } : {}), label: this.byTime ? `elapsed time, ${this.unit}` : this.ofX },
        { ...common, size: width, values: ticks, label: this.block.unit },
      ],
      series: [
        {
          label: this.byTime ? "elapsed" : this.ofX,
          value: (plot, value) => this.position(value ?? plot.data[0][plot.data[0].length - 1]),
        },
        ...this.curves.map((curve) => this.series(curve)),
      ],
      bands: this.bands(),
      legend: { markers: { width: 2, dash: (_, place) => this.markerDash(place) } },
      cursor: {
        dataIdx: (plot, series, place) => (series ? this.nearest(plot.data[series], place) : place),
        sync: { key: this.byTime ? `time ${this.unit}` : this.ofX, scales: ["x", null] },
        points: { size: 6 },
        y: false,
      },
    };
  }

  // Each pair of edges: the upper one comes second.
  bands() {
    const edges = this.curves.flatMap((curve, place) => (curve.look === "band" ? [place + 1] : []));
    const pairs = edges.filter((_, place) => place % 2 === 0);
    return pairs.map((low, place) => ({ series: [edges[2 * place + 1], low], fill: color("band") }));
  }

  series(curve) {
    const thin = curve.look === "thin" || curve.look === "band";
    const alone = curve.values.length < 3;
    return {
      label: curve.label,
      stroke: thin ? color("thin") : color(`c${curve.color % COLORS}`),
      width: thin ? 1 : 2,
      spanGaps: true, // a rank without a sample of its own in a short interval
      dash: thin ? [] : DASHES[curve.color % DASHES.length],
      points: { show: alone || curve.look === "points", size: 6, fill: color(`c${curve.color % COLORS}`) },
      value: (plot, value, place) => format(value ?? plot.data[place][this.nearest(plot.data[place], plot.data[0].length - 1)]),
    };
  }

  markerDash(place) {
    const curve = this.curves[place - 1];
    if (!curve || curve.look === "thin" || curve.look === "band") return "solid";
    const dash = DASHES[curve.color % DASHES.length];
    return dash.length === 0 ? "solid" : dash[0] > 2 ? "dashed" : "dotted";
  }

  width() {
    return printing ? (this.block.half ? PRINT_WIDTH : 2 * PRINT_WIDTH + 30) : Math.max(200, this.holder.clientWidth);
  }

  position(value) {
    return this.byTime ? `${format(value)} ${this.unit}` : format(value);
  }

  // A curve keeps its value until the next step, but not until the next number of nodes.
  nearest(values, place) {
    return this.ofX === "nodes" ? place : nearest(values, place);
  }

  // In the order of the labels.
  values(place) {
    const found = [];
    this.curves.forEach((curve, series) => {
      const values = this.plot.data[series + 1];
      found[curve.place] = values[this.nearest(values, place)];
    });
    return found;
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
    const texts = this.values(place).map((value, series) => `${this.labels[series]} ${format(value)}`);
    say(`${this.byTime ? "" : `${this.ofX} `}${this.position(x)}: ${texts.join(", ")}`);
  }

  fillTable() {
    const [x] = this.plot.data;
    const every = Math.ceil(x.length / TABLE_ROWS);
    const places = x.map((_, place) => place).filter((place) => place % every === 0 || place === x.length - 1);
    const note = every > 1 ? `${places.length} of ${x.length} rows` : "";
    const columns = [this.byTime ? `elapsed, ${this.unit}` : this.ofX, ...this.labels];
    const rows = places.map((place) => [format(x[place]), ...this.values(place).map(format)]);
    const right = columns.map((_, place) => place);
    this.details.querySelectorAll("div, p").forEach((node) => node.remove());
    this.details.append(make("p", { class: "readout" }, note), table({ title: this.block.title, columns, rows, right }));
  }
}
