// Renders /openapi.json. Everything comes from this server; text is set as text, never as markup.
"use strict";

/** An element with attributes and children; a child that is text is text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null));
  return element;
}

/** The little markup that descriptions use: paragraphs, **bold**, `code`. */
function inline(text) {
  return text.split(/(`[^`]*`|\*\*[^*]*\*\*)/).map((part) => {
    if (part.startsWith("`")) return make("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return make("strong", {}, part.slice(2, -2));
    return part;
  });
}

const paragraphs = (text = "") => text.split("\n\n").filter(Boolean).map((text) => make("p", {}, inline(text)));

/** Follows a reference; what stands beside it holds as well. */
function resolve(api, node) {
  if (!node || !node.$ref) return node || {};
  const target = node.$ref.slice(2).split("/").reduce((found, step) => found[step], api);
  const { $ref, ...beside } = node;
  return { ...resolve(api, target), ...beside };
}

/** The fields of an object, those of its parts included: [name, schema, required]. */
function fields(api, schema) {
  schema = resolve(api, schema);
  const found = new Map();
  for (const part of schema.allOf || []) fields(api, part).forEach((field) => found.set(field[0], field));
  // Of alternatives each field is one that may be missing.
  for (const part of schema.properties ? [] : schema.oneOf || schema.anyOf || []) {
    fields(api, part).forEach(([name, field]) => found.has(name) || found.set(name, [name, field, false]));
  }
  for (const [name, field] of Object.entries(schema.properties || {})) {
    found.set(name, [name, field, (schema.required || []).includes(name)]);
  }
  return [...found.values()];
}

