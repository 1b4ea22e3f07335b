"use strict";

// Shows the values under the pointer, or under the cursor that arrow keys move, in every `svg.figure` of a page.
// It reads them back from the pixels of each line, so that a page carries every number once.

const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
cursor.setAttribute("class", "cursor");
const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("role", "status");

const NEAR = 7; // pixels from a mark within which it is named
const linesOf = (svg) => [...svg.querySelectorAll("path[data-label]")];
const figureAt = (event) => event.target.closest?.("svg.figure[tabindex]");
const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));

function valueOf(axis, pixel) {
  const [start, low, stop, high] = axis.split(" ").map(Number);
  return low + ((pixel - start) / (stop - start)) * (high - low);
}

function addLine(text, colour) {
  const line = document.createElement("p");
  line.textContent = text;
  if (colour) line.style.color = colour;
  tip.append(line);
}

function showValues(svg, x) {
  const paths = linesOf(svg).map((path) => {
    const points = [...path.getAttribute("d").matchAll(/[ML]([-\d.]+),([-\d.]+)/g)].map((m) => [+m[1], +m[2]]);
    return { label: path.dataset.label, colour: path.parentNode.getAttribute("stroke"), point: nearest(points, x) };
  });
  const at = nearest(paths.map((path) => path.point), x)[0];
  const inside = (s) => at >= +s.getAttribute("x") && at < +s.getAttribute("x") + +s.getAttribute("width");
  const span = [...svg.querySelectorAll("rect.span")].find(inside);
  tip.replaceChildren();
  if (span?.dataset.name) addLine(span.dataset.name);
  if (svg.dataset.xUnit) addLine(`${Math.abs(Math.round(valueOf(svg.dataset.x, at)))} ${svg.dataset.xUnit}`);
  for (const { label, colour, point } of paths.sort((a, b) => a.point[1] - b.point[1])) {
    const value = valueOf(svg.dataset.y, point[1]);
    addLine(`${value >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(3)}  ${label}`, colour);
  }
  for (const mark of svg.querySelectorAll(".mark")) if (Math.abs(mark.dataset.x - x) < NEAR) addLine(mark.dataset.name);
  const [bottom, , top] = svg.dataset.y.split(" ");
  for (const [key, value] of Object.entries({ x1: at, x2: at, y1: bottom, y2: top })) cursor.setAttribute(key, value);
  svg.append(cursor);
  document.body.append(tip);
  const box = svg.getBoundingClientRect();
  const left = box.left + (at / svg.viewBox.baseVal.width) * box.width;
  const flip = left + tip.offsetWidth + 24 > document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, scrollX + left + (flip ? -tip.offsetWidth - 12 : 12))}px`;
  tip.style.top = `${scrollY + box.top + 12}px`;
}

function hideValues() {
  tip.remove();
  cursor.remove();
}

function moveCursor(svg, step) {
  const d = linesOf(svg).map((path) => path.getAttribute("d")).join("");
  const places = [...new Set([...d.matchAll(/[ML]([-\d.]+)/g)].map((m) => +m[1]))].sort((a, b) => a - b);
  const now = svg.contains(cursor) ? places.indexOf(nearest(places.map((p) => [p]), +cursor.getAttribute("x1"))[0]) : 0;
  showValues(svg, places[Math.min(places.length - 1, Math.max(0, now + step))]);
}

// The listeners are the document's, since the live page replaces its figures every second.
document.addEventListener("pointermove", (event) => {
  const svg = figureAt(event);
  if (!svg) return hideValues();
  const box = svg.getBoundingClientRect();
  showValues(svg, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
});
document.addEventListener("pointerleave", hideValues);
document.addEventListener("focusout", hideValues);
document.addEventListener("keydown", (event) => {
  const svg = figureAt(event), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") hideValues();
  if (!svg || !step) return;
  event.preventDefault();
  moveCursor(svg, step);
});
for (const svg of document.querySelectorAll("svg.figure")) if (linesOf(svg).length) svg.setAttribute("tabindex", "0");
