"use strict";

// Sends images to /predict: one that is dropped or chosen, and a stream of samples. Both are ordinary requests.

const BATCH = 8, PAUSE = 250, SHOWN = 8; // images of a request, milliseconds from one to the next, thumbnails
let sent = null; // how many sample images were sent; null while none are
let run = 0; // a click that stops and one that starts again must not leave two loops

const plain = { Accept: "application/json" };
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

async function predict(body, type) {
  const answer = await fetch("predict?top=5", { method: "POST", headers: { ...plain, "Content-Type": type }, body });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function dataUrl(file) {
  return new Promise((done) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.readAsDataURL(file);
  });
}

async function sendFile(file) {
  const picture = file.type.startsWith("image/"), image = byId("thumbnail");
  byId("answer").hidden = false;
  image.hidden = !picture;
  if (picture) image.src = await dataUrl(file);
  byId("verdict").textContent = "sending";
  byId("top").replaceChildren();
  const begun = performance.now();
  try {
    showAnswer(await predict(file, picture ? file.type : "application/octet-stream"), file.name, performance.now() - begun);
  } catch (error) {
    byId("verdict").textContent = error.message;
  }
}

function showAnswer({ predictions, version, learned }, name, milliseconds) {
  const [first] = predictions, more = predictions.length > 1 ? `, the first of ${predictions.length} images` : "";
  const learns = learned ? "the model learns from it" : "the model does not learn from it";
  const parts = [`${first.name}, ${percent(first.confidence)}`, `${name}${more}`, `version ${version}`, learns];
  byId("verdict").textContent = `${parts.join(" · ")} · ${Math.round(milliseconds)} ms`;
  drawBars(byId("top"), first.top.map((row) => [row.name, row.probability, percent(row.probability)]), "");
}

const zone = byId("drop");
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault()); // beside it
for (const kind of ["dragenter", "dragover"]) {
  zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
}
for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
zone.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) sendFile(event.dataTransfer.files[0]);
});
byId("file").addEventListener("change", (event) => {
  if (event.target.files.length) sendFile(event.target.files[0]);
  event.target.value = ""; // the same file can be chosen again
});

function stopDemo(note) {
  sent = null;
  byId("demo").textContent = "Send demo traffic";
  if (note) byId("demo-note").textContent = note;
}

async function sendSamples() {
  const answer = await fetch(`sample?start=${sent}&count=${BATCH}`, { headers: plain }), samples = await answer.json();
  if (!answer.ok) throw new Error(samples.error);
  const images = samples.images.map((uri) => uri.slice(uri.indexOf(",") + 1));
  const { predictions, learned } = await predict(JSON.stringify({ images }), "application/json");
  if (sent === null) return; // stopped meanwhile
  sent += images.length;
  const learns = learned ? "The model learns from them until you stop." : "The model does not learn from them now.";
  byId("demo-note").textContent = `${sent.toLocaleString("en")} sample images sent, now with ${samples.corruption.replaceAll("_", " ")}. ${learns}`;
  byId("strip").replaceChildren(...samples.images.slice(0, SHOWN).map((uri, place) => sampleThumbnail(uri, predictions[place])));
}

function sampleThumbnail(uri, { name }) {
  const item = element("li"), image = element("img");
  image.src = uri;
  image.alt = "";
  item.append(image, element("span", "", name));
  return item;
}

async function demoTraffic(begun) {
  if (sent === null || run !== begun) return;
  try {
    if (!document.hidden) await sendSamples();
  } catch (error) {
    return void stopDemo(`Stopped: ${error.message}`);
  }
  setTimeout(demoTraffic, PAUSE, begun);
}

byId("demo").addEventListener("click", () => {
  if (sent !== null) return void stopDemo(`Stopped after ${sent.toLocaleString("en")} sample images. Reset or roll back to undo what they taught.`);
  sent = 0;
  run += 1;
  byId("demo").textContent = "Stop demo traffic";
  demoTraffic(run);
});

const line = `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg '${new URL("predict?top=5", location.href)}'`;
byId("curl").textContent = line;
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(line);
    byId("copy").textContent = "Copied";
  } catch { // without https a browser may refuse
    getSelection().selectAllChildren(byId("curl"));
    byId("copy").textContent = "Press Ctrl+C";
  }
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 2000);
});
