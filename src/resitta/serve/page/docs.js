"use strict";

// Shows the routes of openapi.json: parameters, the schema of the response, an example, a curl line, and a form to try it.

const byId = (id) => document.getElementById(id);
const MOST = 6000; // characters of a response that are shown
let components = {};

const token = byId("token");
token.value = sessionStorage.getItem("token") ?? ""; // the live page's
token.addEventListener("change", () => sessionStorage.setItem("token", token.value));
byId("access").addEventListener("submit", (event) => event.preventDefault());

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A docstring as paragraphs, with `code` in it.
function prose(text) {
  return text.split(/\n\s*\n/).map((paragraph) => {
    const made = element("p");
    const parts = paragraph.replaceAll(/\s+/g, " ").split("`");
    made.append(...parts.map((part, place) => (place % 2 ? element("code", part) : part)));
    return made;
  });
}

// --- Schemas

function resolved(schema = {}) {
  return schema.$ref ? components.schemas[schema.$ref.split("/").pop()] : schema;
}

// A schema as a JSON value whose leaves are types.
function outline(given, indent = "") {
  const schema = resolved(given), inner = `${indent}  `;
  if (schema.anyOf) return schema.anyOf.map((option) => outline(option, indent)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `[${outline(schema.items, indent)}, …]`;
  if (schema.properties) {
    const rows = Object.entries(schema.properties).map(([name, of]) => `${inner}"${name}": ${outline(of, inner)}`);
    return `{\n${rows.join(",\n")}\n${indent}}`;
  }
  if (schema.type === "object") return schema.additionalProperties?.type ? `{name: ${schema.additionalProperties.type}, …}` : "object";
  return schema.type ?? "any";
}

const ZERO = { integer: 0, number: 0, boolean: false, string: "", null: null };

function example(given) {
  const schema = resolved(given);
  if (schema.examples) return schema.examples[0];
  if ("default" in schema && schema.type !== "array") return schema.default;
  if (schema.anyOf) return schema.anyOf.some((option) => option.type === "null") ? null : example(schema.anyOf[0]);
  if (schema.enum) return schema.enum[0];
  if (schema.type === "array") return [example(schema.items)];
  if (schema.properties) return Object.fromEntries(Object.entries(schema.properties).map(([name, of]) => [name, example(of)]));
  return schema.type === "object" ? {} : ZERO[schema.type] ?? null;
}

// The descriptions of the objects that a schema holds, each once.
function descriptions(given, found = new Map()) {
  const schema = resolved(given);
  if (schema.title && schema.description && !found.has(schema.title)) found.set(schema.title, schema.description);
  const parts = [...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : []), ...Object.values(schema.properties ?? {})];
  for (const part of parts) descriptions(part, found);
  return found;
}

// --- One route

const bodyOf = (operation) => Object.keys(operation.requestBody?.content ?? {});
const takesFile = (operation) => bodyOf(operation).includes("application/octet-stream");
const takesJson = (operation) => bodyOf(operation).includes("application/json") && !takesFile(operation);
const jsonExample = (operation) => JSON.stringify(example(operation.requestBody.content["application/json"].schema));

function curl({ path, method, operation }) {
  const parts = ["curl"];
  if (operation.security) parts.push('-H "Authorization: Bearer $RESITTA_TOKEN"');
  if (takesFile(operation)) parts.push("-H 'Content-Type: image/jpeg' --data-binary @photo.jpg");
  else if (takesJson(operation)) parts.push(`-H 'Content-Type: application/json' -d '${jsonExample(operation)}'`);
  else if (method !== "get") parts.push(`-X ${method.toUpperCase()}`);
  return [...parts, new URL(path.slice(1), location.href)].join(" ");
}

function typeOf(schema) {
  const options = (schema.anyOf ?? [schema]).filter((option) => option.type !== "null");
  const [{ type, minimum, maximum, enum: choices }] = options;
  if (choices) return choices.join(" or ");
  return minimum === undefined ? type : maximum === undefined ? `${type} from ${minimum}` : `${type}, ${minimum} to ${maximum}`;
}

function parameters(operation) {
  const list = element("dl", "", { class: "parameters" });
  for (const parameter of operation.parameters ?? []) {
    const term = element("dt");
    term.append(element("code", parameter.in === "query" ? `?${parameter.name}=` : parameter.name), ` ${parameter.in === "query" ? "" : parameter.in} `);
    list.append(term, element("dd", `${typeOf(parameter.schema)}${parameter.description ? `. ${parameter.description}` : ""}`));
  }
  return list;
}

