// What is said of an op: in a few words under the pointer, and in full beside the list.
function tip(event, text) {
  const box = byId("tip");
  box.style.display = text ? "block" : "none";
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

function briefly(step, span) {
  const op = step.op[span], graph = step.graph, spent = step.finish[span] - step.start[span];
  return `${graph.names[op]}\n${graph.moduleOf(op)}, ${graph.kinds[graph.kind[op]]}\n${step.devices[step.device[span]]}, ` +
    `${seconds(spent)} from ${seconds(step.start[span])} on\n${bytesTold(graph, op)}${waitTold(step, span)}`;
}

// Bytes in words where they are known.
const sized = (value, before = "", after = "") => (value >= 0 ? `${before}${bytes(value)}${after}` : "");

function transferTold(step, k) {
  const t = step.transfers;
  return `The result of ${step.graph.names[t.op[k]]}${sized(t.bytes[k], ", ")}\ngoes from ${step.devices[t.source[k]]} to ${step.devices[t.target[k]]}\n` +
    `from ${seconds(t.start[k])} to ${seconds(t.finish[k])}.`;
}

function bytesTold(graph, op) {
  const parts = [graph.state[op] ? `${bytes(graph.state[op])} of state` : "", graph.made[op] ? `${bytes(graph.made[op])} of result` : ""].filter(Boolean);
  return parts.length ? `${parts.join(", ")}\n` : "";
}

// Why an op does not start sooner: its device computes, copies, or an input is not there yet.
function waitTold(step, span) {
  const kind = step.cause.kind[span], before = step.cause.op[span], start = step.start[span];
  if (kind === 255) return "What it waits for is known of predicted steps alone.";
  if (kind === 0) return start > 0 ? `It starts after ${seconds(start)}, the overheads of its messages.` : "Nothing comes before it.";
  const name = step.graph.names[before], free = freeSince(step, span), idle = start - free;
  if (kind === 1) return `It starts when its device is done with ${name}.`;
  const t = step.transfers, k = step.cause.transfer[span];
  const way = `the result of ${name} (${sized(t.bytes[k], "", ", ")}from ${step.devices[t.source[k]]} to ${step.devices[t.target[k]]}, ${seconds(t.start[k])} to ${seconds(t.finish[k])})`;
  if (kind === 3) return `Its device first copies ${way}.`;
  return `Its device waits ${seconds(Math.max(idle, 0))} for ${way}.`;
}

function freeSince(step, span) {
  const place = step.place[span];
  return place ? step.finish[step.lanes[step.device[span]][place - 1]] : 0;
}

function choose(step, op, move = false) {
  view.chosen = op < 0 ? null : { step, op };
  if (move && view.chosen) bringIntoView(step, step.spanOf[op]);
  redraw("timeline", "graph", "details");
}

function bringIntoView(step, span) {
  if (span < 0) return;
  const begin = step.start[span], end = step.finish[span], size = view.end - view.start;
  if (begin >= view.start && end <= view.end && (end - begin) / size > 0.004) return;
  const room = Math.min(size, Math.max(20 * (end - begin), 1e-5 * whole()));
  show((begin + end - room) / 2, (begin + end + room) / 2);
}

function paintDetails() {
  const box = byId("details");
  if (!view.chosen) {
    const said = "Click an op, or press N on the timeline: here stand its times, its bytes, why it is where it is, and what it waits for.";
    box.replaceChildren(element("h3", "One op", "screen"), element("p", said, "hint screen"));
    return;
  }
  const { step, op } = view.chosen, graph = step.graph, list = element("dl");
  for (const [name, text] of factsOf(step, op)) list.append(element("dt", name), element("dd", text));
  box.replaceChildren(element("h3", graph.names[op]), list, ...steering(step, op));
}

function factsOf(step, op) {
  const graph = step.graph, facts = [["module", graph.moduleOf(op)], ["kind", graph.kinds[graph.kind[op]]]];
  const covered = graph.covers[graph.module[op]];
  if (covered && covered.length) facts.push(["it covers", `${covered.slice(0, 6).join(", ")}${covered.length > 6 ? ` and ${covered.length - 6} more` : ""}`]);
  for (const shown of view.steps) if (shown.graph === graph) facts.push(...spanFacts(shown, op));
  if (graph.state[op]) facts.push(["state", `${bytes(graph.state[op])} of parameters, gradients and optimizer`]);
  if (graph.made[op]) facts.push(["result", `${bytes(graph.made[op])} that other ops read`]);
  if (graph.device_kinds.length > 1) facts.push(["on other kinds", elsewhere(graph, op)]);
  if (graph.reasons.length) facts.push(["why there", graph.reasons[graph.reason[op]]]);
  return facts;
}

function spanFacts(step, op) {
  const span = step.spanOf[op], heading = view.steps.length > 1 ? `${step.label}: ` : "";
  if (span < 0) return [[`${heading}time`, "It does not run in this step."]];
  const path = step.critical[span] ? " It is on the critical path: the step is longer if it is." : "";
  return [[`${heading}device`, step.devices[step.device[span]]],
    ["time", `${seconds(step.finish[span] - step.start[span])}, from ${seconds(step.start[span])} to ${seconds(step.finish[span])}`],
    ["why then", waitTold(step, span) + path]];
}

function elsewhere(graph, op) {
  return graph.device_kinds.map((kind, k) => {
    const time = graph.seconds[k * graph.names.length + op];
    return time < Infinity ? `${seconds(time)} on ${kind}` : `never on ${kind}`;
  }).join(", ");
}

function steering(step, op) {
  const span = step.spanOf[op], line = element("p", "", "screen"), cause = span < 0 ? 0 : step.cause.kind[span];
  if (cause && cause !== 255) line.append(button("What it waits for", () => choose(step, step.cause.op[span], true)), " ");
  line.append(button("Its module", () => setQuery(step.graph.moduleOf(op))), " ", button("Close", () => choose(step, -1)));
  return [line];
}
painters.push(["details", paintDetails]);
