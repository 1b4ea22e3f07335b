"use strict";

// Polls the service once a second and shows its state. The token is stored for this tab only.

const byId = (id) => document.getElementById(id);
const short = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)));
const MOST_CLASSES = 12;
let names = [];
let learning = true;
let last = "5min"; // what the charts show

const token = byId("token");
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) history.replaceState(null, "", location.pathname); // keeps the token out of bookmarks
token.value = given ?? sessionStorage.getItem("token") ?? "";
const keepToken = () => { sessionStorage.setItem("token", token.value); showBank(); };
token.addEventListener("change", keepToken);
byId("controls").addEventListener("submit", (event) => { event.preventDefault(); keepToken(); });
if (given) sessionStorage.setItem("token", given);

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

// A name whose middle gives way where it has no room: its end tells layers apart.
function namePart(text) {
  const name = element("span", "name"), dot = text.lastIndexOf(".");
  const cut = text.length - (dot > 0 && text.length - dot < 16 ? text.length - dot : 8);
  name.title = text;
  if (text.length <= 12) name.textContent = text;
  else name.append(element("span", "head", text.slice(0, cut)), element("span", "tail", text.slice(cut)));
  return name;
}

async function call(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { Authorization: `Bearer ${token.value}` } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function say(text, wrong = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("wrong", wrong);
}

async function control(path, done) {
  try {
    const state = await call(path, { method: "POST" });
    say(done(state));
    await showStats();
    await showBank();
  } catch (error) {
    say(error.message, true);
  }
}

// A button with `data-confirm` acts on a second click within four seconds.
function onClick(button, act) {
  const text = button.textContent;
  const restore = () => { button.classList.remove("armed"); button.textContent = text; };
  button.addEventListener("click", () => {
    if (button.dataset.confirm && !button.classList.contains("armed")) {
      button.classList.add("armed");
      button.textContent = button.dataset.confirm;
      setTimeout(restore, 4000);
      return;
    }
    if (button.dataset.confirm) restore();
    act();
  });
}

onClick(byId("pause"), () => control(learning ? "pause" : "resume", (state) => (state.learning ? "Learning resumed." : "Learning paused; predictions continue.")));
onClick(byId("snapshot"), () => control("snapshot", (state) => `Version ${state.version} saved.`));
onClick(byId("reset"), () => control("reset", (state) => `Reset to the source model, as version ${state.version}.`));
onClick(byId("rollback"), () => {
  const version = byId("versions").value;
  control(`rollback?version=${version}`, (state) => `Rolled back to version ${version}, as version ${state.version}.`);
});

// A version with the time of its snapshot, and the day if that is not today.
function versionText(version, times) {
  if (!times[version]) return version;
  const written = new Date(times[version] * 1000), today = written.toDateString() === new Date().toDateString();
  return `${version} · ${written.toLocaleString([], { timeStyle: "medium", ...(today ? {} : { dateStyle: "short" }) })}`;
}

function showVersions(versions, times) {
  const select = byId("versions"), newest = [...versions].reverse();
  byId("rollback").disabled = select.disabled = versions.length === 0;
  if (select.dataset.shown === String(newest)) return; // new options would close an open list
  select.dataset.shown = String(newest);
  const options = newest.map((version) => {
    const option = element("option", "", versionText(version, times));
    option.value = version;
    return option;
  });
  select.replaceChildren(...(options.length ? options : [element("option", "", "none yet")]));
}

function showEvents(events) {
  const items = events.map((event) => {
    const item = element("li", event.kind), time = element("time", "", new Date(event.time * 1000).toLocaleTimeString());
    time.dateTime = new Date(event.time * 1000).toISOString();
    item.append(time, element("span", "", event.text));
    return item;
  });
  byId("events").replaceChildren(...(items.length ? items : [element("li", "quiet", "No events yet.")]));
}

function showAccounts(stats) {
  const parts = [`${short(stats.waiting)} in the learning queue`];
  if (stats.dropped) parts.push(`${short(stats.dropped)} dropped because the learning queue was full`);
  if (stats.skipped) parts.push(`${short(stats.skipped)} skipped while learning was paused or reset`);
  if (stats.screened) parts.push(`${short(stats.screened)} excluded because they, or most images of their client, are out of distribution`);
  if (stats.predictions_wait_for_updates) parts.push(`${stats.method} predicts and learns in one step, so predictions wait for updates`);
  byId("accounts").textContent = `Of the images predicted: ${parts.join("; ")}.`;
}

const listed = (settings) => Object.entries(settings).map(([name, value]) => `${name}=${value}`).join(", ");

function showRuns(stats) {
  const { settings, guard } = stats, size = `${stats.size}×${stats.size}`;
  const facts = {
    model: `${stats.model}, ${stats.names.length} classes, ${size} pixels`,
    method: [stats.method, listed(settings) || "default settings"].join(", "),
    guard: guard === null ? "off" : ["on", listed(guard)].filter(Boolean).join(", "),
    device: `${stats.device}, ${stats.precision}`,
  };
  if (byId("runs").dataset.shown === JSON.stringify(facts)) return;
  byId("runs").dataset.shown = JSON.stringify(facts);
  byId("runs").replaceChildren(...Object.entries(facts).map(([name, text]) => {
    const fact = element("span");
    fact.append(element("b", "", name), ` ${text}`);
    return fact;
  }));
  byId("bound-note").hidden = guard === null;
}

async function showStats() {
  const stats = await call("stats"), status = byId("status"), drift = Object.entries(stats.adapter.drift);
  ({ names, learning } = stats);
  byId("method").textContent = stats.method;
  status.textContent = learning ? "learning" : "paused";
  status.className = `pill ${status.textContent}`;
  document.title = `${stats.method} · ${status.textContent}`;
  byId("pause").textContent = learning ? "Pause" : "Resume";
  for (const key of ["predicted", "learned", "version"]) byId(key).textContent = stats[key].toLocaleString("en");
  byId("updates").textContent = stats.adapter.updates.toLocaleString("en");
  showAccounts(stats);
  showRuns(stats);
  showVersions(stats.snapshots, stats.snapshot_times);
  showEvents(stats.events);
  drawBars(byId("layers"), drift.map(([name, value]) => [/^\d+$/.test(name) ? `layer ${name}` : name, value, short(value)]), noDrift());
}

async function showHistory() {
  const { points, classes, time: now } = await call("history");
  const latest = points.filter((point) => point.time >= now - 5 && point.time < now); // the current second is incomplete
  byId("rate").textContent = short(latest.reduce((sum, point) => sum + point.images, 0) / 5);
  byId("median").textContent = latest.length ? `${short(latest[latest.length - 1].p50_ms)} ms` : "–";
  showClasses(classes);
  const width = Math.max(280, Math.min(920, byId("entropy").clientWidth));
  const figures = await call(`figures?width=${width}&last=${last}`);
  for (const box of document.querySelectorAll(".chart")) showFigure(box, figures[box.id]);
  byId("legend").replaceChildren(drawing(figures.legend));
}

const drawing = (svg) => new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
const noRequests = () => `no requests in the last ${last === "1h" ? "hour" : "five minutes"}`;
const noDrift = () => (byId("streams").hidden ? "this method does not adapt statistics" : "each stream has a drift of its own");

function showFigure(box, svg) {
  if (!svg) return void box.replaceChildren(element("div", "empty", box.id === "drift" ? noDrift() : noRequests()));
  const figure = drawing(svg);
  const focused = box.contains(document.activeElement), pointed = box.contains(cursor);
  figure.setAttribute("tabindex", "0");
  box.replaceChildren(figure);
  if (focused) figure.focus();
  if (pointed) showValues(figure, +cursor.getAttribute("x1"));
}

for (const button of document.querySelectorAll("[data-last]")) {
  button.addEventListener("click", () => {
    ({ last } = button.dataset);
    for (const other of document.querySelectorAll("[data-last]")) other.setAttribute("aria-pressed", String(other === button));
    showHistory().catch(() => {}); // the next poll reports what is wrong
  });
}

// `rows` is a list of [name, value, text].
function drawBars(box, rows, nothing) {
  if (rows.length === 0) return void box.replaceChildren(element("div", "empty", nothing));
  const most = Math.max(...rows.map((row) => row[1]), 1e-12);
  box.classList.toggle("short", rows.every((row) => row[0].length < 5));
  box.replaceChildren(...rows.map(([name, value, text]) => {
    const bar = element("div", "bar"), track = element("div", "track"), fill = element("div", "fill");
    fill.style.width = `${(100 * value) / most}%`;
    track.append(fill);
    bar.append(namePart(name), track, element("span", "value", text));
    return bar;
  }));
}

function showClasses(classes) {
  const counts = Object.entries(classes).map(([label, count]) => [Number(label), count]);
  const total = counts.reduce((sum, row) => sum + row[1], 0);
  const rows = names.length <= MOST_CLASSES && total
    ? names.map((_, label) => [label, classes[label] ?? 0])
    : counts.sort((a, b) => b[1] - a[1]).slice(0, MOST_CLASSES);
  const share = (count) => `${((100 * count) / total).toFixed(count * 10 < total ? 1 : 0)} %`;
  drawBars(byId("classes"), rows.map(([label, count]) => [names[label], count, share(count)]), "no requests in the last minute");
}

async function showBank() {
  const note = byId("bank-note"), list = byId("bank");
  if (!token.value) {
    note.textContent = "Enter the token to show the images in the memory.";
    return void list.replaceChildren();
  }
  try {
    const samples = await call("bank");
    note.textContent = samples.length
      ? `${samples.length} images in the memory, newest first, each with its predicted class, entropy in nats and age in images.`
      : "The memory is empty, or this method has no memory.";
    list.replaceChildren(...samples.map(sampleItem));
  } catch (error) {
    note.textContent = error.message;
    list.replaceChildren();
  }
}

function sampleItem(sample) {
  const item = element("li"), image = element("img");
  image.src = sample.image;
  image.alt = "";
  item.append(image, element("b", "", names[sample.label] ?? sample.label));
  item.append(`${sample.entropy.toFixed(2)} nats`, element("br"), `age ${sample.age.toLocaleString("en")}`);
  return item;
}

async function show() {
  try {
    await showStats();
    await showHistory();
  } catch {
    byId("status").textContent = "unreachable";
    byId("status").className = "pill lost";
  }
}

// The next request is scheduled after the last response, so requests to a slow service do not accumulate.
async function poll(update, milliseconds) {
  if (!document.hidden) await update();
  setTimeout(poll, milliseconds, update, milliseconds);
}

poll(show, 1000);
poll(showBank, 4000);