function answers(operation) {
  const part = element("div"), content = operation.responses["200"]?.content ?? {}, [kind] = Object.keys(content);
  const schema = content[kind]?.schema, others = Object.keys(operation.responses).filter((status) => status !== "200");
  part.append(element("h3", `Response: ${kind ?? "no body"}`));
  if (schema && kind === "application/json") {
    for (const text of descriptions(schema).values()) part.append(...prose(text));
    part.append(folded("Schema", outline(schema)), folded("Example", JSON.stringify(example(schema), null, 2)));
  }
  if (others.length) part.append(element("p", `Other status codes: ${others.join(", ")}`, { class: "quiet" }));
  return part;
}

function folded(title, text) {
  const box = element("details");
  box.append(element("summary", title), element("pre", text, { tabindex: "0" }));
  return box;
}

function form({ path, method, operation }) {
  const made = element("form", "", { class: "try" }), output = element("pre", "", { tabindex: "0", role: "status" });
  const fields = (operation.parameters ?? []).map((parameter) => field(parameter));
  const file = takesFile(operation) ? element("input", "", { type: "file", "aria-label": "Image to send", required: "" }) : null;
  const text = takesJson(operation) ? element("textarea", jsonExample(operation), { "aria-label": "JSON to send", rows: "3" }) : null;
  made.append(...fields.map(({ label }) => label), ...[file, text].filter(Boolean));
  made.append(element("button", method === "get" ? "Try it" : "Send"), output);
  output.hidden = true;
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const headers = token.value && operation.security ? { Authorization: `Bearer ${token.value}` } : {}, query = new URLSearchParams();
    for (const { parameter, input } of fields.filter((one) => one.input.value)) {
      if (parameter.in === "query") query.set(parameter.name, input.value);
      else headers[parameter.name] = input.value;
    }
    if (file) headers["Content-Type"] = file.files[0].type.startsWith("image/") ? file.files[0].type : "application/octet-stream";
    if (text) headers["Content-Type"] = "application/json";
    const body = file ? file.files[0] : text?.value, url = `${path.slice(1)}${query.size ? `?${query}` : ""}`;
    output.hidden = false;
    output.textContent = await sent(url, { method: method.toUpperCase(), headers, body });
  });
  return made;
}

function field(parameter) {
  const label = element("label", parameter.name), input = element("input", "", { spellcheck: "false" });
  input.placeholder = typeOf(parameter.schema);
  label.append(input);
  return { parameter, label, input };
}

async function sent(url, options) {
  const begun = performance.now();
  try {
    const answer = await fetch(url, options), body = await answer.text(), time = Math.round(performance.now() - begun);
    const shown = answer.headers.get("content-type")?.includes("json") ? JSON.stringify(JSON.parse(body), null, 2) : body;
    const rest = shown.length > MOST ? `\n… ${(shown.length - MOST).toLocaleString("en")} further characters` : "";
    return `${answer.status} ${answer.statusText}, ${time} ms\n\n${shown.slice(0, MOST)}${rest}`;
  } catch (error) {
    return `no answer: ${error.message}`;
  }
}

function article(route) {
  const { path, method, operation } = route, title = `${method.toUpperCase()} ${path}`, name = title.replace(/\W+/g, "-");
  const made = element("article"), heading = element("h2", "", { id: name }), item = element("li"), takes = bodyOf(operation);
  heading.append(element("code", title));
  if (operation.security) heading.append(element("span", "token", { class: "pill" }));
  made.append(heading, ...prose(operation.description ?? operation.summary ?? ""));
  if (operation.parameters?.length) made.append(parameters(operation));
  if (takes.length) made.append(element("p", `Request body: ${takes.join(", ")}`));
  made.append(answers(operation), element("pre", curl(route), { tabindex: "0", class: "curl" }), form(route));
  item.append(element("a", title, { href: `#${name}` }));
  byId("contents").append(item);
  return made;
}

fetch("openapi.json").then((answer) => answer.json()).then((description) => {
  ({ components = {} } = description);
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) byId("routes").append(article({ path, method, operation }));
  }
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
});
