"use strict";

// The streams of a service that keeps a state for each: the 50 with the largest drift, or those that a filter leaves.

const MINOR = ["mean_entropy", "updates", "waiting"]; // a phone has no room for them
const MOST_STREAMS = 50, COLUMNS = {
  name: "stream", drift: "drift", mean_entropy: "mean entropy", samples: "images", updates: "updates", waiting: "waiting",
};
let streams = [], total = 0, served = null; // whether there is such a route; null before it is known

const numeric = (value) => (Number.isFinite(value) ? value : 0);

function streamState({ learning, in_memory: inMemory }) {
  return [learning === false ? "paused" : "learning", ...(inMemory === false ? ["on disk"] : [])].join(", ");
}

function streamRow(stream) {
  const row = element("tr"), name = element("th");
  name.scope = "row";
  name.append(namePart(String(stream.name)));
  const cells = Object.keys(COLUMNS).slice(1).map((key) => {
    return element("td", MINOR.includes(key) ? "minor" : "", Number.isFinite(stream[key]) ? short(stream[key]) : "–");
  });
  row.append(name, ...cells, element("td", "", streamState(stream)));
  return row;
}

function drawStreams() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const found = streams.filter((stream) => String(stream.name).toLowerCase().includes(wanted));
  const shown = found.sort((a, b) => numeric(b.drift) - numeric(a.drift)).slice(0, MOST_STREAMS);
  byId("filter-label").hidden = streams.length <= MOST_STREAMS;
  const listed = streams.length < total ? `of the ${streams.length.toLocaleString("en")} that are listed, ` : "";
  byId("streams-note").textContent = shown.length < total
    ? `${shown.length} of ${total.toLocaleString("en")} streams, ${listed}those with the largest drift first.`
    : `${total} streams, those with the largest drift first. Each has a state of its own.`;
  const head = element("tr");
  head.append(...Object.entries({ ...COLUMNS, state: "state" }).map(([key, title]) => {
    const cell = element("th", MINOR.includes(key) ? "minor" : "", title);
    cell.scope = "col";
    return cell;
  }));
  byId("streams-table").replaceChildren(head, ...shown.map(streamRow));
}

async function isServed() {
  const { fleet } = await call("stats"); // a request that is answered with 404 would be an error in the console
  return fleet ?? "/streams" in (await call("openapi.json")).paths;
}

async function showStreams() {
  try {
    served ??= await isServed();
    if (!served) return;
    const answer = await fetch("streams", { headers: { Authorization: `Bearer ${token.value}` } });
    served = answer.status !== 404; // a service of one stream
    const found = answer.ok ? await answer.json() : {};
    streams = (Array.isArray(found.streams) ? found.streams : []).filter((stream) => stream && stream.name !== undefined);
    total = found.total ?? streams.length;
  } catch {
    streams = [];
  }
  byId("streams").hidden = streams.length === 0;
  if (streams.length) drawStreams();
}

byId("filter").addEventListener("input", drawStreams);
poll(showStreams, 2000);
