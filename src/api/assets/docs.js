// Draws /openapi.json: every call with its parameters, types, answers and a form to try it. Nothing is loaded from
// elsewhere, and everything from the document or from an answer is written as text, never as markup.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function refName(schema) {
  return schema && schema.$ref ? schema.$ref.split("/").pop() : null;
}

// The alternative that is not null, for optional references.
function solid(schema) {
  const list = schema && (schema.oneOf || schema.anyOf);
  if (!list) return schema || {};
  return list.find((s) => s.type !== "null") || {};
}

function typeText(schema) {
  schema = solid(schema);
  const name = refName(schema);
  if (name) return name;
  if (schema.type === "array" || (Array.isArray(schema.type) && schema.type.includes("array"))) {
    return "[" + typeText(schema.items) + "]";
  }
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  const type = Array.isArray(schema.type) ? schema.type.filter((t) => t !== "null").join(" | ") : schema.type;
  return (type || "any") + (schema.format ? " (" + schema.format + ")" : "");
}

function typeLink(schema) {
  const inner = solid(schema);
  const name = refName(inner) || refName(inner.items);
  const text = typeText(schema);
  return name ? el("a", { href: "#type-" + name }, text) : document.createTextNode(text);
}

function notes(schema) {
  const parts = [];
  const range = [schema.minimum, schema.maximum];
  if (range.some((v) => v !== undefined)) parts.push((range[0] ?? "") + " … " + (range[1] ?? ""));
  if (schema.default !== undefined) parts.push("default " + JSON.stringify(schema.default));
  return parts.length ? " (" + parts.join("; ") + ")" : "";
}

function properties(schema) {
  const merged = Object.assign({}, schema.properties);
  for (const part of schema.allOf || []) Object.assign(merged, part.properties);
  return merged;
}

function table(head, rows) {
  if (!rows.length) return null;
  const body = rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, cell))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h) => el("th", {}, h)))), el("tbody", {}, ...body));
}

function propertyTable(schema) {
  const required = new Set(schema.required || []);
  const rows = Object.entries(properties(schema)).map(([name, property]) => [
    name + (required.has(name) ? " *" : ""),
    typeLink(property),
    (property.description || solid(property).description || "") + notes(property),
  ]);
  return table(["field", "type", "meaning"], rows);
}

// A body to begin with: required fields and a few telling ones.
function sample(spec, schema, depth) {
  schema = solid(schema);
  const name = refName(schema);
  if (name) return sample(spec, spec.components.schemas[name], depth);
  if (schema.examples && schema.examples.length) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "array") return depth > 2 ? [] : [sample(spec, schema.items || {}, depth + 1)];
  if (type === "object" || schema.properties) {
    const out = {};
    const telling = ["rule", "cron", "kind", "queue", "worker_id", "items", "leases", "execution_id", "attempt",
      "fencing_token", "action", "by", "retry", "schedule_id"];
    for (const [key, property] of Object.entries(properties(schema))) {
      const wanted = (schema.required || []).includes(key) || telling.includes(key);
      if (wanted && depth < 3) out[key] = sample(spec, property, depth + 1);
    }
    if ("cron" in out) out.cron = "0 9 * * MON-FRI";
    if ("kind" in out) out.kind = "example";
    if ("worker_id" in out) out.worker_id = "docs-page";
    return out;
  }
  return type === "integer" || type === "number" ? 1 : type === "boolean" ? false : type === "string" ? "" : null;
}

function bodySchema(operation) {
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  return content && content.schema;
}

function tryForm(spec, path, method, operation) {
  const fields = (operation.parameters || []).map((p) => {
    const value = { tenant: "default", queue: "default" }[p.name] || "";
    return { parameter: p, input: el("input", { value: p.in === "path" ? value : "", placeholder: p.name }) };
  });
  const schema = bodySchema(operation);
  const body = schema ? el("textarea", { spellcheck: "false", "aria-label": "Body" }) : null;
  if (body) body.value = JSON.stringify(sample(spec, schema, 0), null, 2);
  const result = el("div", { "aria-live": "polite" });
  const send = el("button", { type: "button" }, "Send");
  send.addEventListener("click", () => run(path, method, fields, body, result));
  const rows = fields.map((f) => [f.parameter.name + (f.parameter.in === "path" ? " *" : ""), f.input]);
  return el("div", {}, el("h4", {}, "Try it"), table(["parameter", "value"], rows), body, send, result);
}

