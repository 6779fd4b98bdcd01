// Returns a list of the faults of the layout. Run as the body of a function, see layout.py.
const faults = [];
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) faults.push(`the page is ${page.scrollWidth} px wide, its window ${page.clientWidth}`);
for (const node of document.querySelectorAll("main *")) {
  if (node.closest("svg, .uplot")) continue;
  if (node.scrollWidth > node.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(node).overflowX)) {
    faults.push(`<${node.tagName} ${node.className}> scrolls sideways: ${node.scrollWidth} of ${node.clientWidth} px`);
  }
  const rows = node.querySelectorAll("tr").length;
  if (rows <= 40 && node.scrollHeight > node.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(node).overflowY)) {
    faults.push(`<${node.tagName} ${node.className}> of ${rows} rows is cut at ${node.clientHeight} of ${node.scrollHeight} px`);
  }
}
for (const node of document.querySelectorAll(".stacked td")) { // its column's name is no text of the document
  if (node.scrollHeight > node.clientHeight + 1) faults.push(`"${node.dataset.column}" overlaps the next line`);
}
const visible = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest(".unseen, noscript, script, style");
const range = document.createRange();
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
const seen = [];
while (walker.nextNode()) {
  const text = walker.currentNode, parent = text.parentElement;
  if (!text.data.trim() || !visible(parent)) continue;
  range.selectNodeContents(text);
  const boxes = [...range.getClientRects()].filter((box) => box.width > 1);
  let holder = parent;
  while (getComputedStyle(holder).display === "inline") holder = holder.parentElement;
  for (const found of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
    range.setStart(text, found.index);
    range.setEnd(text, found.index + found[0].length);
    const lines = new Set([...range.getClientRects()].filter((box) => box.width > 1).map((box) => Math.round(box.top)));
    const width = [...range.getClientRects()].reduce((sum, box) => sum + box.width, 0);
    if (lines.size > 1 && width < holder.clientWidth - 8) faults.push(`"${found[0]}" is broken in "${text.data.slice(0, 60)}"`);
  }
  // What hides a part of the text: the window, or a parent that cuts its contents.
  let cut = holder;
  while (cut && !/hidden|clip/.test(getComputedStyle(cut).overflowX)) cut = cut.parentElement;
  const limits = cut && cut !== document.body ? cut.getBoundingClientRect() : { left: 0, right: page.clientWidth };
  for (const box of boxes) {
    if (box.left < limits.left - 1 || box.right > limits.right + 1) faults.push(`"${text.data.slice(0, 60)}" is cut`);
    if (!parent.closest("nav")) seen.push({ box, text: text.data.trim().slice(0, 40), parent });
  }
}
seen.sort((one, other) => one.box.top - other.box.top);
seen.forEach((one, place) => {
  for (let next = place + 1; next < seen.length && seen[next].box.top < one.box.bottom - 3; next += 1) {
    const other = seen[next];
    const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (across > 2 && down > 4 && one.parent !== other.parent) faults.push(`"${one.text}" overlaps "${other.text}"`);
  }
});
for (const node of document.querySelectorAll(".lane i, .track span")) {
  const own = node.getBoundingClientRect(), line = node.parentElement.getBoundingClientRect();
  if (own.right > line.right + 1 || own.left < line.left - 1) faults.push(`a bar of ${own.width} px is outside of its line`);
}
// Text and background: at least 4.5 times the contrast (WCAG 2, AA).
const light = (color) => {
  const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map((one) => one / 255)
    .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
for (const { parent, text } of seen) {
  if (parent.closest("svg, .part4")) continue;
  let back = parent;
  while (back && /rgba\(0, 0, 0, 0\)/.test(getComputedStyle(back).backgroundColor)) back = back.parentElement;
  const pair = [light(getComputedStyle(parent).color), light(getComputedStyle(back || document.body).backgroundColor)];
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (contrast < 4.5) faults.push(`"${text}" has a contrast of ${contrast.toFixed(1)}`);
}
return [...new Set(faults)];