/** A type in a few words. */
function kind(api, node) {
  const name = node && node.$ref ? node.$ref.split("/").pop() : undefined;
  const schema = resolve(api, node);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${kind(api, schema.items)}`;
  const either = schema.oneOf || schema.anyOf;
  if (either && !schema.properties && !fields(api, node).length) {
    return [...new Set(either.map((part) => kind(api, part)))].join(" or ");
  }
  if (name && fields(api, node).length) return name;
  return [schema.type || "object"].flat().join(" or ");
}

/** What limits a value, in words. */
function limits(schema) {
  const said = [];
  const range = (least, most, unit) => {
    if (least !== undefined && most !== undefined) said.push(`${least} to ${most}${unit}`);
    else if (least !== undefined) said.push(`at least ${least}${unit}`);
    else if (most !== undefined) said.push(`at most ${most}${unit}`);
  };
  range(schema.minimum, schema.maximum, "");
  range(schema.minLength, schema.maxLength, " characters");
  range(schema.minItems, schema.maxItems, " entries");
  if (schema.default !== undefined) said.push(`${JSON.stringify(schema.default)} where nothing is said`);
  if (schema.format === "date-time") said.push("RFC 3339");
  return said.join(", ");
}

function row(api, name, node, required, description, place) {
  const schema = resolve(api, node);
  const facts = [place, kind(api, node), limits(schema)].filter(Boolean).join(" · ");
  return [
    make("dt", {}, make("code", {}, name)),
    make("dd", {},
      make("p", { class: "fact" }, facts, required ? make("span", { class: "fact must" }, " · required") : ""),
      paragraphs(description || schema.description)),
  ];
}

const table = (api, schema) =>
  make("dl", {}, fields(api, schema).map(([name, field, required]) => row(api, name, field, required)));

/** The shape of a body: its fields, and those of what it holds. */
function shape(api, node) {
  const schema = resolve(api, node);
  const shapes = [];
  if (schema.description) shapes.push(...paragraphs(schema.description));
  if (fields(api, node).length) shapes.push(table(api, node));
  for (const [name, field] of fields(api, node)) {
    const inner = resolve(api, field);
    const item = inner.type === "array" ? inner.items : field;
    if (inner.type === "array" && fields(api, item).length) {
      shapes.push(make("details", {}, make("summary", {}, "each of ", make("code", {}, name)), make("div", {}, table(api, item))));
    }
  }
  return shapes;
}

const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function response(api, status, node) {
  const described = resolve(api, node);
  const parts = [];
  const headers = Object.entries(described.headers || {});
  for (const [type, content] of Object.entries(described.content || {})) {
    parts.push(make("p", { class: "fact" }, type), ...shape(api, content.schema));
    if (content.example !== undefined) parts.push(make("pre", { tabindex: "0" }, make("code", {}, json(content.example))));
  }
  if (headers.length) {
    parts.push(make("h5", {}, "Headers"), make("dl", {}, headers.map(([name, header]) => {
      const found = resolve(api, header);
      return row(api, name, found.schema, found.required, found.description);
    })));
  }
  return make("details", { class: "response" },
    make("summary", {}, make("span", { class: `status ${status < 400 ? "good" : "bad"}` }, status), " ", inline(described.description)),
    make("div", {}, parts));
}

const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** As a part of a path or query; colons may stay, and keys are full of them. */
const encode = (text) => encodeURIComponent(text).replaceAll("%3A", ":");

/** The same call as a line for a shell. */
function curl(call, given, body) {
  const path = call.path.replace(/\{(\w+)\}/g, (_, name) => encode(given[name] || ""));
  const query = call.parameters.filter((parameter) => parameter.in === "query" && given[parameter.name])
    .map((parameter) => `${encodeURIComponent(parameter.name)}=${encode(given[parameter.name])}`).join("&");
  const words = ["curl"];
  if (call.method !== "get") words.push("-X", call.method.toUpperCase());
  words.push(quote(location.origin + path + (query ? `?${query}` : "")));
  for (const parameter of call.parameters) {
    if (parameter.in === "header" && given[parameter.name]) words.push("-H", quote(`${parameter.name}: ${given[parameter.name]}`));
  }
  if (body) words.push("-H", quote("Content-Type: application/json"), "-d", quote(body));
  return words.join(" ");
}

function tryIt(call) {
  const given = {};
  const code = make("code", {});
  const inputs = call.parameters.map((parameter) => {
    const id = `${call.operationId}-${parameter.name}`;
    const value = parameter.in === "path" ? parameter.example : "";
    given[parameter.name] = value;
    const input = make("input", { id, value, placeholder: parameter.example === undefined ? "" : String(parameter.example), spellcheck: "false" });
    input.addEventListener("input", () => { given[parameter.name] = input.value; update(); });
    return make("div", {}, make("label", { for: id }, `${parameter.name} (${parameter.in})`), input);
  });
  let area;
  if (call.example !== undefined) {
    const id = `${call.operationId}-body`;
    area = make("textarea", { id, spellcheck: "false", rows: "3" });
    area.value = JSON.stringify(call.example);
    area.addEventListener("input", update);
    inputs.push(make("div", { class: "wide" }, make("label", { for: id }, "body"), area));
  }
  function update() { code.textContent = curl(call, given, area && area.value.trim()); }
  update();
  const button = make("button", { type: "button", "aria-label": `Copy the curl line of ${call.summary}` }, "Copy");
  button.addEventListener("click", async () => {
    let done = "Copied";
    try { await navigator.clipboard.writeText(code.textContent); } catch { done = "Select it and copy it by hand"; }
    document.getElementById("said").textContent = done;
    button.textContent = done === "Copied" ? "Copied" : "Copy";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return make("div", { class: "try" }, make("h4", {}, "Try it"), make("div", { class: "fields" }, inputs),
    make("div", { class: "line" }, make("pre", { tabindex: "0" }, code), button));
}

function operation(api, path, method, described) {
  const parameters = (described.parameters || []).map((parameter) => resolve(api, parameter));
  const content = ((described.requestBody || {}).content || {})["application/json"];
  const call = { ...described, path, method, parameters, example: content && content.example };
  const parts = [
    make("h3", { id: `${described.operationId}-title` }, described.summary),
    make("p", { class: "signature" }, make("span", { class: `method ${method}` }, method.toUpperCase()), " ", make("span", { class: "path" }, path)),
    ...paragraphs(described.description),
  ];
  if (parameters.length) {
    parts.push(make("h4", {}, "Parameters"), make("dl", {}, parameters.map((parameter) =>
      row(api, parameter.name, parameter.schema, parameter.required, parameter.description, parameter.in))));
  }
  if (content) {
    parts.push(make("h4", {}, "Body", make("span", { class: "fact" }, described.requestBody.required ? " · required" : " · may be left out")),
      ...shape(api, content.schema));
  }
  parts.push(make("h4", {}, "Replies"), ...Object.entries(described.responses).map(([status, node]) => response(api, status, node)), tryIt(call));
  return make("section", { class: "operation", id: described.operationId, "aria-labelledby": `${described.operationId}-title` }, parts);
}

function render(api) {
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("about").append(...paragraphs(api.info.description));
  const place = document.getElementById("operations");
  const index = document.getElementById("index");
  const entries = [];
  const calls = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => ({ path, method, described })));
  for (const tag of api.tags) {
    const list = make("ul");
    const group = [make("h2", { id: `tag-${tag.name}` }, tag.name), ...paragraphs(tag.description)];
    for (const { path, method, described } of calls) {
      if (described.tags.includes(tag.name)) {
        const section = operation(api, path, method, described);
        const entry = make("li", {}, make("a", { href: `#${described.operationId}` },
          make("span", { class: `method ${method}` }, method.toUpperCase()), make("span", {}, described.summary)));
        const words = `${method} ${path} ${described.summary} ${described.operationId} ${Object.keys(described.responses).join(" ")}`;
        entries.push({ words: words.toLowerCase(), entry, section });
        list.append(entry);
        group.push(section);
      }
    }
    index.append(make("h2", {}, tag.name), list);
    place.append(...group);
  }
  document.getElementById("filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { words, entry, section } of entries) {
      entry.hidden = section.hidden = !wanted.every((word) => words.includes(word));
    }
  });
  place.setAttribute("aria-busy", "false");
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView({ behavior: "instant" });
}

async function start() {
  try {
    const reply = await fetch("/openapi.json");
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    render(await reply.json());
  } catch (error) {
    const place = document.getElementById("operations");
    place.setAttribute("aria-busy", "false");
    place.append(make("p", { class: "failed", role: "alert" }, `/openapi.json cannot be shown: ${error.message}. Load the page again.`));
  }
}

start();