async function run(path, method, fields, body, result) {
  let url = path;
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, input } of fields) {
    if (parameter.in === "path") url = url.replace("{" + parameter.name + "}", encodeURIComponent(input.value));
    else if (input.value === "") continue;
    else if (parameter.in === "query") query.set(parameter.name, input.value);
    else headers[parameter.name] = input.value;
  }
  if (query.size) url += "?" + query;
  if (body && body.value.trim()) headers["content-type"] = "application/json";
  result.replaceChildren(el("p", {}, "…"));
  try {
    const answer = await fetch(url, { method: method.toUpperCase(), headers, body: body && body.value.trim() ? body.value : undefined });
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    const head = [...answer.headers].map(([name, value]) => name + ": " + value).join("\n");
    result.replaceChildren(
      el("p", { class: answer.ok ? "" : "bad" }, answer.status + " " + answer.statusText + " — " + method.toUpperCase() + " " + url),
      el("pre", {}, shown || "(no body)"),
      el("details", {}, el("summary", {}, "Headers"), el("pre", {}, head)),
    );
  } catch (error) {
    result.replaceChildren(el("p", { class: "bad" }, "The node did not answer: " + error.message));
  }
}

function call(spec, path, method, operation) {
  const parameters = (operation.parameters || []).map((p) => [
    p.name + (p.required ? " *" : ""), p.in, typeLink(p.schema), p.description || "",
  ]);
  const answers = Object.entries(operation.responses).map(([status, response]) => {
    const content = Object.values(response.content || {})[0];
    return [status, content && content.schema ? typeLink(content.schema) : "", response.description];
  });
  const schema = bodySchema(operation);
  const details = el("details", { class: "call", id: operation.operationId },
    el("summary", {}, el("span", { class: "method" }, method.toUpperCase()), el("span", { class: "path" }, path),
      el("span", { class: "summary" }, operation.summary || "")));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(el("div", {},
      el("p", {}, operation.description || ""),
      parameters.length ? el("h4", {}, "Parameters") : null,
      table(["name", "in", "type", "meaning"], parameters),
      schema ? el("p", {}, "Body: ", typeLink(schema)) : null,
      el("h4", {}, "Answers"), table(["status", "type", "meaning"], answers),
      tryForm(spec, path, method, operation)));
  });
  return details;
}

function draw(spec) {
  document.getElementById("about").textContent = spec.info.description + " Version " + spec.info.version + ".";
  const groups = new Map();
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS) {
      const operation = item[method];
      if (!operation) continue;
      const tag = (operation.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push({ path, method, operation });
    }
  }
  const calls = document.getElementById("calls");
  const index = document.getElementById("index");
  for (const tag of [...groups.keys()].sort()) {
    const section = el("section", {}, el("h2", {}, tag));
    const list = el("div", {}, el("h3", {}, tag));
    for (const { path, method, operation } of groups.get(tag)) {
      section.append(call(spec, path, method, operation));
      const link = el("a", { href: "#" + operation.operationId }, method.toUpperCase() + " " + path.replace("/v1", ""));
      link.dataset.text = (operation.operationId + " " + path + " " + operation.summary).toLowerCase();
      list.append(link);
    }
    calls.append(section);
    index.append(list);
  }
  const codes = spec["x-problem-codes"] || [];
  document.getElementById("codes").append(table(["code", "status", "retry", "meaning"], codes.map((c) => {
    const name = el("span", { id: "problem-" + c.code }, c.code);
    return [name, String(c.status), c.retryable ? "yes" : "", c.title];
  })));
  for (const [name, schema] of Object.entries(spec.components.schemas).sort()) {
    document.getElementById("types").append(el("section", { id: "type-" + name }, el("h3", {}, name),
      el("p", {}, schema.description || ""),
      schema.enum ? el("p", {}, schema.enum.map((v) => JSON.stringify(v)).join(" | ")) : propertyTable(schema)));
  }
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
}

document.getElementById("search").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const link of document.querySelectorAll("#index a")) {
    link.hidden = !link.dataset.text.includes(wanted);
  }
});
window.addEventListener("hashchange", openTarget);
fetch("/openapi.json").then((answer) => answer.json()).then((spec) => { draw(spec); openTarget(); }).catch((error) => {
  document.getElementById("about").textContent = "openapi.json could not be read: " + error.message;
});
