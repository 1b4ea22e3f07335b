"use strict";

// Lists the routes of openapi.json.

const byId = (id) => document.getElementById(id);

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function route(path, method, operation) {
  const item = document.createElement("li");
  item.append(element("code", `${method.toUpperCase()} ${path}`));
  if (operation.security) item.append(element("span", " · requires the token"));
  item.append(element("p", operation.description));
  for (const parameter of operation.parameters ?? []) item.append(element("p", `?${parameter.name}= (${parameter.in})`));
  const takes = Object.keys(operation.requestBody?.content ?? {});
  if (takes.length) item.append(element("p", `Request body: ${takes.join(", ")}`));
  item.append(element("p", `Status codes: ${Object.keys(operation.responses).join(", ")}`));
  return item;
}

fetch("openapi.json").then((answer) => answer.json()).then((description) => {
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) byId("routes").append(route(path, method, operation));
  }
});
byId("example").textContent = [
  `curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg ${location.origin}/predict`,
  `curl -F images=@one.png -F images=@two.png ${location.origin}/predict`,
  `curl -X POST -H "Authorization: Bearer $RESITTA_TOKEN" ${location.origin}/pause`,
].join("\n");
