"use strict";

// Small drawings: a line over the last minutes, and bars. Both are made anew from their data each time.

const SHORTEST = 60, LONGEST = 300; // seconds shown
const GAP = 5; // seconds without a request that break a line

function svgElement(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)));

// The upper end of an axis: 1, 2 or 5 times a power of ten.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

// `lines` maps a name to a key of the points; the first is drawn as "a", the second as "b".
function drawLines(box, points, lines, { top, now, label }) {
  if (points.length === 0) return void box.replaceChildren(element("div", "empty", "no requests in the last five minutes"));
  const width = box.clientWidth, height = box.clientHeight, left = 38, bottom = height - 20;
  const keys = Object.values(lines);
  const high = top ?? roundUp(Math.max(...points.flatMap((point) => keys.map((key) => point[key]))));
  const span = Math.min(LONGEST, Math.max(SHORTEST, now - points[0].time));
  const x = (time) => left + ((time - now + span) / span) * (width - left - 6);
  const y = (value) => bottom - (Math.min(value, high) / high) * (bottom - 8);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
  const last = points[points.length - 1];
  svg.setAttribute("aria-label", `${label}: now ${keys.map((key) => short(last[key])).join(" and ")}`);
  for (const share of [0, 0.5, 1]) {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: width - 6, y1: y(share * high), y2: y(share * high) }));
    svg.append(svgElement("text", { x: left - 6, y: y(share * high) + 4, "text-anchor": "end" }, short(share * high)));
  }
  for (const [ago, anchor] of [[span, "start"], [span / 2, "middle"], [0, "end"]]) {
    const text = ago === 0 ? "now" : ago < 120 ? `${Math.round(ago)} s ago` : `${short(ago / 60)} min ago`;
    svg.append(svgElement("text", { x: x(now - ago), y: height - 3, "text-anchor": anchor }, text));
  }
  keys.forEach((key, number) => {
    let path = "", before = -Infinity;
    for (const point of points) {
      const place = `${x(point.time).toFixed(1)},${y(point[key]).toFixed(1)}`;
      path += point.time - before > GAP ? `M${place}h0.01` : `L${place}`; // a lone point is a dot
      before = point.time;
    }
    svg.append(svgElement("path", { class: "ab"[number], d: path }));
  });
  addCursor(box, svg, points, lines, x, bottom);
  const old = box.querySelector("svg");
  const focused = old !== null && document.activeElement === old;
  box.replaceChildren(svg);
  if (focused) svg.focus();
}

function addCursor(box, svg, points, lines, x, bottom) {
  const tip = element("div", "tip"), cursor = svgElement("line", { class: "cursor", y1: 8, y2: bottom });
  let place = points.length - 1;
  const show = () => {
    const point = points[place], at = x(point.time);
    const ago = points[points.length - 1].time - point.time;
    const values = Object.entries(lines).map(([name, key]) => `${name} ${short(point[key])}`);
    tip.textContent = `${values.join(", ")} · ${ago ? `${ago} s earlier` : "latest"}`;
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    svg.append(cursor);
    box.append(tip);
    tip.style.left = `${Math.max(0, Math.min(at + 8, box.clientWidth - tip.offsetWidth))}px`;
  };
  const hide = () => { tip.remove(); cursor.remove(); };
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - box.getBoundingClientRect().left;
    place = points.reduce((best, point, i) => (Math.abs(x(point.time) - at) < Math.abs(x(points[best].time) - at) ? i : best), 0);
    show();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    place = Math.max(0, Math.min(points.length - 1, place + step));
    show();
  });
}

// `rows` is a list of [name, value, text].
function drawBars(box, rows, nothing) {
  if (rows.length === 0) return void box.replaceChildren(element("div", "empty", nothing));
  const most = Math.max(...rows.map((row) => row[1]), 1e-12);
  box.classList.toggle("short", rows.every((row) => row[0].length < 5));
  rows.forEach(([name, value, text], number) => {
    let bar = box.children[number];
    if (!bar || !bar.classList.contains("bar")) {
      bar = element("div", "bar");
      const track = element("div", "track");
      track.append(element("div", "fill"));
      bar.append(element("span", "name"), track, element("span", "value"));
      if (box.children[number]) box.children[number].replaceWith(bar);
      else box.append(bar);
    }
    bar.querySelector(".name").textContent = bar.querySelector(".name").title = name;
    bar.querySelector(".fill").style.width = `${(100 * value) / most}%`;
    bar.querySelector(".value").textContent = text;
  });
  while (box.children.length > rows.length) box.lastChild.remove();
}
