"use strict";

// Reads values back from the pixels of each line, so that the page carries every number once.
for (const svg of document.querySelectorAll("svg.figure")) {
  const paths = [...svg.querySelectorAll("path[data-label]")].map((path) => ({
    label: path.dataset.label,
    colour: path.parentNode.getAttribute("stroke"),
    points: [...path.getAttribute("d").matchAll(/[ML]([-\d.]+),([-\d.]+)/g)].map((m) => [+m[1], +m[2]]),
  }));
  if (!paths.length) continue;
  svg.querySelector("title").remove(); // its native tip would cover ours; aria-label says the same
  svg.setAttribute("tabindex", "0");
  const [bottom, low, top, high] = svg.dataset.y.split(" ").map(Number);
  const spans = [...svg.querySelectorAll("rect.span")];
  const grid = [...new Set(paths.flatMap((path) => path.points.map((p) => p[0])))].sort((a, b) => a - b);
  const cursor = svg.querySelector("line").cloneNode();
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", bottom);
  cursor.setAttribute("y2", top);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  let place = 0;

  const line = (text, colour) => {
    const p = document.createElement("p");
    p.textContent = text;
    if (colour) p.style.color = colour;
    tip.append(p);
  };
  const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  const show = (x) => {
    place = grid.indexOf(nearest(grid.map((g) => [g]), x)[0]);
    tip.replaceChildren();
    const span = spans.find((s) => x >= +s.getAttribute("x") && x < +s.getAttribute("x") + +s.getAttribute("width"));
    if (span) line(span.dataset.name);
    const here = paths.map((path) => ({ ...path, y: nearest(path.points, x)[1] })).sort((a, b) => a.y - b.y);
    for (const path of here) {
      const value = low + ((path.y - bottom) / (top - bottom)) * (high - low);
      line(`${value.toPrecision(3)}  ${path.label}`, path.colour);
    }
    cursor.setAttribute("x1", grid[place]);
    cursor.setAttribute("x2", grid[place]);
    svg.append(cursor);
    document.body.append(tip);
    const box = svg.getBoundingClientRect();
    const left = box.left + (grid[place] / svg.viewBox.baseVal.width) * box.width;
    const flip = left + tip.offsetWidth + 24 > document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, scrollX + left + (flip ? -tip.offsetWidth - 12 : 12))}px`;
    tip.style.top = `${scrollY + box.top + 12}px`;
  };
  const hide = () => { tip.remove(); cursor.remove(); };

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(grid[Math.min(grid.length - 1, Math.max(0, place + step))]);
  });
}

for (const box of document.querySelectorAll(".commands")) {
  if (!navigator.clipboard) continue;
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  box.append(button);
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
