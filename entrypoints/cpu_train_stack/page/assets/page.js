// Draws the blocks of entrypoints/cpu_train_stack/page/blocks.py. Texts of the data are only ever inserted as text nodes.

const ICONS = { finished: "✓", failed: "✕", stopped: "■", open: "…" };
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5];
const LONG_WORD = 20;
const SMALL = 300; // a picture that leaves room for another one next to it, in pixels

const data = JSON.parse(document.getElementById("data").textContent);
const live = document.getElementById("live");

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

// A text whose long words, such as paths, may end a line after a separator.
function text(value) {
  const found = document.createDocumentFragment();
  for (const word of value.split(/(\s+)/)) {
    const parts = word.length > LONG_WORD ? word.split(/(?<=[\/_,=:@.-])(?=[^\/])/) : [word];
    parts.forEach((part, place) => found.append(...(place ? [make("wbr"), part] : [part])));
  }
  return found;
}

// Adapts what an element shows to its width: a table that is too wide becomes a list, a number in a bar disappears.
const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => target.fit()));

function fitting(node, fit) {
  node.fit = fit;
  observer.observe(node);
  return node;
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
  const cell = (tag, place, value, more) =>
    make(tag, { class: right.has(place) ? "right" : value.length <= 16 ? "short" : "", ...more }, text(value));
  const head = make("tr", {}, ...block.columns.map((name, place) => cell("th", place, name, { scope: "col" })));
  const row = (values) => values.map((value, place) => cell("td", place, value, { "data-column": block.columns[place] }));
  const rows = block.rows.map((values) => make("tr", {}, ...row(values)));
  const whole = make("table", block.even ? { class: "even" } : {}, make("thead", {}, head), make("tbody", {}, ...rows));
  const holder = make("div", { class: "rows", role: "region", "aria-label": block.title || "table" }, whole);
  return fitting(holder, () => {
    holder.classList.remove("stacked");
    const cells = block.even ? [...whole.querySelectorAll("th, td")] : [];
    const wide = whole.offsetWidth > holder.clientWidth + 1 || cells.some((one) => one.scrollWidth > one.clientWidth + 1);
    holder.classList.toggle("stacked", wide);
  });
}

function drawTable(block) {
  const note = block.note ? make("span", { class: "soft" }, ` ${block.note}`) : null;
  const heading = block.title ? make("h3", {}, block.title, note) : null;
  if (!block.folded) return make("div", { class: "panel" }, heading, table(block));
  const details = make("details", { class: "wide" }, make("summary", {}, block.title, note));
  details.addEventListener("toggle", () => details.append(table(block)), { once: true });
  return details;
}

// Facts and texts

function drawFacts(block) {
  const rows = block.rows.map(([name, value]) =>
    make("div", value.length > 70 ? { class: "long" } : {}, make("dt", {}, name), make("dd", {}, text(value))),
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
  const items = block.items.map((item) => make("li", {}, text(item)));
  const heading = block.title ? make("h3", {}, block.title) : null;
  return make("div", { class: `panel texts ${block.level}` }, heading, make("ul", {}, ...items));
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
  const longest = Math.max(...block.bars.map((bar) => Math.max(bar.total, bar.values.reduce((sum, value) => sum + value, 0)))) || 1;
  const many = block.bars.length > 16;
  const label = `${block.title}, ${block.unit}. Up and down arrow keys read the values.`;
  const readout = make("p", { class: "readout" }, many ? "Point at a bar, or use the arrow keys, to read its values." : "");
  const marked = many && block.bars.some((bar) => bar.mark) ? "marked" : "";
  const holder = make("div", { class: `bars ${many ? "many" : ""} ${marked}`, tabindex: "0", role: "application", "aria-label": label });
  const items = block.bars.map((bar) => {
    const track = make("span", { class: "track" });
    bar.values.forEach((value, part) => {
      const inside = !many && value / longest > 0.06 ? `${format(value)} s` : "";
      const piece = make("span", { class: `part${part}`, title: `${block.parts[part]}: ${format(value)} s` }, make("b", {}, inside));
      piece.style.width = `${(100 * value) / longest}%`;
      track.append(piece);
    });
    const mark = bar.mark ? make("b", {}, ` ◀ ${bar.mark}`) : null;
    const node = make("div", { class: "bar" }, make("span", {}, bar.label), track, make("span", {}, `${format(bar.total)} s`, mark));
    holder.append(node);
    const texts = bar.values.map((value, part) => `${block.parts[part]} ${format(value)} s`);
    return { node, text: `${bar.label}${bar.mark ? ` (${bar.mark})` : ""}: ${format(bar.total)} s: ${texts.join(", ")}` };
  });
  walkable(holder, items, readout, ["ArrowUp", "ArrowDown"]);
  fitting(holder, () => {
    for (const number of holder.querySelectorAll(".track b")) number.hidden = number.offsetWidth > number.parentNode.clientWidth;
  });
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
      const at = Math.min(1, mark.at / block.seconds);
      node.style.left = `min(${100 * at}%, 100% - 3px)`;
      node.style.width = `${100 * Math.min(1 - at, mark.seconds / block.seconds)}%`;
      track.append(node);
      items.push({ node, text: mark.text, at: mark.at });
    }
    holder.append(make("span", {}, lane.kind), track);
  }
  const ticks = make("div", { class: "ticks", "aria-hidden": "true" });
  const [size, unit] = timeUnit(block.seconds);
  const longest = block.seconds / size;
  const step = STEPS.map((one) => one * 10 ** Math.floor(Math.log10(longest))).find((one) => longest / one <= 6);
  for (let place = 0; place < 0.98 * longest; place += step) {
    const tick = make("span", {}, place ? `${Number(place.toPrecision(3))} ${unit}` : "0");
    tick.style.left = `${(100 * place) / longest}%`;
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
  return make("figure", block.half ? { class: "half" } : {}, caption, make("div", { class: "drawing" }, svg, words));
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
    make("div", { class: `notice ${notice.level}` }, make("h3", {}, text(notice.title)), ...notice.items.map((item) => make("p", {}, text(item)))),
  );
  const icon = { class: `state ${data.state}`, "aria-hidden": "true" };
  return make(
    "header",
    {},
    make("p", { class: "about" }, text(data.about)),
    make("h1", {}, ICONS[data.state] ? make("span", icon, `${ICONS[data.state]} `) : null, text(data.verdict)),
    tiles.length ? make("dl", { class: "tiles", style: `--tiles: ${tiles.length}` }, ...tiles) : null,
    ...notices,
  );
}

function section(part) {
  // Charts next to each other; the first one of an odd number takes both columns.
  const half = part.blocks.filter((block) => block.is === "chart");
  half.forEach((block, place) => (block.half = place > 0 || half.length % 2 === 0));
  const small = part.blocks.filter((block) => block.is === "drawing" && block.width < SMALL);
  small.forEach((block) => (block.half = small.length > 1));
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
